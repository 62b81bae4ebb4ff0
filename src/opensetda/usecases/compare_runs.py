"""The use case compare: which labels differ between two runs, and which samples to look at."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opensetda.errors import InputError
from opensetda.rows import IntArray
from opensetda.runs.folder import BACKBONE, RunFolder
from opensetda.runs.predictions import PredictionTable, PredictionWriter
from opensetda.runs.sample_map import group_rows
from opensetda.system.files import new_file
from opensetda.usecases.drift_of_samples import kept_target
from opensetda.usecases.predict_samples import Run, open_run

SHOWN = 12  # samples to look at of every group
MOST_GROUPED = 2000


@dataclass(frozen=True)
class Change:
    """Samples that one run gives the label `before` and the other `after`; `rows` of the second."""

    before: str
    after: str
    rows: IntArray

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(self.rows)


@dataclass(frozen=True)
class ChangedGroup:
    """Changed samples that look alike to the second run, the most typical first."""

    rows: IntArray
    most: Change
    """The most frequent change among them."""


@dataclass(frozen=True)
class RunComparison:
    """The labels of the same samples by two runs.

    `rows` are the targets of the second run that both labelled, all of them or those that it
    kept; `before` and `after` have their labels, `p_before` and `p_after` the confidence of each.
    """

    names: tuple[str, str]
    ids: npt.NDArray[Any]
    rows: IntArray
    before: npt.NDArray[Any]
    after: npt.NDArray[Any]
    p_before: npt.NDArray[np.float64]
    p_after: npt.NDArray[np.float64]
    groups: tuple[ChangedGroup, ...]
    is_sample: bool

    @property
    def is_changed(self) -> npt.NDArray[np.bool_]:
        """Which samples have another label."""
        return np.asarray(self.before != self.after)

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes by pair of labels, the most frequent first."""
        return _changes(self.rows, self.before, self.after)

    def by_label(self) -> list[tuple[str, int, int, int]]:
        """Return for each label: samples that have it before, after, and both times."""
        counts = [Counter(labels.tolist()) for labels in (self.before, self.after)]
        stayed = Counter(self.after[~self.is_changed].tolist())
        names = sorted({*counts[0], *counts[1]})
        return [(name, counts[0][name], counts[1][name], stayed[name]) for name in names]

    def place(self, row: int) -> int:
        """Return the place of a target of the second run among the compared ones."""
        return int(np.searchsorted(self.rows, row))

    def to_arrow(self) -> Any:
        """Return the samples whose label differs as a table, the least certain ones first."""
        changed = np.flatnonzero(self.is_changed)
        changed = changed[np.argsort(self.p_after[changed], kind="stable")]
        return pa.table(
            {
                "id": pa.array(self.ids[changed].tolist(), pa.string()),
                "before": pa.array(self.before[changed].tolist(), pa.string()),
                "after": pa.array(self.after[changed].tolist(), pa.string()),
                "confidence_before": self.p_before[changed],
                "confidence_after": self.p_after[changed],
            }
        )

    def write(self, path: Path) -> None:
        """Write `to_arrow` as a .csv or .parquet file."""
        with new_file(path) as aside, PredictionWriter(aside) as writer:
            writer.write(self.to_arrow())


def compare(run: Run, other: Run) -> RunComparison:
    """Compare the labels that two runs give the same samples.

    Two runs on one target, by two methods or before and after marks, are compared on all of it. Of
    two targets, as after `adapt`, the samples are those that the second run kept of its target, at
    most 800, and the model of the first run labels them.

    Parameters
    ----------
    run, other : str, Path, RunFolder or FittedRun
        The two runs, in this order: what changes from `run` to `other`.
    """
    first = open_run(run)
    second = open_run(other)
    after = second.predictions()
    same = _is_same_target(first, second)
    if same:
        before = first.predictions()
        rows = np.arange(len(after))
    else:
        kept = kept_target(second)
        model = first.model()
        if int(model.n_features_in_) != kept.target.shape[1] or not _same_backbone(first, second):
            problem = "other features than those of"
            raise InputError(f"{second.path}: {problem} {first.path}; compare runs of one kind")
        order = np.argsort(kept.target_rows, kind="stable")
        rows = kept.target_rows[order]
        before = PredictionTable.of_samples(model, kept.target[order], after.ids[rows])
    labels = after.labels[rows]
    return RunComparison(
        names=(str(first.path), str(second.path)),
        ids=after.ids[rows],
        rows=rows,
        before=before.labels,
        after=labels,
        p_before=before.confidence,
        p_after=after.confidence[rows],
        groups=_groups(second, rows, before.labels, labels),
        is_sample=not same,
    )


def _is_same_target(first: RunFolder, second: RunFolder) -> bool:
    """Whether two runs labelled the same samples; files and arrays are known by their content."""
    digests = [
        (run.settings["inputs"].get("target") or {}).get("sha256") for run in (first, second)
    ]
    is_same = digests[0] is not None and digests[0] == digests[1]
    return is_same and np.array_equal(first.predictions().ids, second.predictions().ids)


def _same_backbone(first: RunFolder, second: RunFolder) -> bool:
    """Whether the features of two runs are those of one backbone with the same weights."""
    if first.has_images != second.has_images or first.is_finetuned != second.is_finetuned:
        return False
    if first.is_finetuned:
        return first.manifest.files[BACKBONE] == second.manifest.files[BACKBONE]
    return not first.has_images or first.recipe().key == second.recipe().key


def _changes(
    rows: IntArray, before: npt.NDArray[Any], after: npt.NDArray[Any]
) -> tuple[Change, ...]:
    """Return the changes among rows by pair of labels, the most frequent first."""
    changed = np.flatnonzero(before != after)
    pairs = Counter(zip(before[changed].tolist(), after[changed].tolist(), strict=True))
    found = []
    for (old, new), _ in sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0])):
        found.append(
            Change(old, new, rows[changed[(before[changed] == old) & (after[changed] == new)]])
        )
    return tuple(found)


def _groups(
    run: RunFolder, rows: IntArray, before: npt.NDArray[Any], after: npt.NDArray[Any]
) -> tuple[ChangedGroup, ...]:
    """Group changed samples by how alike they look to the method of a run: those in its view."""
    view = run.view()
    changed = np.flatnonzero(before != after)
    place = {row: number for number, row in enumerate(view.target.tolist())}
    seen = np.array([c for c in changed.tolist() if int(rows[c]) in place], dtype=np.intp)
    seen = seen[:MOST_GROUPED]
    if not len(seen):
        return ()
    shown = [len(view.source) + place[row] for row in rows[seen].tolist()]
    groups = []
    for members in group_rows(view.embedding[shown].astype(np.float64)):
        own = seen[members]
        groups.append(ChangedGroup(rows[own], _changes(rows[own], before[own], after[own])[0]))
    return tuple(groups)
