"""What in the rows of both domains keeps every method from working, in words for the user."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opensetda.features.scaling import NONE
from opensetda.features.separation import held_out_accuracy
from opensetda.rows import FloatArray, IntArray, Rows, chunk_rows, unit_rows

SAMPLED_ROWS = 2000  # of each domain are looked at
FEWEST_DIRECTIONS = 8  # with fewer, unknowns score as known classes do (made-up data of 2 to 12)
PARALLEL = 1e-6  # warn if the variance of unit rows, over all columns, is less
MUCH_LESS = 1e-3  # or less than this part of the other domain's
FEWEST_COLUMNS = 2.0  # warn if it is spread over fewer columns, of at least four
_ADVICE = "take --scaling standard"


def find_doubts(
    source: Rows,
    target: Rows,
    aligned: tuple[FloatArray, IntArray, FloatArray],
    scaling: str,
    share_given: bool,
) -> list[str]:
    """Say what is wrong with the rows of both domains; `aligned` are aligned samples of them."""
    doubts = []
    if _all_equal(source):
        doubts.append("all rows of the source are equal: they say nothing about its classes")
    elif accuracy := _chance_accuracy(aligned[0], aligned[1]):
        doubts.append(
            "the rows of the source do not tell its classes apart: the nearest class mean is right "
            f"for {accuracy[0]:.0%} of them, guessing for {accuracy[1]:.0%}; check labels, columns "
            "and their units (--scaling)"
        )
    directions = aligned[0].shape[1]
    if _all_equal(target):
        doubts.append(f"all {len(target)} targets are equal: they get the same label")
    elif not share_given and not _all_equal(source) and directions < FEWEST_DIRECTIONS:
        doubts.append(
            f"the rows differ in {directions} direction{'s' * (directions > 1)} only, by which "
            f"they are compared: with fewer than {FEWEST_DIRECTIONS} unknowns look like known "
            "classes; add columns or rows"
        )
    return doubts + _about_columns(source, target, as_given=scaling == NONE)


def _all_equal(rows: Rows) -> bool:
    assert rows.keys is not None, "known after in_canonical_order"
    return len(rows) > 1 and bool(rows.keys[0] == rows.keys[-1])


def _chance_accuracy(rows: FloatArray, y: IntArray) -> tuple[float, float] | None:
    """Return the accuracy of the nearest class mean and of guessing, if they are about the same.

    No row is part of its class mean; classes of one row are left out. Each class counts the same.
    """
    accuracy = held_out_accuracy(rows, y)
    if accuracy is None:
        return None
    guessed = 1 / (int(y.max()) + 1)
    # Two standard deviations above guessing; of few rows that would be all there is.
    noise = min(2 * np.sqrt(guessed * (1 - guessed) / len(y)), 0.1)
    return (accuracy, guessed) if accuracy <= guessed + noise else None


def _about_columns(source: Rows, target: Rows, as_given: bool) -> list[str]:
    """Warn of rows that are nearly parallel, or that differ in one or two columns only."""
    variances = {"source": _variances(source), "target": _variances(target)}
    largest = max(float(values.sum()) for values in variances.values())
    for whose, values in variances.items():
        if 0 < values.sum() < max(PARALLEL, MUCH_LESS * largest):
            reason = "columns differ little in relation to their size"
            advice = f"subtract a constant from them, or {_ADVICE}"
            return [f"the rows of the {whose} are nearly parallel: {reason}; {advice}"]
    for whose, values in variances.items():
        concentrated = FEWEST_COLUMNS * (values**2).sum() > values.sum() ** 2
        if as_given and concentrated and (values > 0).sum() >= 4:
            share = f"{values.max() / values.sum():.0%} of the spread of the {whose}'s rows"
            return [
                f"column {values.argmax() + 1} of {len(values)} has {share}, the others hardly "
                f"count; if units differ, {_ADVICE}"
            ]
    return []


def _variances(rows: Rows) -> npt.NDArray[np.float64]:
    """Variance of each column of some rows, scaled to unit length: (D,)."""
    sample = rows.first(min(SAMPLED_ROWS, chunk_rows(rows.width)))
    unit = unit_rows(np.concatenate([chunk for _, chunk in sample.chunks()]))
    return np.asarray(unit.var(axis=0, dtype=np.float64))
