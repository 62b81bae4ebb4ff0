"""Known scores as a mixture of two normal distributions, of unknowns and of knowns.

The mixture estimates the share of unknowns, and calibrates the probability of unknown around
the rejection threshold, all without target labels.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from opensetda.rows import IntArray

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
    """(R, bins), one row per resample; `of` makes a single one."""
    held_out: Vector
    """(R, bins, 3): number, sum and sum of squares of the held-out scores of a bin's targets."""
    by_class: Vector
    """(C, bins, 3): the same, by nearest class."""

    @classmethod
    def of(cls, known: Vector, held_out: Vector, nearest: IntArray) -> ScoreHistogram:
        """Sort the targets' scores into bins; held-out scores may be NaN, if there are none."""
        low, high = float(known.min()), float(known.max())
        width = max(high - low, 1e-12) / BINS
        place = np.minimum(((known - low) / width).astype(np.intp), BINS - 1)
        n_classes = int(nearest.max()) + 1
        cell = nearest * BINS + place
        cells = np.empty((n_classes * BINS, 3))
        for power in range(3):
            cells[:, power] = np.bincount(cell, held_out**power, minlength=n_classes * BINS)
        by_class = cells.reshape(n_classes, BINS, 3)
        counts = np.bincount(place, minlength=BINS).astype(np.float64)
        centres = low + (np.arange(BINS, dtype=np.float64) + 0.5) * width
        return cls(centres, counts[None], by_class.sum(axis=0)[None], by_class)

    @property
    def has_held_out(self) -> bool:
        """Whether there are held-out scores."""
        return bool(np.isfinite(self.held_out).all())

    def resampled(self, resamples: int, rng: np.random.Generator) -> ScoreHistogram:
        """Draw targets with replacement, and classes with replacement for what is held out."""
        n = int(self.counts[0].sum())
        counts = rng.multinomial(n, self.counts[0] / n, size=resamples).astype(np.float64)
        present = np.flatnonzero(self.by_class[:, :, 0].sum(axis=1))
        drawn = rng.multinomial(len(present), np.full(len(present), 1 / len(present)), resamples)
        held_out = np.einsum("rc,cbm->rbm", drawn.astype(np.float64), self.by_class[present])
        return ScoreHistogram(self.centres, counts, held_out, self.by_class)


@dataclass(frozen=True)
class KnownUnknownMixture:
    """The fitted mixture; every field is an array over resamples."""

    share: Vector
    unknown_mean: Vector
    unknown_deviation: Vector
    known_mean: Vector
    known_deviation: Vector

    def posterior(self, known_score: Vector) -> Vector:
        """Probability of being unknown: (n,) -> (R, n)."""
        unknown, known = self._log_parts(known_score)
        return np.asarray(1 / (1 + np.exp(np.clip(known - unknown, -500, 500))))

    def log_likelihood(self, histogram: ScoreHistogram) -> Vector:
        """Mean logarithm of the density at the scores, up to a constant: (R,)."""
        density = np.logaddexp(*self._log_parts(histogram.centres))
        return np.asarray((histogram.counts * density).sum(axis=1) / histogram.counts.sum(axis=1))

    def _log_parts(self, x: Vector) -> tuple[Vector, Vector]:
        unknown = np.log(np.maximum(self.share, 1e-12))[:, None]
        known = np.log(np.maximum(1 - self.share, 1e-12))[:, None]
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
        falling = self.posterior(grid)[0]
        peak = int(np.where(grid <= self.known_mean[0], falling, -1.0).argmax())
        falling[:peak] = falling[peak]
        falling[peak:] = np.minimum.accumulate(falling[peak:])
        return np.asarray(np.interp(known_score, grid, falling))


def fit_mixture(
    histogram: ScoreHistogram,
    share: float | None = None,
    anchored: bool = True,
    offset: Vector | float = 0.0,
) -> KnownUnknownMixture:
    r"""Fit known scores by expectation maximisation.

    .. math::
        p(s) = \beta\, \mathcal N(s; \mu_u, \sigma_u) + (1 - \beta)\, \mathcal N(s; \mu_k, \sigma_k)

    `share` is beta, if it is given. `anchored`, the unknown component is not fitted to low
    scores, which a shift gives to known targets, too: its moments :math:`\mu_u, \sigma_u` are
    those of the held-out scores, weighted by the probability of being known. `offset` is how far
    the mean of unknowns lies from that of the held-out scores, in deviations: one, or (R,).
    """
    starts = ANCHORED_STARTS if anchored else FREE_STARTS
    fits = [_fit_from(start, histogram, share, anchored, offset) for start in starts]
    likelihoods = np.stack([fit.log_likelihood(histogram) for fit in fits])
    if anchored:
        likelihoods[0] += CLEARLY
    best, rows = likelihoods.argmax(axis=0), np.arange(likelihoods.shape[1])
    fields = zip(*(dataclasses.astuple(fit) for fit in fits), strict=True)
    return KnownUnknownMixture(*(np.stack(values)[best, rows] for values in fields))


