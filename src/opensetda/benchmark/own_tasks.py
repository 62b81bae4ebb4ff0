"""The task of two labelled domains of one's own: images or tables, all that `fit` takes.

The rows come from the readers of `fit`, which drop the labels of the target. The truth is read on
its own, and leaves as `OpenSetTask.target_truth`, which `grid` passes to the evaluator only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.benchmark.tasks import CountingProgress, ReadTasks, digest, table_truth, task_digest
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
from opensetda.runs.outputs import many_images
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
) -> OwnTask:
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
    first, second = map(str, paths)
    request = FitRequest(
        *("", first, second),
        tables=tables or TableOptions(),
        images=images or ImageOptions(),
        command=command,
        # A class may be called "unknown" as long as it is not known.
        unknown_label="",
    )
    task = OwnTask(name, (name,), request, tuple(dict.fromkeys(known)))
    rows = task.load(name, progress)
    task.fingerprints[name] = digest([name, task_digest(rows)])
    if not rows.split.unknown:
        task.notes.append(
            f"{printable(str(target))}: no class that is not known, so UNK and HOS are not "
            "defined; name the known classes with --known"
        )
    return task


@dataclass(frozen=True)
class OwnTask(ReadTasks):
    """One task; `request` says where its domains are, `known` are its known classes, if not all."""

    request: FitRequest
    known: tuple[str, ...] = ()

    def load(self, task: str, progress: CountingProgress | None = None) -> OpenSetTask:
        """Read both domains without labels of the target, then these for the evaluator."""
        request = self.request
        has_images = is_image_request(request)
        if has_images:
            data = load_images(request, progress or (lambda *_: None))
            truth = _image_truth(request, data)
        else:
            data = load_tables(request)
            columns = TableColumns(label=request.tables.label or "y")
            truth = table_truth(near(request.target), columns, len(data.target))
        self.notes.extend((*data.notes, *data.warnings))
        if data.broken:
            first = data.broken[0]
            n = many_images(len(data.broken))
            self.notes.append(f"left out {n}, the first is {first.path}: {first.reason}")
        split = self._split(data.labels, truth)
        return open_set_task((data.source, data.labels), (data.target, truth), split)

    def _split(self, labels: npt.NDArray[Any], truth: npt.NDArray[Any]) -> ClassSplit:
        classes, true_classes = np.unique(labels).tolist(), np.unique(truth).tolist()
        for name in self.known:
            if name not in classes:
                raise InputError(f"--known {name}: no class of the source, but {listing(classes)}")
        known = tuple(sorted(self.known or classes))
        if "unknown" in known:
            raise InputError(
                "a known class is called 'unknown', as unknowns are; rename it, or leave it out: "
                "name the known classes with --known"
            )
        if len(known) < 2:
            raise InputError(f"--known {known[0]}: one class only; name at least two")
        if not {*known} & {*true_classes}:
            raise InputError(
                f"{near(self.request.target)}: none of its classes ({listing(true_classes, 3)}) is "
                f"known ({listing(known, 3)}); spell them as in the source"
            )
        self.notes.extend(twins({*classes, *true_classes}))
        return ClassSplit(known, tuple(name for name in true_classes if name not in known))


def _image_truth(request: FitRequest, data: FitData) -> npt.NDArray[np.str_]:
    listed = read_images(near(request.target), image_columns(request.tables), labelled=True)
    assert listed.labels is not None
    label_of = dict(zip(listed.ids.tolist(), listed.labels.tolist(), strict=True))
    return np.array([label_of[name] for name in np.asarray(data.ids).tolist()])
