"""Known scores as a mixture of two normal distributions, of unknowns and of knowns.

It estimates the share of unknowns, and calibrates the probability of unknown, without labels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from opensetda.openness.decision import Vector

BINS, ITERATIONS = 256, 100
# Shares of unknowns to start from: if knowns or unknowns are few, one start may miss them.
ANCHORED_STARTS = (0.5, 0.75, 0.9)
FREE_STARTS = (0.5, 0.1, 0.25, 0.75)
# Where knowns and unknowns overlap, all shares are about equally likely: the first start is
# kept unless the mean log-likelihood of another is higher by this.
CLEARLY = 0.02
NARROWEST = 0.1  # smallest deviation of a component, as a share of that of all scores
LARGEST_LOG_SLOPE = 2.5  # a larger one gives most samples probabilities within 0.00001 of 0 or 1


class KnownUnknownMixture(NamedTuple):
    """The fitted mixture: the share of unknowns, and moments of them and of the knowns."""

    share: float
    means: tuple[float, float]
    deviations: tuple[float, float]

    def posterior(self, known_score: Vector) -> Vector:
        """Probability of being unknown: (n,) -> (n,)."""
        unknown, known = self.log_parts(known_score)
        return np.asarray(1 / (1 + np.exp(np.clip(known - unknown, -500, 500))))

    def log_parts(self, x: Vector) -> list[Vector]:
        """Logarithms of the weighted densities of unknowns and knowns, up to a constant."""
        weights = np.log(np.maximum([self.share, 1 - self.share], 1e-12))
        z = [(x - mean) / by for mean, by in zip(self.means, self.deviations, strict=True)]
        return [weights[i] + (-0.5 * z[i] * z[i] - np.log(self.deviations[i])) for i in (0, 1)]

    def falling_posterior(self, known_score: Vector) -> Vector:
        """Probability of being unknown that never rises with the score: (n,) -> (n,).

        The wider of two normal distributions is the larger in both tails: below its peak the
        posterior stays at the peak's value; above, it only falls.
        """
        grid = np.linspace(known_score.min(), known_score.max(), BINS)
        falling = self.posterior(grid)
        peak = int(np.where(grid <= self.means[1], falling, -1.0).argmax())
        falling[:peak] = falling[peak]
        falling[peak:] = np.minimum.accumulate(falling[peak:])
        return np.asarray(np.interp(known_score, grid, falling))


def fit_mixture(
    known: Vector, held_out: Vector | None = None, share: float | None = None
) -> KnownUnknownMixture:
    r"""Fit known scores by expectation maximisation.

    .. math::
        p(s) = \beta\, \mathcal N(s; \mu_u, \sigma_u) + (1 - \beta)\, \mathcal N(s; \mu_k, \sigma_k)

    `share` is beta, if it is given. The unknown component is not fitted to low scores, which a
    shift gives to known targets, too: its moments :math:`\mu_u, \sigma_u` are those of the
    held-out scores, weighted by the probability of being known. Only without held-out scores
    (None or NaN) is it free. Scores are sorted into bins: many targets cost no more than few.
    """
    low, high = float(known.min()), float(known.max())
    width = max(high - low, 1e-12) / BINS
    place = np.minimum(((known - low) / width).astype(np.intp), BINS - 1)
    counts = np.bincount(place, minlength=BINS).astype(np.float64)
    x = low + (np.arange(BINS, dtype=np.float64) + 0.5) * width
    powers: Vector | None = None
    if held_out is not None and np.isfinite(held_out).all():
        # Number, sum and sum of squares of the held-out scores of a bin's targets: (bins, 3).
        sums = [np.bincount(place, held_out**power, minlength=BINS) for power in range(3)]
        powers = np.stack(sums, axis=1)
    starts = FREE_STARTS if powers is None else ANCHORED_STARTS
    fits = [_fit_from(start, x, counts, powers, share) for start in starts]
    # The mean logarithm of the density at all scores.
    logs = [np.logaddexp(*fit.log_parts(x)) for fit in fits]
    likelihoods = [float((counts * log).sum() / counts.sum()) for log in logs]
    if powers is not None:
        likelihoods[0] += CLEARLY
    return fits[int(np.argmax(likelihoods))]


def _fit_from(
    start: float, x: Vector, counts: Vector, held_out: Vector | None, share: float | None
) -> KnownUnknownMixture:
    """Fit from the belief that the lowest `start` of all scores are of unknowns."""
    total = counts.sum()
    unknown = (np.cumsum(counts) - counts / 2 < total * start).astype(np.float64)
    narrowest = NARROWEST * _moments(x, counts)[1] + 1e-9
    fitted = KnownUnknownMixture(start, (0.0, 0.0), (0.0, 0.0))
    for _ in range(ITERATIONS):
        if held_out is None:
            u_mean, u_deviation = _moments(x, unknown * counts)
        else:
            weight, first, second = ((1 - unknown)[:, None] * held_out).sum(axis=0).tolist()
            u_mean = first / max(weight, 1e-9)
            u_deviation = float(np.sqrt(max(second / max(weight, 1e-9) - u_mean**2, 0.0)))
        k_mean, k_deviation = _moments(x, (1 - unknown) * counts)
        u_deviation = max(u_deviation, narrowest)
        # Knowns spread wider: the shift changes each class in its own way.
        k_deviation = max(k_deviation, narrowest if held_out is None else u_deviation)
        k_mean = max(k_mean, u_mean + u_deviation)
        beta = float((unknown * counts).sum() / total) if share is None else share
        last = fitted
        fitted = KnownUnknownMixture(beta, (u_mean, k_mean), (u_deviation, k_deviation))
        if fitted == last:
            break
        unknown = fitted.posterior(x)
    return fitted


def _moments(x: Vector, weights: Vector) -> tuple[float, float]:
    weight = max(float(weights.sum()), 1e-9)
    mean = float((weights * x).sum() / weight)
    return mean, float(np.sqrt((weights * (x - mean) ** 2).sum() / weight))


def unknown_posterior(known: Vector, share: float) -> Vector:
    """Return the probability of unknown for each target, given the share, by `fit_mixture`."""
    if share <= 0:
        return np.zeros(len(known))
    return fit_mixture(known, share=share).falling_posterior(known)


def fit_slope(known: Vector, posterior: Vector, threshold: float) -> float:
    r"""Fit the slope of the probability of unknown around the rejection threshold.

    .. math:: P(\text{unknown} \mid s) = \sigma(\kappa (t - s))

    The threshold t is where the labels change, so probability and label never contradict each
    other; :math:`\kappa` minimises the cross-entropy to the posterior of the mixture.
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
