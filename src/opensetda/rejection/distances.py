"""Products and distances of rows, and the rows of the source that a rejector keeps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opensetda.base import SCORED_ROWS
from opensetda.rows import FloatArray, IntArray

Matrix = npt.NDArray[np.float64]

# Rounding error of squared distances, as a share of the squared lengths: below it rows are equal.
SAME = 1e-13


def products(rows: FloatArray, others: FloatArray) -> Matrix:
    """Products of rows with rows, (n, d), (m, d) -> (n, m).

    How BLAS rounds the products of a row depends on its place among the others and on the threads.
    So up to `SCORED_ROWS` rows, as later samples come, are multiplied one by one.
    """
    if len(rows) > SCORED_ROWS:
        return np.asarray(rows @ others.T)
    return np.array([others @ row for row in rows]).reshape(len(rows), len(others))


def squared_distances(rows: Matrix, others: Matrix) -> Matrix:
    """Squared Euclidean distances, exactly zero between equal rows: (n, d), (m, d) -> (n, m)."""
    lengths, others_lengths = (rows**2).sum(axis=1), (others**2).sum(axis=1)
    both = lengths[:, None] + others_lengths
    squared = np.asarray(both - 2 * products(rows, others))
    squared[squared < SAME * both] = 0.0
    return squared


def first_of_every_class(y: IntArray, n_classes: int, most: int) -> IntArray:
    """Places of at most `most` rows, the first ones, equally many per class but at least one."""
    if len(y) <= most:
        return np.arange(len(y))
    per_class = max(most // n_classes, 1)
    return np.sort(np.concatenate([np.flatnonzero(y == c)[:per_class] for c in range(n_classes)]))


def as_stored(features: FloatArray) -> Matrix:
    """Return rows as they are saved, in single precision, for use in double precision."""
    return np.asarray(features, dtype=np.float32).astype(np.float64)
