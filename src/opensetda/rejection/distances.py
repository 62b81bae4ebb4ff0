"""Products and distances of rows, and which rows of the source a rejector keeps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opensetda.base import SCORED_ROWS
from opensetda.rows import FloatArray, IntArray

Matrix = npt.NDArray[np.float64]

# Squared distances of a product of rows are wrong by about this share of the rows' squared
# lengths: below it, rows are the same.
SAME = 1e-13


def products(rows: FloatArray, others: FloatArray) -> Matrix:
    """Products of rows with rows, (n, d), (m, d) -> (n, m); of few rows, each by itself.

    How BLAS rounds a row's products depends on the row's place among the others, and on the
    threads. Later samples come `SCORED_ROWS` at a time, and get the same bits anywhere.
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
    """Places of at most `most` rows, as many a class, the first ones, in their order.

    All rows, if they are no more; and one of each class, if the classes are.
    """
    if len(y) <= most:
        return np.arange(len(y))
    per_class = max(most // n_classes, 1)
    return np.sort(np.concatenate([np.flatnonzero(y == c)[:per_class] for c in range(n_classes)]))


def as_stored(features: FloatArray) -> Matrix:
    """Return rows as they are saved, in single precision, for use in double precision."""
    return np.asarray(features, dtype=np.float32).astype(np.float64)
