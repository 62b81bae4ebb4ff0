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
    """Source and target of an open-set task; the truth is for evaluation only.

    Attributes
    ----------
    source_features, source_labels : arrays of shape (n_s, d) and (n_s,)
        Rows of known classes, with their classes.
    target_features : array of shape (n_t, d)
        Rows of known and unknown classes, without labels.
    target_truth : array of shape (n_t,)
        Their classes; never to be given to a method.
    split : ClassSplit
        The known and the unknown classes.
    source_rows, target_rows : arrays of int
        Which rows of the whole domains were taken.
    """

    source_features: FloatArray
    source_labels: npt.NDArray[Any]
    target_features: FloatArray
    target_truth: npt.NDArray[Any]
    split: ClassSplit
    source_rows: npt.NDArray[np.intp]
    target_rows: npt.NDArray[np.intp]

    @property
    def openness(self) -> float:
        """The true share of unknowns in the target, which a method in use cannot know."""
        return float(np.isin(self.target_truth, self.split.unknown).mean())


def open_set_split(classes: Iterable[Any], n_known: int, n_unknown: int) -> ClassSplit:
    """Split classes by their order: the first are known, the last unknown.

    The protocol of STA and ROS: on Office-31, ``open_set_split(names, 10, 11)``
    takes the first 10 names in alphabetical order as known and the last 11 as
    unknown; the 10 between are not used.

    Parameters
    ----------
    classes : iterable
        Class names, in any order, repeated or not.
    n_known, n_unknown : int
        How many; at least two known.
    """
    ordered = sorted(set(classes))
    if n_known < 2 or n_unknown < 0:
        raise InputError(
            f"open_set_split: {n_known} known and {n_unknown} unknown classes; "
            "at least two are known, and none is fewer than 0"
        )
    if n_known + n_unknown > len(ordered):
        raise InputError(
            f"open_set_split: {n_known} known and {n_unknown} unknown classes asked for, "
            f"but there are {len(ordered)}"
        )
    return ClassSplit(
        known=tuple(ordered[:n_known]), unknown=tuple(ordered[len(ordered) - n_unknown :])
    )


def open_set_task(
    source: tuple[FloatArray, Any], target: tuple[FloatArray, Any], split: ClassSplit
) -> OpenSetTask:
    """Apply a split to two labelled domains.

    Parameters
    ----------
    source, target : tuples (X, y)
        Whole domains. Of the source the known classes are kept, of the target the known
        and the unknown ones; the order of rows is kept.
    split : ClassSplit
        The classes.
    """
    (source_X, source_y), (target_X, target_y) = source, target
    source_y, target_y = np.asarray(source_y), np.asarray(target_y)
    if len(source_X) != len(source_y) or len(target_X) != len(target_y):
        raise InputError("open_set_task: features and labels differ in length")
    source_rows = np.flatnonzero(np.isin(source_y, split.known))
    target_rows = np.flatnonzero(np.isin(target_y, split.known + split.unknown))
    missing = [name for name in split.known if name not in set(source_y[source_rows].tolist())]
    if missing:
        raise InputError(f"open_set_task: the source has no row of the known class {missing[0]!r}")
    if not len(target_rows):
        raise InputError("open_set_task: the target has no row of a known or unknown class")
    return OpenSetTask(
        source_features=source_X[source_rows],
        source_labels=source_y[source_rows],
        target_features=target_X[target_rows],
        target_truth=target_y[target_rows],
        split=split,
        source_rows=source_rows,
        target_rows=target_rows,
    )


def with_openness(task: OpenSetTask, openness: float, seed: int) -> OpenSetTask:
    """Drop target rows until the share of unknowns is `openness`.

    As many rows are kept as the share allows: either all known rows or all unknown ones. The
    known classes keep their proportions, so nothing but the share changes.

    Parameters
    ----------
    task : OpenSetTask
        The task; it is not changed.
    openness : float
        Share of unknowns in [0, 1); 0 makes a closed-set task. Rounded to whole rows, so a
        tiny share of few rows may leave no unknown.
    seed : int
        Of the draw. The order of rows is kept.
    """
    if not 0 <= openness < 1:
        raise InputError(f"with_openness: openness is {openness}, but must be in [0, 1)")
    known = np.flatnonzero(np.isin(task.target_truth, task.split.known))
    unknown = np.flatnonzero(np.isin(task.target_truth, task.split.unknown))
    if not len(known):
        raise InputError("with_openness: the target has no row of a known class")
    if openness > 0 and not len(unknown):
        raise InputError("with_openness: the target has no row of an unknown class")
    _, which, counts = np.unique(task.target_truth[known], return_inverse=True, return_counts=True)

    n_known, n_unknown = len(known), round(len(known) * openness / (1 - openness))
    if n_unknown > len(unknown):
        n_known, n_unknown = round(len(unknown) * (1 - openness) / openness), len(unknown)
    if n_known < len(counts):
        raise InputError(
            f"with_openness: {len(unknown)} unknown rows are too few for openness {openness} "
            f"and a row of each of {len(counts)} known classes"
        )
    rng = np.random.default_rng(seed)
    kept = [rng.choice(unknown, n_unknown, replace=False)]
    for index, size in enumerate(_proportional(counts, n_known)):
        kept.append(rng.choice(known[which == index], size, replace=False))
    rows = np.sort(np.concatenate(kept))
    return replace(
        task,
        target_features=task.target_features[rows],
        target_truth=task.target_truth[rows],
        target_rows=task.target_rows[rows],
    )


def _proportional(counts: npt.NDArray[np.intp], total: int) -> npt.NDArray[np.intp]:
    """Divide `total` rows in proportion to `counts`, with at least one for each."""
    quota = total * counts / counts.sum()
    sizes: npt.NDArray[np.intp] = np.maximum(1, np.floor(quota)).astype(np.intp)
    while sizes.sum() < total:
        sizes[np.argmax(quota - sizes)] += 1
    while sizes.sum() > total:
        sizes[np.argmax(np.where(sizes > 1, sizes - quota, -np.inf))] -= 1
    return sizes
