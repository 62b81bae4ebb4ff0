"""Rivals that leave unknowns to a rejector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.utils._param_validation import StrOptions
from torch import Tensor, nn

from opensetda.base import OpenSetClassifier, checked
from opensetda.openness.decision import Scores
from opensetda.rejection import REJECTORS, make_rejector
from opensetda.rejection.base import Rejector
from opensetda.rows import IntArray


@dataclass(eq=False, repr=False, kw_only=True)
class RejectingRival(OpenSetClassifier):
    """Base of the rivals that adapt features and leave unknowns to the `rejector` of their scorer.

    With a given openness the rejector only ranks; with "auto" its own boundary is used.

    Parameters
    ----------
    rejector : {"quantile", "mixture", "osnn", "osvm"}, default="osvm"
        How unknowns are told from known samples, see `opensetda.rejection`.
    """

    # The keys, not a set: the message lists them in this order.
    rejector: str = checked("osvm", StrOptions(REJECTORS.keys()))

    def _own_cut(self, scores: Scores) -> float | None:
        cut: float | None = self.scorer_.rejector.own_cut(scores)
        return cut

    def _saved_rejector(self, arrays: Mapping[str, Tensor]) -> Rejector:
        rejector, prefix = make_rejector(self.rejector), "rejector."
        saved = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        rejector.keep(saved)
        return rejector


class RejectingScorer(nn.Module, ABC):
    """Adapted rows, a linear classifier if the rejector needs its logits, and the rejector.

    Shapes: x (n, D) -> logits (n, C), known scores (n,).
    """

    weights: Tensor | None
    offsets: Tensor | None

    def __init__(self, rejector: Rejector) -> None:
        super().__init__()
        self.rejector = rejector
        self.register_buffer("weights", None)
        self.register_buffer("offsets", None)

    @abstractmethod
    def embed(self, x: Tensor, of_source: bool = False) -> Tensor:
        """Adapt rows: (n, D) -> (n, d)."""

    def fit(self, rows: Tensor, y: IntArray, n_classes: int, C: float) -> None:
        """Learn rejector and classifier, a logistic regression, from adapted rows of the source."""
        self.rejector.fit(rows, y, n_classes)
        if self.rejector.needs_logits:
            regression = LogisticRegression(C=C, max_iter=1000).fit(rows.numpy(), y)
            weights, offsets = regression.coef_, regression.intercept_
            if n_classes == 2:
                weights, offsets = np.concatenate([-weights, weights]) / 2, offsets * [-0.5, 0.5]
            # As they are saved, row by row: BLAS rounds columns differently.
            self.weights, self.offsets = torch.tensor(weights).contiguous(), torch.tensor(offsets)

    def restore(self, arrays: Mapping[str, Tensor]) -> None:
        """Take the classifier of a saved scorer."""
        if self.rejector.needs_logits:
            self.weights, self.offsets = arrays["weights"], arrays["offsets"]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Score rows, each on its own."""
        z, logits = self.embed(x), None
        if self.weights is not None and self.offsets is not None:
            logits = z @ self.weights.T + self.offsets
        scored: tuple[Tensor, Tensor] = self.rejector(z, logits)
        return scored
