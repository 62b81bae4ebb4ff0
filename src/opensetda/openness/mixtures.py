"""Known scores as a mixture of two normal distributions, of unknowns and of knowns.

The mixture estimates the share of unknowns, and calibrates the probability of unknown around
the rejection threshold, all without target labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

Vector = npt.NDArray[np.float64]

BINS = 256
ITERATIONS = 100
# Shares of unknowns to start from: if knowns or unknowns are few, one start may miss them.
ANCHORED_STARTS = (0.5, 0.75, 0.9)
FREE_STARTS = (0.5, 0.1, 0.25, 0.75)
# Where knowns and unknowns overlap, all shares are about equally likely: the first start is
# kept unless the mean log-likelihood of another is higher by this.
CLEARLY = 0.02
# Smallest deviation of a component, as a share of the deviation of all scores.
NARROWEST = 0.1
# A larger slope would give most samples probabilities within 0.00001 of 0 or 1.
LARGEST_LOG_SLOPE = 2.5


@dataclass(frozen=True)
class ScoreHistogram:
    """Scores in bins: the cost of a fit does not depend on the number of targets."""

    centres: Vector
    counts: Vector
    """(bins,)"""
    held_out: Vector
    """(bins, 3): number, sum and sum of squares of the held-out scores of a bin's targets."""

    @classmethod
    def of(cls, known: Vector, held_out: Vector | None = None) -> ScoreHistogram:
        """Sort the targets' scores into bins; held-out scores may be NaN, if there are none."""
        held_out = np.full(len(known), np.nan) if held_out is None else held_out
        low, high = float(known.min()), float(known.max())
        width = max(high - low, 1e-12) / BINS
        place = np.minimum(((known - low) / width).astype(np.intp), BINS - 1)
        powers = [np.bincount(place, held_out**power, minlength=BINS) for power in range(3)]
        counts = np.bincount(place, minlength=BINS).astype(np.float64)
        centres = low + (np.arange(BINS, dtype=np.float64) + 0.5) * width
        return cls(centres, counts, np.stack(powers, axis=1))

    @property
    def has_held_out(self) -> bool:
        """Whether there are held-out scores."""
        return bool(np.isfinite(self.held_out).all())


@dataclass(frozen=True)
class KnownUnknownMixture:
    """The fitted mixture."""

    share: float
    unknown_mean: float
    unknown_deviation: float
    known_mean: float
    known_deviation: float

    def posterior(self, known_score: Vector) -> Vector:
        """Probability of being unknown: (n,) -> (n,)."""
        unknown, known = self._log_parts(known_score)
        return np.asarray(1 / (1 + np.exp(np.clip(known - unknown, -500, 500))))

    def log_likelihood(self, histogram: ScoreHistogram) -> float:
        """Mean logarithm of the density at the scores, up to a constant."""
        density = np.logaddexp(*self._log_parts(histogram.centres))
        return float((histogram.counts * density).sum() / histogram.counts.sum())

    def _log_parts(self, x: Vector) -> tuple[Vector, Vector]:
        unknown, known = np.log(np.maximum([self.share, 1 - self.share], 1e-12))
        return (
            unknown + _log_normal(x, self.unknown_mean, self.unknown_deviation),
            known + _log_normal(x, self.known_mean, self.known_deviation),
        )

    def falling_posterior(self, known_score: Vector) -> Vector:
        """Probability of being unknown that never rises with the score: (n,) -> (n,).

        The wider of two normal distributions is the larger in both tails: below its peak the
        posterior stays at the peak's value; above, it only falls.
        """
        grid = np.linspace(known_score.min(), known_score.max(), BINS)
        falling = self.posterior(grid)
        peak = int(np.where(grid <= self.known_mean, falling, -1.0).argmax())
        falling[:peak] = falling[peak]
        falling[peak:] = np.minimum.accumulate(falling[peak:])
        return np.asarray(np.interp(known_score, grid, falling))


def fit_mixture(histogram: ScoreHistogram, share: float | None = None) -> KnownUnknownMixture:
    r"""Fit known scores by expectation maximisation.

    .. math::
        p(s) = \beta\, \mathcal N(s; \mu_u, \sigma_u) + (1 - \beta)\, \mathcal N(s; \mu_k, \sigma_k)

    `share` is beta, if it is given. The unknown component is not fitted to low scores, which a
    shift gives to known targets, too: its moments :math:`\mu_u, \sigma_u` are those of the
    held-out scores, weighted by the probability of being known. Only without held-out scores is
    it free.
    """
    anchored = histogram.has_held_out
    starts = ANCHORED_STARTS if anchored else FREE_STARTS
    fits = [_fit_from(start, histogram, share, anchored) for start in starts]
    likelihoods = [fit.log_likelihood(histogram) for fit in fits]
    if anchored:
        likelihoods[0] += CLEARLY
    return fits[int(np.argmax(likelihoods))]


def _fit_from(
    start: float, histogram: ScoreHistogram, share: float | None, anchored: bool
) -> KnownUnknownMixture:
    """Fit from the belief that the lowest `start` of all scores are of unknowns."""
    x, counts = histogram.centres, histogram.counts
    total = counts.sum()
    below = np.cumsum(counts) - counts / 2
    unknown = (below < total * start).astype(np.float64)
    narrowest = NARROWEST * _moments(x, counts)[1] + 1e-9
    last: KnownUnknownMixture | None = None
    before_last: KnownUnknownMixture | None = None
    for remaining in reversed(range(ITERATIONS)):
        if anchored:
            u_mean, u_deviation = _held_out_moments(histogram.held_out, 1 - unknown)
        else:
            u_mean, u_deviation = _moments(x, unknown * counts)
        k_mean, k_deviation = _moments(x, (1 - unknown) * counts)
        u_deviation = max(u_deviation, narrowest)
        # Knowns spread wider: the shift changes each class in its own way.
        k_deviation = max(k_deviation, u_deviation if anchored else narrowest)
        k_mean = max(k_mean, u_mean + u_deviation)
        beta = float((unknown * counts).sum() / total) if share is None else share
        fitted = KnownUnknownMixture(beta, u_mean, u_deviation, k_mean, k_deviation)
        # From here on two iterates alternate (or are one): the result is that of all iterations.
        if last is not None and fitted == before_last:
            return last if remaining % 2 else fitted
        before_last, last = last, fitted
        unknown = fitted.posterior(x)
    return fitted


def _log_normal(x: Vector, mean: float, deviation: float) -> Vector:
    z = (x - mean) / deviation
    return np.asarray(-0.5 * z * z - np.log(deviation))


def _moments(x: Vector, weights: Vector) -> tuple[float, float]:
    weight = max(float(weights.sum()), 1e-9)
    mean = float((weights * x).sum() / weight)
    return mean, float(np.sqrt((weights * (x - mean) ** 2).sum() / weight))


def _held_out_moments(held_out: Vector, known: Vector) -> tuple[float, float]:
    weight, first, second = (known[:, None] * held_out).sum(axis=0).tolist()
    weight = max(weight, 1e-9)
    mean = first / weight
    return mean, float(np.sqrt(max(second / weight - mean**2, 0.0)))


# Threshold and probability of unknown ---------------------------------------------------------


def unknown_posterior(known: Vector, share: float) -> Vector:
    """Return the probability of unknown for each target, given the share, by `fit_mixture`."""
    if share <= 0:
        return np.zeros(len(known))
    return fit_mixture(ScoreHistogram.of(known), share).falling_posterior(known)


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
