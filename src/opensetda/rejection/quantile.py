"""The least confident targets are unknown: as many as the share of unknowns says."""

from __future__ import annotations

import numpy as np

from opensetda.base import Scores
from opensetda.openness.held_out import softmax_without_nearest
from opensetda.rejection.base import Matrix, Rejector
from opensetda.rows import FloatArray, IntArray


class QuantileRejector(Rejector):
    r"""The known score is the classifier's largest softmax; there is no boundary of its own.

    .. math:: \text{known}(x) = \max_c \operatorname{softmax}(f(x))_c

    The cut is the quantile at the share of unknowns, told or estimated.
    """

    def fit(self, features: FloatArray, y: IntArray, n_classes: int) -> None:
        """Learn nothing: the classifier has learned already."""

    def scores(self, features: FloatArray, logits: Matrix) -> Scores:
        """Score by the logits (m, C) alone."""
        logits = np.asarray(logits, dtype=np.float64)
        largest = logits.max(axis=1, keepdims=True)
        known = 1 / np.exp(logits - largest).sum(axis=1)
        return Scores(logits, known, softmax_without_nearest(logits))
