"""The task of two labelled domains of one's own: images or tables, all that `fit` takes.

Labels of the target leave as `OpenSetTask.target_truth`, which `grid` passes to the evaluator only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from opensetda.benchmark.tasks import (
    TaskSet,
    labelled_images,
    labelled_tables,
    pair_request,
    read_all,
)
from opensetda.data.benchmarks.protocols import ClassSplit, OpenSetTask, open_set_task
from opensetda.data.images.loading import read_images
from opensetda.data.names import printable, twins
from opensetda.data.tables.formats import listing
from opensetda.errors import InputError
from opensetda.runs.fit_data import image_columns, is_image_request, recipe_of
from opensetda.runs.listening import CountingProgress
from opensetda.runs.request import FitRequest, ImageOptions, TableOptions
from opensetda.system.files import near


def own_task(
    source: str | Path,
    target: str | Path,
    tables: TableOptions | None = None,
    images: ImageOptions | None = None,
    known: Sequence[str] = (),
    progress: CountingProgress | None = None,
    command: tuple[str, ...] = (),
) -> TaskSet:
    """Read two labelled domains; images become features, which are kept in the cache.

    Of the source, the classes `known` are kept, at least two, by default all; all others of the
    target are unknown. An error about columns corrects the `command`, what was typed.
    """
    paths = Path(source), Path(target)
    names = [printable(path.resolve().stem) for path in paths]
    name = "-".join(re.sub(r"[^\w.]+", "-", own).strip("-").lower() for own in names)
    usual = tables or TableOptions(), images or ImageOptions()
    request = pair_request(*paths, *usual, command)
    read = partial(_read_own, request=request, known=tuple(dict.fromkeys(known)))
    return read_all(name, (name,), read, progress=progress)


def _read_own(
    task: str,
    request: FitRequest,
    known: tuple[str, ...],
    warnings: list[str] | None = None,
    progress: CountingProgress | None = None,
) -> OpenSetTask:
    """Read both domains, and divide their classes."""
    notes = [] if warnings is None else warnings
    if is_image_request(request):
        columns, images = image_columns(request.tables), request.images
        source, target = (
            read_images(near(path), columns, labelled=True)
            for path in (request.source, request.target)
        )
        notes.extend((*source.notes, *target.notes))
        assert target.labels is not None
        domains = labelled_images(
            (source, target), target.labels, images, recipe_of(images), notes, progress
        )
    else:
        domains = labelled_tables(request, notes)
    classes, true_classes = (np.unique(labels).tolist() for _, labels in domains)
    split = _split(near(request.target), known, classes, true_classes)
    notes.extend(twins({*classes, *true_classes}))
    if not split.unknown:
        notes.append(
            f"{printable(str(near(request.target)))}: no class that is not known, so UNK and HOS "
            "are not defined; name the known classes with --known"
        )
    return open_set_task(*domains, split)


def _split(
    target: Path, wanted: tuple[str, ...], classes: list[str], true_classes: list[str]
) -> ClassSplit:
    for name in wanted:
        if name not in classes:
            raise InputError(f"--known {name}: no class of the source, but {listing(classes)}")
    known = tuple(sorted(wanted or classes))
    if len(known) < 2:
        raise InputError(f"--known {known[0]}: one class only; name at least two")
    if "unknown" in known:
        raise InputError("a known class is called 'unknown', as unknowns are; rename it")
    if not {*known} & {*true_classes}:
        raise InputError(
            f"{target}: none of its classes ({listing(true_classes, 3)}) is "
            f"known ({listing(known, 3)}); spell them as in the source"
        )
    return ClassSplit(known, tuple(name for name in true_classes if name not in known))