def _fit_from(
    start: float,
    histogram: ScoreHistogram,
    share: float | None,
    anchored: bool,
    offset: Vector | float,
) -> KnownUnknownMixture:
    """Fit from the belief that the lowest `start` of all scores are of unknowns."""
    x, counts = histogram.centres, histogram.counts
    total = counts.sum(axis=1)
    below = np.cumsum(counts, axis=1) - counts / 2
    unknown = (below < total[:, None] * start).astype(np.float64)
    narrowest = NARROWEST * _moments(x, counts)[1] + 1e-9
    last = before_last = np.empty(0)
    for remaining in reversed(range(ITERATIONS)):
        if anchored:
            u_mean, u_deviation = _held_out_moments(histogram.held_out, 1 - unknown)
            u_mean = u_mean + offset * u_deviation
        else:
            u_mean, u_deviation = _moments(x, unknown * counts)
        k_mean, k_deviation = _moments(x, (1 - unknown) * counts)
        u_deviation = np.maximum(u_deviation, narrowest)
        # Knowns spread wider: the shift changes each class in its own way.
        k_deviation = np.maximum(k_deviation, u_deviation if anchored else narrowest)
        k_mean = np.maximum(k_mean, u_mean + u_deviation)
        beta = (unknown * counts).sum(axis=1) / total
        if share is not None:
            beta = np.full(len(total), share)
        fitted = np.stack([beta, u_mean, u_deviation, k_mean, k_deviation])
        # From here on two iterates alternate (or are one): the result is that of all iterations.
        if np.array_equal(fitted, before_last):
            return KnownUnknownMixture(*(last if remaining % 2 else fitted))
        before_last, last = last, fitted
        unknown = KnownUnknownMixture(*fitted).posterior(x)
    return KnownUnknownMixture(*last)


def _log_normal(x: Vector, mean: Vector, deviation: Vector) -> Vector:
    z = (x[None, :] - mean[:, None]) / deviation[:, None]
    return np.asarray(-0.5 * z * z - np.log(deviation[:, None]))


def _moments(x: Vector, weights: Vector) -> tuple[Vector, Vector]:
    weight = np.maximum(weights.sum(axis=1), 1e-9)
    mean = (weights * x).sum(axis=1) / weight
    variance = (weights * (x - mean[:, None]) ** 2).sum(axis=1) / weight
    return mean, np.sqrt(variance)


def _held_out_moments(held_out: Vector, known: Vector) -> tuple[Vector, Vector]:
    weight, first, second = (known[:, :, None] * held_out).sum(axis=1).T
    weight = np.maximum(weight, 1e-9)
    mean = first / weight
    return mean, np.sqrt(np.maximum(second / weight - mean**2, 0.0))


# Threshold and probability of unknown ---------------------------------------------------------


def unknown_posterior(known: Vector, held_out: Vector, nearest: IntArray, share: float) -> Vector:
    """Return the probability of unknown for each target, given the share, by `fit_mixture`."""
    if share <= 0:
        return np.zeros(len(known))
    histogram = ScoreHistogram.of(known, held_out, nearest)
    mixture = fit_mixture(histogram, share=share, anchored=histogram.has_held_out)
    return mixture.falling_posterior(known)


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
    ordered = np.sort(known_score)
    gaps = np.flatnonzero(np.diff(ordered) > 0) + 1
    places = np.concatenate([[0], gaps, [len(ordered)]])
    below = int(places[np.abs(places - round(share * len(ordered))).argmin()])
    if below == 0:
        return float("-inf")
    if below == len(ordered):
        return float(np.nextafter(ordered[-1], np.inf))
    middle = (ordered[below - 1] + ordered[below]) / 2
    # Between neighbouring floats there is no middle.
    return float(middle if middle > ordered[below - 1] else ordered[below])
