"""Rows that move towards their neighbours: the simplest message over a graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from opensetda.features.alignment import unit
from opensetda.rows import FloatArray

MOST_COSINES = 2**22  # at a time: 16 MB in single precision
SAME = 1 - 1e-6  # above this cosine two rows are equal but for rounding


def nearest(z: Tensor, others: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return cosines and places of the nearest others of unit rows: (n, d), (m, d) -> (n, k) each.

    Others that are equal to a row do not count, and have the cosine minus infinity: a row may be
    among the others itself, and a later copy of it must get the same answer.
    """
    cosine = z @ others.T
    cosine = torch.where(cosine > SAME, -torch.inf, cosine)
    largest, places = cosine.topk(min(count, len(others)), dim=1)
    return largest, places


def moved_to_neighbours(z: Tensor, others: Tensor, neighbours: int, message: float) -> Tensor:
    r"""Move unit rows towards the mean of their nearest others: (n, d), (m, d) -> (n, d).

    .. math:: z' = \operatorname{unit}\Big((1 - w)\, z
        + w \operatorname{unit}\big(\textstyle\sum_{x \in N(z)} x\big)\Big)

    A row without neighbours stays.
    """
    cosine, places = nearest(z, others, neighbours)
    # Not `len`, which an export would take for a constant.
    chosen = z.new_zeros(z.shape[0], others.shape[0])
    chosen = chosen.scatter(1, places, (cosine > -2).to(z.dtype))
    return unit((1 - message) * z + message * unit(chosen @ others))


def mean_cosine(z: Tensor, others: Tensor, count: int) -> Tensor:
    """Return the mean cosine of unit rows to their nearest others: (n, d), (m, d) -> (n,)."""
    cosine, _ = nearest(z, others, count)
    counted = cosine > -2
    total = torch.where(counted, cosine, 0.0).sum(dim=1)
    return total / counted.sum(dim=1).clamp_min(1)


def parts_of(z: Tensor, others: Tensor) -> tuple[Tensor, ...]:
    """Split rows so that their cosines to others fit into memory."""
    return torch.split(z, max(1, MOST_COSINES // max(len(others), 1)))


@torch.no_grad()
def move_to_neighbours(
    rows: FloatArray, others: FloatArray, neighbours: int, message: float
) -> npt.NDArray[np.float32]:
    """Move arrays of unit rows, see `moved_to_neighbours`."""
    z, theirs = torch.from_numpy(rows), torch.from_numpy(others)
    parts = (moved_to_neighbours(p, theirs, neighbours, message) for p in parts_of(z, theirs))
    return np.concatenate([part.numpy() for part in parts])
