"""Whether a stated confidence can be taken at its word: the expected calibration error."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError

BINS = 15


def expected_calibration_error(confidence: Any, correct: Any, bins: int = BINS) -> float:
    """Measure how far confidence is from how often it is right.

    The samples, sorted by confidence, are cut into bins of equal size, and::

        error = 1 / bins * sum over the bins of | mean confidence - share correct |

    Bins of equal size, unlike those of equal width, are never empty, and stay fine
    where most samples are: near 1. Samples of equal confidence on both sides of a cut
    are shared out in proportion, the correct ones like the others, so that the order of
    the rows means nothing. A bin may therefore hold a fraction of a sample.

    Parameters
    ----------
    confidence : array-like of shape (n,)
        Stated probability of being correct, in [0, 1].
    correct : array-like of shape (n,)
        Whether it was: booleans, or 0 and 1.
    bins : int
        Number of bins; n if there are fewer samples.

    Returns
    -------
    float
        In [0, 1]; 0 if every bin keeps its promise. Chance alone keeps it above 0, the
        more so the fewer samples a bin has.

    Raises
    ------
    InputError
        For input that is empty, of differing lengths or outside of its range.
    """
    promised = _fractions(confidence, "confidence")
    kept = _fractions(correct, "correct")
    if len(kept) != len(promised):
        raise InputError(
            f"correct: {len(kept)} rows, but confidence has {len(promised)}; "
            "give one value a sample, in the same order"
        )
    whole = (kept == 0) | (kept == 1)
    if not whole.all():
        row = int(whole.argmin())
        raise InputError(f"correct: row {row} is {kept[row]}; give booleans, or 0 and 1")
    if isinstance(bins, bool) or not isinstance(bins, int | np.integer) or bins < 1:
        raise InputError(f"bins={bins!r}: give a whole number above 0")

    n = len(promised)
    values, group = np.unique(promised, return_inverse=True)
    sizes = np.bincount(group)
    surplus = values * sizes - np.bincount(group, weights=kept)
    # What was promised too much up to each place of the sorted samples, linear inside a group.
    surplus_before = np.interp(
        np.linspace(0, n, min(int(bins), n) + 1),
        np.append(0, sizes.cumsum()),
        np.append(0, surplus.cumsum()),
    )
    return min(float(np.abs(np.diff(surplus_before)).sum()) / n, 1.0)


def _fractions(values: Any, name: str) -> npt.NDArray[np.float64]:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: not all are numbers; give one number a sample") from None
    if numbers.ndim != 1 or not len(numbers):
        raise InputError(f"{name}: expected one number a sample, got shape {numbers.shape}")
    inside = (numbers >= 0) & (numbers <= 1)
    if not inside.all():
        row = int(inside.argmin())
        raise InputError(f"{name}: row {row} is {numbers[row]}; give numbers in [0, 1]")
    return numbers
