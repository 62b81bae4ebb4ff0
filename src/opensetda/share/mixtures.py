"""Known scores as a mixture of two normal distributions: the share of unknowns, without labels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from opensetda.share.decision import Vector

BINS = 256
ITERATIONS = 100
# Shares of unknowns to start from: if knowns or unknowns are few, one start may miss them.
STARTS = (0.5, 0.75, 0.9)
# Where knowns and unknowns overlap, all shares are about equally likely: the first start is
# kept unless the mean log-likelihood of another is higher by this.
CLEARLY = 0.02
NARROWEST = 0.1  # smallest deviation of a component, as a share of that of all scores


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


def fit_mixture(known: Vector, held_out: Vector) -> KnownUnknownMixture:
    r"""Fit known scores by expectation maximisation.

    .. math::
        p(s) = \beta\, \mathcal N(s; \mu_u, \sigma_u) + (1 - \beta)\, \mathcal N(s; \mu_k, \sigma_k)

    The unknown component is not fitted to low scores, which a shift gives to known targets, too:
    its moments :math:`\mu_u, \sigma_u` are those of the held-out scores, weighted by the
    probability of being known. Scores are sorted into bins: many targets cost no more than few.
    """
    low = float(known.min())
    high = float(known.max())
    width = max(high - low, 1e-12) / BINS
    place = np.minimum(((known - low) / width).astype(np.intp), BINS - 1)
    counts = np.bincount(place, minlength=BINS).astype(np.float64)
    x = low + (np.arange(BINS, dtype=np.float64) + 0.5) * width
    # Number, sum and sum of squares of the held-out scores of a bin's targets: (bins, 3).
    sums = [np.bincount(place, held_out**power, minlength=BINS) for power in range(3)]
    fits = [_fit_from(start, x, counts, np.stack(sums, axis=1)) for start in STARTS]
    # The mean logarithm of the density at all scores.
    logs = [np.logaddexp.reduce(fit.log_parts(x)) for fit in fits]
    likelihoods = [float((counts * log).sum() / counts.sum()) for log in logs]
    likelihoods[0] += CLEARLY
    return fits[int(np.argmax(likelihoods))]


def _fit_from(start: float, x: Vector, counts: Vector, held_out: Vector) -> KnownUnknownMixture:
    """Fit from the belief that the lowest `start` of all scores are of unknowns."""
    total = counts.sum()
    unknown = (np.cumsum(counts) - counts / 2 < total * start).astype(np.float64)
    narrowest = NARROWEST * _moments(x, counts)[1] + 1e-9
    fitted = KnownUnknownMixture(start, (0.0, 0.0), (0.0, 0.0))
    for _ in range(ITERATIONS):
        weight, first, second = ((1 - unknown)[:, None] * held_out).sum(axis=0).tolist()
        u_mean = first / max(weight, 1e-9)
        u_deviation = float(np.sqrt(max(second / max(weight, 1e-9) - u_mean**2, 0.0)))
        k_mean, k_deviation = _moments(x, (1 - unknown) * counts)
        u_deviation = max(u_deviation, narrowest)
        # Knowns spread wider: the shift changes each class in its own way.
        k_deviation = max(k_deviation, u_deviation)
        k_mean = max(k_mean, u_mean + u_deviation)
        beta = float((unknown * counts).sum() / total)
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
