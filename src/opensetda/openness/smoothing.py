"""Rows that move towards their neighbours: the simplest message over a graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opensetda.rows import CHUNK_ROWS, FloatArray, unit_rows

Matrix = npt.NDArray[np.float32]

# Cosines at a time. With the indices of the partition: 48 MB in single precision.
MOST_COSINES = 2**22
# Above this cosine two rows are equal but for rounding.
SAME = 1 - 1e-6


def move_to_neighbours(
    rows: FloatArray, others: FloatArray, neighbours: int, message: float
) -> Matrix:
    """Move unit rows towards the mean of their nearest others: (n, d), (m, d) -> (n, d).

    Others that are equal to a row are not its neighbours: a row is among the others itself, and
    a later copy of it must get the same answer. A row without neighbours stays.
    """
    moved = np.empty_like(rows)
    keep = min(neighbours, len(others))
    size = min(CHUNK_ROWS, max(1, MOST_COSINES // len(others)))
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        cosine = part @ others.T.astype(rows.dtype)
        cosine[cosine > SAME] = -np.inf
        nearest = np.argpartition(cosine, len(others) - keep, axis=1)[:, -keep:]
        counts = np.isfinite(np.take_along_axis(cosine, nearest, axis=1)).astype(rows.dtype)
        means = unit_rows(np.einsum("nk,nkd->nd", counts, others[nearest]))
        moved[start : start + size] = unit_rows((1 - message) * part + message * means)
    return moved
