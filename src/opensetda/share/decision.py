"""The scores of samples, and the decision between known and unknown."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, ndtr, softmax

from opensetda.rows import IntArray

LARGEST_LOG_SLOPE = 2.5  # a larger one gives most samples probabilities within 0.00001 of 0 or 1
FINE_RANKS = 100  # ranks over which votes are averaged, where there are fewer targets

CALIBRATED_CELLS = 2**22  # numbers of probabilities at a time

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class Scores(NamedTuple):
    """The scores of n samples."""

    classes: Matrix
    """Logits of the known classes: (n, C)."""
    known: Vector
    """Confidence that the sample is of a known class."""

    @property
    def nearest(self) -> IntArray:
        """The class of each sample, if it is known."""
        return np.asarray(self.classes.argmax(axis=1))


class Rejection(NamedTuple):
    """A sample whose known score lies below `threshold` is unknown.

    The probability of unknown is 1/2 there, and its logit falls with `slope`. The class logits are
    multiplied by `sharpness` before they become probabilities. Where nothing is rejected (threshold
    minus infinity), `base` is the probability of unknown of every sample.
    """

    threshold: float
    slope: float
    sharpness: float = 1.0
    base: float = 0.0

    def labels(self, known: Vector, nearest: IntArray, n_classes: int) -> IntArray:
        """Return the nearest class, or `n_classes` for unknown: (n,), (n,) -> (n,)."""
        return np.where(known < self.threshold, n_classes, nearest)

    def probability(self, known: Vector) -> Vector:
        """Return the probability of unknown: (n,) -> (n,)."""
        if not np.isfinite(self.threshold):
            return np.full(len(known), self.base)
        return np.asarray(expit(self.slope * (self.threshold - known)))

    def probabilities(self, scores: Scores) -> Matrix:
        """Return the probabilities of the classes, then of unknown: (n, C + 1)."""
        unknown = self.probability(scores.known)
        classes = softmax(self.sharpness * scores.classes, axis=1) * (1 - unknown)[:, None]
        return np.column_stack([classes, unknown])


def unknown_votes(known: Vector, share: float, spread: float) -> Vector:
    r"""Return how far one method speaks for unknown: (m,) -> (m,).

    A target is unknown if its rank among the known scores is below the share of unknowns, of which
    only a normal distribution is known:

    .. math:: P(\text{unknown}) = P(S > r / m), \quad S \sim \mathcal N(\text{share}, \text{spread})

    It is averaged over the ranks that equal scores have in common, and with few targets over the
    part of all ranks that each stands for: the rank of a single target says nothing, and it is
    unknown with the probability of the share. An unsure share makes unsure labels.
    """
    if share <= 0 or not len(known):
        return np.zeros(len(known))
    each = max(1, FINE_RANKS // len(known))
    ranks = (np.arange(each * len(known)) + 0.5) / (each * len(known))
    _, group = np.unique(known, return_inverse=True)
    group_of_rank = np.repeat(np.sort(group), each)
    probabilities = np.bincount(group_of_rank, weights=ndtr((share - ranks) / spread))
    return np.asarray((probabilities / np.bincount(group_of_rank))[group])


def votes_of(known: Vector, nearest: IntArray, share: float, spread: float, n: int) -> Matrix:
    """Return how far one method speaks for each of n classes, and for unknown: (m, n + 1).

    What is not for unknown, see `unknown_votes`, is for the nearest class.
    """
    return votes_for(unknown_votes(known, share, spread), nearest, n)


def votes_for(unknown: Vector, nearest: IntArray, n: int) -> Matrix:
    """Return votes for the nearest of n classes and for unknown: (m,), (m,) -> (m, n + 1)."""
    votes = np.zeros((len(unknown), n + 1))
    votes[np.arange(len(unknown)), nearest] = 1 - unknown
    votes[:, n] = unknown
    return votes


def fit_sharpness(logits: Matrix, votes: Matrix) -> float:
    """Return the factor on class logits whose softmax is nearest to votes: (n, C), (n, C).

    The distance is the cross-entropy.
    """
    total = max(float(votes.sum()), 1e-12)
    # With many classes, its intermediate results are several times as large as the votes.
    size = max(1, CALIBRATED_CELLS // max(logits.shape[1], 1))
    parts = [slice(start, start + size) for start in range(0, len(logits), size)]

    def cross_entropy(log_sharpness: float) -> float:
        factor = np.exp(log_sharpness)
        sums = [
            float((votes[part] * log_softmax(factor * logits[part], axis=1)).sum())
            for part in parts
        ]
        return -sum(sums) / total

    best = minimize_scalar(cross_entropy, bounds=(-4.0, 2.0), method="bounded")
    return float(np.exp(best.x))


def fit_slope(known: Vector, posterior: Vector, threshold: float) -> float:
    r"""Fit the slope of the probability of unknown around the rejection threshold.

    .. math:: P(\text{unknown} \mid s) = \sigma(\kappa (t - s))

    The threshold t is where the labels change, so probability and label never contradict each
    other; :math:`\kappa` minimises the cross-entropy to the `posterior`.
    """
    if not np.isfinite(threshold):
        return 0.0
    margin = threshold - known
    scale = max(float(np.abs(margin).mean()), 1e-12)

    def cross_entropy(log_slope: float) -> float:
        z = np.exp(log_slope) * margin / scale
        return float(np.mean(np.logaddexp(0.0, z) - posterior * z))

    found = minimize_scalar(cross_entropy, bounds=(-3.0, LARGEST_LOG_SLOPE), method="bounded")
    return float(np.exp(found.x) / scale)


def fit_unknown(known: Vector, posterior: Vector, threshold: float) -> tuple[float, float]:
    """Return slope and base of a `Rejection` whose probability of unknown fits the `posterior`.

    The base is at most 1/2: it does not contradict the labels.
    """
    base = 0.0 if np.isfinite(threshold) else min(float(posterior.mean()), 0.5)
    return fit_slope(known, posterior, threshold), base


def rejection_cut(known_score: Vector, share: float) -> float:
    """Return the cut with `share` of the scores below it, half way between two scores.

    Equal scores are not separated: the cut moves to the nearer end of their group.
    """
    wanted = round(share * len(known_score))
    if wanted == 0:
        return float("-inf")
    ordered = np.sort(known_score)
    score = ordered[min(wanted, len(ordered) - 1)]
    start, end = (int(np.searchsorted(ordered, score, side)) for side in ("left", "right"))
    below = start if wanted - start <= end - wanted else end
    if below == 0:
        return float("-inf")
    if below == len(ordered):
        return float(np.nextafter(ordered[-1], np.inf))
    middle = (ordered[below - 1] + ordered[below]) / 2
    # Between neighbouring floats there is no middle.
    return float(middle if middle > ordered[below - 1] else ordered[below])
