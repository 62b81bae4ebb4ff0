"""What in the rows of both domains keeps every method from working, in words for the user."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.features.scaling import NONE
from opensetda.rows import FloatArray, IntArray, Moderated, Rows, chunk_rows, unit_rows

# Rows of each domain that are looked at.
SAMPLED_ROWS = 2000
FEWEST_DIRECTIONS = 8
"""With fewer, unknowns score as known classes do (made-up data of 2 to 12)."""
PARALLEL = 1e-6
"""Warn if the variance of unit rows, over all columns, is less than this."""
MUCH_LESS = 1e-3
"""Or less than this part of the other domain's."""
FEWEST_COLUMNS = 2.0
"""Warn if the variance of unit rows is spread over fewer columns than this, of at least four."""


def find_doubts(
    source: Rows,
    y: IntArray,
    target: Rows,
    names: npt.NDArray[Any],
    aligned: tuple[FloatArray, IntArray, FloatArray],
    scaling: str,
    share_given: bool,
) -> list[str]:
    """Say what is wrong with the rows of both domains and the classes `names` of the source.

    `aligned` are aligned rows, or samples of them. Whoever gives the share knows how many are
    unknown.
    """
    doubts = _about_classes(source, y, names, _chance_accuracy(*aligned[:2]))
    if _all_equal(target):
        doubts.append(f"all {len(target)} targets are equal: they get the same label")
    elif not share_given and not _all_equal(source):
        doubts += _about_directions(source, target, aligned[0].shape[1])
    return doubts + _about_columns(source, target, as_given=scaling == NONE)


def _about_classes(
    source: Rows, y: IntArray, names: npt.NDArray[Any], accuracy: tuple[float, float] | None
) -> list[str]:
    doubts = []
    if _all_equal(source):
        doubts.append("all rows of the source are equal: they say nothing about its classes")
    elif accuracy is not None:
        doubts.append(
            "the rows of the source do not tell its classes apart: the nearest class mean is right "
            f"for {accuracy[0]:.0%} of them, guessing for {accuracy[1]:.0%}; check labels, columns "
            "and their units (--scaling)"
        )
    counts = np.bincount(y)
    largest = names.tolist()[counts.argmax()]
    if counts.max() > (0.75 + 0.3 / len(counts)) * len(y):
        doubts.append(
            f"class {largest!r:.60} has {counts.max()} of the {len(y)} source "
            "rows, which moves the mean of the source to it: take fewer rows of it"
        )
    return doubts


def _about_directions(source: Rows, target: Rows, directions: int) -> list[str]:
    if directions >= FEWEST_DIRECTIONS:
        return []
    some = f"{directions} direction{'s' * (directions > 1)}"
    size = f"{source.width} columns, {len(source) + len(target)} rows"
    return [
        f"the rows differ in {some} only ({size}): rows are compared by their direction, and with "
        f"fewer than {FEWEST_DIRECTIONS} unknowns look like known classes; add columns or rows"
    ]


def _all_equal(rows: Rows) -> bool:
    assert rows.keys is not None, "known after in_canonical_order"
    return len(rows) > 1 and rows.keys[0] == rows.keys[-1]


def _chance_accuracy(rows: FloatArray, y: IntArray) -> tuple[float, float] | None:
    """Return the accuracy of the nearest class mean and of guessing, if they are about the same.

    No row is part of its class mean; classes of one row are left out. Each class counts the same.
    """
    sums = np.stack([rows[y == label].sum(axis=0) for label in range(int(y.max()) + 1)])
    cosine = rows @ unit_rows(sums).T
    cosine[np.arange(len(y)), y] = (rows * unit_rows(sums[y] - rows)).sum(axis=1)
    right = cosine.argmax(axis=1) == y
    several = np.flatnonzero(np.bincount(y) > 1)
    if not len(several):
        return None
    accuracy = float(np.mean([right[y == label].mean() for label in several]))
    guessed = 1 / len(sums)
    # Two standard deviations above guessing; of few rows that would be all there is.
    noise = min(2 * np.sqrt(guessed * (1 - guessed) / len(y)), 0.1)
    return (accuracy, guessed) if accuracy <= guessed + noise else None


def _about_columns(source: Rows, target: Rows, as_given: bool) -> list[str]:
    """Warn of rows that are nearly parallel, or that differ in one or two columns only."""
    doubts = []
    if isinstance(source.X, Moderated) and source.X.is_coarse:
        doubts.append(
            "some columns differ by less than a 65,000th of their values, which single precision "
            "(float32) hardly resolves; subtract a constant from them before they are rounded"
        )
    advice = "take --scaling standard, or scaling='standard' in Python"
    variances = {"source": _variances(source), "target": _variances(target)}
    totals = {whose: float(values.sum()) for whose, values in variances.items()}
    for whose, total in totals.items():
        if 0 < total < max(PARALLEL, MUCH_LESS * max(totals.values())):
            doubts.append(
                f"the rows of the {whose} are nearly parallel: columns differ little in relation "
                f"to their size; subtract a constant from them, or {advice}"
            )
            return doubts
    for whose, values in variances.items():
        concentrated = FEWEST_COLUMNS * (values**2).sum() > totals[whose] ** 2
        if as_given and concentrated and (values > 0).sum() >= 4:
            share = values.max() / totals[whose]
            doubts.append(
                f"column {values.argmax() + 1} of {len(values)} has {share:.0%} of the spread of "
                f"the {whose}'s rows, the others hardly count; if units differ, {advice}"
            )
            return doubts
    return doubts


def _variances(rows: Rows) -> npt.NDArray[np.float64]:
    """Variance of each column of some rows, scaled to unit length: (D,)."""
    sample = rows.first(min(SAMPLED_ROWS, chunk_rows(rows.width)))
    unit = unit_rows(np.concatenate([chunk for _, chunk in sample.chunks()]))
    return np.asarray(unit.var(axis=0, dtype=np.float64))
