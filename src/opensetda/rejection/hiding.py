"""A threshold from the source alone, for OSNN and OSVM: hide classes, and use them as unknowns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

# More rounds hardly move the threshold, but cost time where every round trains classifiers.
MOST_ROUNDS = 10


class Round(NamedTuple):
    """One simulation of an open set, on samples that the classifier was not trained on: all (n,).

    The known scores, whether the sample's class was hidden, and whether it gets its class unless
    it is rejected.
    """

    known: Vector
    hidden: Mask
    correct: Mask


def hidings(n_classes: int) -> list[Mask]:
    """Which classes are hidden in each round: half of them, but at least two stay.

    The half rotates, so that each class is hidden about as often as it is seen. With two classes
    there is no round.
    """
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
