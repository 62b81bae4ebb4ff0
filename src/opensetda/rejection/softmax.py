"""Rejectors by the classifier's largest softmax: cut at a share of unknowns, or by a mixture."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from opensetda.openness.decision import Scores
from opensetda.openness.held_out import softmax_without_nearest
from opensetda.openness.mixtures import ScoreHistogram, fit_mixture, rejection_cut
from opensetda.openness.report import NO_UNKNOWNS
from opensetda.rejection.base import Rejector
from opensetda.rows import IntArray


class QuantileRejector(Rejector):
    """The known score is the largest softmax; the given or estimated openness is the cut."""

    def fit(self, features: Tensor, y: IntArray, n_classes: int) -> None:
        """Learn nothing: the classifier is trained already."""

    def forward(self, features: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """Score by the logits (m, C) alone."""
        assert logits is not None, "this rejector needs them"
        return logits, logits.softmax(dim=1).amax(dim=1)


class MixtureRejector(QuantileRejector):
    r"""The same score, cut at the s where known and unknown are equally likely.

    .. math:: \beta\, \mathcal N(s; \mu_u, \sigma_u) = (1 - \beta)\, \mathcal N(s; \mu_k, \sigma_k)

    in a mixture of two normal distributions (`fit_mixture`) of the known scores of all targets.
    """

    def own_cut(self, scores: Scores) -> float | None:
        """Fit the mixture to the targets' scores; minus infinity if it finds no unknowns."""
        held_out = softmax_without_nearest(scores.classes)
        mixture = fit_mixture(ScoreHistogram.of(scores.known, held_out))
        if mixture.share < NO_UNKNOWNS:
            return float("-inf")
        unknown = mixture.falling_posterior(scores.known) > 0.5
        return rejection_cut(scores.known, float(np.mean(unknown)))
