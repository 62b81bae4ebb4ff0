"""Rejectors by the classifier's largest softmax: cut at a share of unknowns, or by a mixture."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from opensetda.openness.decision import Matrix, Scores, Vector
from opensetda.openness.mixtures import fit_mixture, rejection_cut
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
        held_out = _softmax_without_nearest(scores.classes)
        mixture = fit_mixture(scores.known, held_out)
        if mixture.share < NO_UNKNOWNS:
            return float("-inf")
        unknown = mixture.falling_posterior(scores.known) > 0.5
        return rejection_cut(scores.known, float(np.mean(unknown)))


def _softmax_without_nearest(logits: Matrix) -> Vector:
    """Largest softmax of the classes but the nearest, which shows how unknowns score: (n,).

    NaN with two classes: the softmax of the one that is left is always 1.
    """
    if logits.shape[1] <= 2:
        return np.full(len(logits), np.nan)
    ordered = np.sort(logits, axis=1)[:, :-1]
    return np.asarray(1 / np.exp(ordered - ordered[:, -1:]).sum(axis=1))
