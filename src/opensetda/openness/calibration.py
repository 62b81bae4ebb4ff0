"""Threshold and probabilities of unknown that mean what they say, without target labels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from opensetda.openness.mixtures import ScoreHistogram, fit_mixture
from opensetda.rows import IntArray

Vector = npt.NDArray[np.float64]

# Beyond, a sample as far from the threshold as most are would have a probability of 0.99999.
LARGEST_LOG_SLOPE = 2.5


def unknown_posterior(known: Vector, held_out: Vector, nearest: IntArray, share: float) -> Vector:
    """Return how probable it is that each target is unknown, `share` of them being so.

    By the mixture of knowns and unknowns that also estimates the share (`fit_mixture`).
    """
    if share <= 0:
        return np.zeros(len(known))
    histogram = ScoreHistogram.of(known, held_out, nearest)
    mixture = fit_mixture(histogram, share=share, anchored=histogram.has_held_out)
    return mixture.falling_posterior(known)


def fit_slope(known: Vector, posterior: Vector, threshold: float) -> float:
    r"""Fit the slope of the probability of unknown around the rejection threshold.

    .. math:: P(\text{unknown} \mid s) = \sigma(\kappa (t - s))

    The threshold t stays where the labels change, so probability and label never
    contradict each other; :math:`\kappa` minimises the cross-entropy to the posterior of the
    mixture. A later sample is judged by it alone, where rank has no meaning.
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


def rejection_cut(known_score: Vector, share: float) -> float:
    """Where to cut so that `share` of the scores lie below, half way between two scores.

    Equal scores go one way: the cut moves to the nearer end of their group.
    """
    ordered = np.sort(known_score)
    wanted = round(share * len(ordered))
    gaps = np.flatnonzero(np.diff(ordered) > 0) + 1
    places = np.concatenate([[0], gaps, [len(ordered)]])
    below = int(places[np.abs(places - wanted).argmin()])
    if below == 0:
        return float("-inf")
    if below == len(ordered):
        return float(np.nextafter(ordered[-1], np.inf))
    middle = (ordered[below - 1] + ordered[below]) / 2
    # Between neighbouring floats there is no middle.
    return float(middle if middle > ordered[below - 1] else ordered[below])
