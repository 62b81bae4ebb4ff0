"""The task of two labelled domains of one's own: images or tables, all that `fit` takes.

The rows come from the readers of `fit`, which drop the labels of the target. The truth is read on
its own, and leaves as `OpenSetTask.target_truth`, which `grid` passes to the evaluator only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.benchmark.tasks import CountingProgress, TaskSet, read_all, table_truth
from opensetda.data.benchmarks.protocols import ClassSplit, OpenSetTask, open_set_task
from opensetda.data.images.loading import read_images
from opensetda.data.names import printable, twins
from opensetda.data.tables.formats import listing
from opensetda.data.tables.loading import TableColumns
from opensetda.errors import InputError
from opensetda.runs.fit_data import (
    FitData,
    image_columns,
    is_image_request,
    load_images,
    load_tables,
)
from opensetda.runs.options import FitRequest, ImageOptions, TableOptions
from opensetda.runs.outputs import many_images
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

    Parameters
    ----------
    source, target : str or Path
        Labelled images or a feature table, as in `opensetda.runs.fit`.
    tables, images : TableOptions and ImageOptions, optional
        Names of columns, and how images become features.
    known : sequence of str
        Known classes, at least two; by default all of the source. Source rows of other classes are
        left out. All other classes of the target are unknown.
    progress : callable, optional
        Called with the number of images done, and of all, while features are computed.
    command : tuple of str
        What was typed, which an error about columns corrects.
    """
    paths = Path(source).absolute(), Path(target).absolute()
    parts = [path.resolve() for path in paths]
    names = [path.stem for path in parts]
    if names[0] == names[1]:
        names = [f"{path.parent.name}-{path.stem}" for path in parts]
    name = "-".join(re.sub(r"[^\w.]+", "-", printable(own)).strip("-").lower() for own in names)
    request = FitRequest(
        identity="",
        source=str(paths[0]),
        target=str(paths[1]),
        tables=tables or TableOptions(),
        images=images or ImageOptions(),
        command=command,
        # A class may be called "unknown" as long as it is not known.
        unknown_label="",
    )
    read = partial(_read_own, request=request, known=tuple(dict.fromkeys(known)))
    return read_all(name, (name,), read, progress=progress)


def _read_own(
    task: str,
    request: FitRequest,
    known: tuple[str, ...],
    warnings: list[str] | None = None,
    progress: CountingProgress | None = None,
) -> OpenSetTask:
    """Read both domains without labels of the target, then these for the evaluator."""
    notes: list[str] = []
    if is_image_request(request):
        data = load_images(request, progress or (lambda *_: None))
        truth = _image_truth(request, data)
    else:
        data = load_tables(request)
        columns = TableColumns(label=request.tables.label or "y")
        truth = table_truth(near(request.target), columns, len(data.target))
    notes.extend((*data.notes, *data.warnings))
    if data.broken:
        first = data.broken[0]
        n = many_images(len(data.broken))
        notes.append(f"left out {n}, the first is {first.path}: {first.reason}")
    split = _split(request, known, data.labels, truth)
    notes.extend(twins({*np.unique(data.labels).tolist(), *np.unique(truth).tolist()}))
    if not split.unknown:
        notes.append(
            f"{printable(str(near(request.target)))}: no class that is not known, so UNK and HOS "
            "are not defined; name the known classes with --known"
        )
    if warnings is not None:
        warnings.extend(notes)
    return open_set_task((data.source, data.labels), (data.target, truth), split)


def _split(
    request: FitRequest,
    wanted: tuple[str, ...],
    labels: npt.NDArray[Any],
    truth: npt.NDArray[Any],
) -> ClassSplit:
    classes, true_classes = np.unique(labels).tolist(), np.unique(truth).tolist()
    for name in wanted:
        if name not in classes:
            raise InputError(f"--known {name}: no class of the source, but {listing(classes)}")
    known = tuple(sorted(wanted or classes))
    if "unknown" in known:
        raise InputError(
            "a known class is called 'unknown', as unknowns are; rename it, or leave it out: "
            "name the known classes with --known"
        )
    if len(known) < 2:
        raise InputError(f"--known {known[0]}: one class only; name at least two")
    if not {*known} & {*true_classes}:
        raise InputError(
            f"{near(request.target)}: none of its classes ({listing(true_classes, 3)}) is "
            f"known ({listing(known, 3)}); spell them as in the source"
        )
    return ClassSplit(known, tuple(name for name in true_classes if name not in known))


def _image_truth(request: FitRequest, data: FitData) -> npt.NDArray[np.str_]:
    listed = read_images(near(request.target), image_columns(request.tables), labelled=True)
    assert listed.labels is not None
    label_of = dict(zip(listed.ids.tolist(), listed.labels.tolist(), strict=True))
    return np.array([label_of[name] for name in np.asarray(data.ids).tolist()])
