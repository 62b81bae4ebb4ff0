"""What OSNN and OSVM share: distances of rows, and a threshold from the source alone.

For the threshold, classes of the source are hidden and used as unknowns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from opensetda.openness.decision import Vector

Mask = npt.NDArray[np.bool_]

# Rounding error of squared distances, as a share of the squared lengths: below it rows are equal.
SAME = 1e-13
# More rounds hardly move the threshold, but cost time where every round trains classifiers.
MOST_ROUNDS = 10


def squared_distances(rows: Tensor, others: Tensor) -> Tensor:
    """Squared Euclidean distances, exactly zero between equal rows: (n, d), (m, d) -> (n, m)."""
    both = rows.square().sum(dim=1)[:, None] + others.square().sum(dim=1)
    squared = both - 2 * rows @ others.T
    return torch.where(squared < SAME * both, 0.0, squared)


class Round(NamedTuple):
    """One simulation of an open set, on samples that the classifier was not trained on: all (n,).

    `correct` says whether a sample gets its class unless it is rejected.
    """

    known: Vector
    hidden: Mask
    correct: Mask


def hidings(n_classes: int) -> list[Mask]:
    """Which classes are hidden in each round: a rotating half, but at least two are seen."""
    n_hidden = min(n_classes // 2, n_classes - 2)
    if n_hidden < 1:
        return []
    rounds = min(n_classes, MOST_ROUNDS)
    starts = [n_classes * round_ // rounds for round_ in range(rounds)]
    return [(np.arange(n_classes) - start) % n_classes < n_hidden for start in starts]


def best_threshold(rounds: list[Round], default: float) -> float:
    r"""Return the threshold of the largest normalised accuracy, in the mean of all rounds.

    .. math:: \mathrm{NA}(t) = \tfrac12 \mathrm{AKS}(t) + \tfrac12 \mathrm{AUS}(t)

    with AKS the share of samples of seen classes that are accepted and get their class, AUS the
    share of samples of hidden classes that are rejected (Mendes Júnior et al., 2017). All
    thresholds between two scores are tried; of equally good ones the middle of the widest gap is
    taken. Returns `default` if no round has samples of both kinds.
    """
    known, gains = [], []
    for one in rounds:
        n_hidden = int(one.hidden.sum())
        if 0 < n_hidden < len(one.hidden):
            # The gain of a threshold just above a sample: an unknown rejected, or a known lost.
            lost = one.correct / (len(one.hidden) - n_hidden)
            gains.append(np.where(one.hidden, 1 / n_hidden, -lost))
            known.append(one.known)
    if not known:
        return default
    values, place = np.unique(np.concatenate(known), return_inverse=True)
    if len(values) < 2:
        return default
    gained = np.cumsum(np.bincount(place, np.concatenate(gains)))[:-1]
    best = np.flatnonzero(gained >= gained.max() - 1e-9)
    widest = best[np.diff(values)[best].argmax()]
    return float((values[widest] + values[widest + 1]) / 2)
