"""Known scores as a mixture of two normal distributions, one of unknowns and one of knowns."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opensetda.rows import IntArray

Vector = npt.NDArray[np.float64]

BINS = 256
ITERATIONS = 100
# Shares of unknowns to start from: with few of a kind, one start finds a mixture without them.
ANCHORED_STARTS = (0.5, 0.75, 0.9)
FREE_STARTS = (0.5, 0.1, 0.25, 0.75)
# Where knowns and unknowns overlap, all shares are about as likely: the first start stands
# unless another is so much likelier, per target.
CLEARLY = 0.02
# A component narrower than this share of all scores' deviation explains a few of them only.
NARROWEST = 0.1


@dataclass(frozen=True)
class ScoreHistogram:
    """Scores in bins: a fit costs the same for a thousand targets and for a million.

    Attributes
    ----------
    centres : array of shape (bins,)
    counts : array of shape (R, bins)
        One row a resample; `of` makes a single one.
    held_out : array of shape (R, bins, 3)
        Number, sum and sum of squares of the held-out scores of a bin's targets.
    by_class : array of shape (C, bins, 3)
        The same, by nearest class.
    """

    centres: Vector
    counts: Vector
    held_out: Vector
    by_class: Vector

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
        """Draw targets with replacement, and classes with replacement for what is held out.

        Targets of one class are alike: which classes were there to be held out is the
        larger part of the doubt about where unknowns score.
        """
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

        The wider of two normal distributions wins in both tails, but nobody is known for
        scoring below everybody, and nobody unknown for scoring above. Below its peak the
        posterior stays as it is at the peak; above, it only falls.
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

    Parameters
    ----------
    share : float, optional
        beta, if it is given and not to be estimated.
    anchored : bool
        The unknown component is not fitted to low scores, which a shift gives to known
        targets, too. It lies where targets that are believed to be known fall when their
        class is taken away: :math:`\mu_u, \sigma_u` are the moments of the held-out
        scores, weighted by the probability of being known. False fits both freely.
    offset : float or array of shape (R,)
        Where unknowns really lie, beside the held-out scores, in deviations of these.
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
    """Fit from the belief that the lowest `start` of all scores are of unknowns.

    The loop ends early where an iterate is the same, bit for bit, as the one before the last: from
    there on the two alternate (or are one), so the result is that of all iterations.
    """
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
        # Knowns of several classes, each hit by the shift in its own way, spread wider.
        k_deviation = np.maximum(k_deviation, u_deviation if anchored else narrowest)
        k_mean = np.maximum(k_mean, u_mean + u_deviation)
        beta = (unknown * counts).sum(axis=1) / total
        if share is not None:
            beta = np.full(len(total), share)
        fitted = np.stack([beta, u_mean, u_deviation, k_mean, k_deviation])
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
