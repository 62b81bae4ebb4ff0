"""Unknown is who is more likely so, by a mixture of knowns and unknowns."""

from __future__ import annotations

import numpy as np

from opensetda.base import Scores
from opensetda.openness.mixtures import ScoreHistogram, fit_mixture, rejection_cut
from opensetda.openness.tracker import NO_EVIDENCE
from opensetda.rejection.quantile import QuantileRejector


class MixtureRejector(QuantileRejector):
    r"""The softmax of `QuantileRejector`, cut where known and unknown are equally likely.

    The known scores of all targets are a mixture of two normal distributions (`fit_mixture`),
    the one of unknowns anchored by the scores of held-out classes, where there are any:

    .. math:: \beta\, \mathcal N(s; \mu_u, \sigma_u) = (1 - \beta)\, \mathcal N(s; \mu_k, \sigma_k)

    at the cut s. The quantile at the mixture's share would reject as many as there are
    unknowns; this cut rejects those that are probably unknown.
    """

    def own_cut(self, scores: Scores) -> float | None:
        """Fit the mixture to the targets' scores; minus infinity where it finds no unknowns."""
        if not len(scores.known):
            return None
        histogram = ScoreHistogram.of(scores.known, scores.held_out, scores.nearest)
        mixture = fit_mixture(histogram, anchored=histogram.has_held_out)
        if mixture.share[0] < NO_EVIDENCE:
            return float("-inf")
        unknown = mixture.falling_posterior(scores.known) > 0.5
        return rejection_cut(scores.known, float(np.mean(unknown)))
