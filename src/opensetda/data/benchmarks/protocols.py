"""Open-set tasks: which classes are known, unknown or left out, and at which openness."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.rows import FloatArray


@dataclass(frozen=True)
class ClassSplit:
    """Known classes, which the source labels, and unknown ones, which only the target has."""

    known: tuple[Any, ...]
    unknown: tuple[Any, ...]


@dataclass(frozen=True)
class OpenSetTask:
    """Source and target of an open-set task: labelled rows of known classes, and rows of all.

    `target_truth` are the classes of the target, for evaluation only; never to be given to a
    method.
    """

    source_features: FloatArray
    source_labels: npt.NDArray[Any]
    target_features: FloatArray
    target_truth: npt.NDArray[Any]
    split: ClassSplit

    @property
    def openness(self) -> float:
        """The true share of unknowns in the target, which a method in use cannot know."""
        return float(np.isin(self.target_truth, self.split.unknown).mean())


def open_set_split(classes: Iterable[Any], n_known: int, n_unknown: int) -> ClassSplit:
    """Split class names, in any order, by the alphabet: the first are known, the last unknown.

    The protocol of STA and ROS: on Office-31, ``open_set_split(names, 10, 11)`` leaves out 10.
    """
    ordered = sorted(set(classes))
    if n_known < 2 or n_unknown < 0 or n_known + n_unknown > len(ordered):
        asked = f"open_set_split: {n_known} known and {n_unknown} unknown of {len(ordered)} classes"
        raise InputError(f"{asked}; at least two are known, and there must be enough")
    return ClassSplit(tuple(ordered[:n_known]), tuple(ordered[len(ordered) - n_unknown :]))


def open_set_task(
    source: tuple[FloatArray, Any], target: tuple[FloatArray, Any], split: ClassSplit
) -> OpenSetTask:
    """Apply a split to two whole domains, each of them (X, y).

    Of the source the known classes are kept, of the target the known and the unknown ones; the
    order of rows is kept.
    """
    (source_X, source_y), (target_X, target_y) = source, target
    source_y, target_y = np.asarray(source_y), np.asarray(target_y)
    source_rows = np.flatnonzero(np.isin(source_y, split.known))
    target_rows = np.flatnonzero(np.isin(target_y, split.known + split.unknown))
    if missing := sorted({*split.known} - {*source_y[source_rows].tolist()}):
        raise InputError(f"open_set_task: the source has no row of the known class {missing[0]!r}")
    if not len(target_rows):
        raise InputError("open_set_task: the target has no row of a known or unknown class")
    labelled = source_X[source_rows], source_y[source_rows]
    return OpenSetTask(*labelled, target_X[target_rows], target_y[target_rows], split)


def with_openness(task: OpenSetTask, openness: float, seed: int) -> OpenSetTask:
    """Drop target rows until the share of unknowns is `openness`.

    As many rows are kept as the share allows, chosen at random: either all known rows or all
    unknown ones. The known classes keep their proportions and the rows their order. The share is
    in [0, 1) and rounded to whole rows; 0 makes a closed-set task.
    """
    if not 0 <= openness < 1:
        raise InputError(f"with_openness: openness is {openness}, but must be in [0, 1)")
    known = np.flatnonzero(np.isin(task.target_truth, task.split.known))
    unknown = np.flatnonzero(np.isin(task.target_truth, task.split.unknown))
    if not len(known) or (openness > 0 and not len(unknown)):
        raise InputError("with_openness: the target needs rows of known and of unknown classes")
    _, which, counts = np.unique(task.target_truth[known], return_inverse=True, return_counts=True)

    n_known, n_unknown = len(known), round(len(known) * openness / (1 - openness))
    if n_unknown > len(unknown):
        n_known, n_unknown = round(len(unknown) * (1 - openness) / openness), len(unknown)
    if n_known < len(counts):
        needed = f"openness {openness} and a row of each of {len(counts)} known classes"
        raise InputError(f"with_openness: {len(unknown)} unknown rows are too few for {needed}")
    rng = np.random.default_rng(seed)
    kept = [rng.choice(unknown, n_unknown, replace=False)]
    for index, size in enumerate(_proportional(counts, n_known)):
        kept.append(rng.choice(known[which == index], size, replace=False))
    rows = np.sort(np.concatenate(kept))
    X, truth = task.target_features[rows], task.target_truth[rows]
    return replace(task, target_features=X, target_truth=truth)


def _proportional(counts: npt.NDArray[np.intp], total: int) -> npt.NDArray[np.intp]:
    """Divide `total` rows in proportion to `counts`, with at least one for each."""
    quota = total * counts / counts.sum()
    sizes: npt.NDArray[np.intp] = np.maximum(1, np.floor(quota)).astype(np.intp)
    while sizes.sum() < total:
        sizes[np.argmax(quota - sizes)] += 1
    while sizes.sum() > total:
        sizes[np.argmax(np.where(sizes > 1, sizes - quota, -np.inf))] -= 1
    return sizes
