"""What several rivals share: those with a rejector, and those with an output for unknown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.utils._param_validation import StrOptions
from torch import Tensor, nn

from opensetda.methods.base import OpenSetClassifier
from opensetda.methods.network import Batch, NetworkRival, RivalNetwork
from opensetda.methods.parameters import NON_NEGATIVE, checked
from opensetda.methods.rejectors import REJECTORS
from opensetda.methods.rejectors.base import Rejector
from opensetda.methods.saving import part
from opensetda.rows import IntArray
from opensetda.share.decision import Scores

Saved = Mapping[str, Tensor] | None
"""The arrays of a scorer that was fitted before, if it is one."""


@dataclass(eq=False, repr=False, kw_only=True)
class RejectingRival(OpenSetClassifier):
    """Base of the rivals that adapt features and leave unknowns to the `rejector` of their scorer.

    With a given openness the rejector only ranks; with "auto" its own boundary is used.

    Parameters
    ----------
    rejector : {"quantile", "osnn", "osvm"}, default="osvm"
        How unknowns are told from known samples, see `opensetda.methods.rejectors`.
    """

    # The keys, not a set: the message lists them in this order.
    rejector: str = checked("osvm", StrOptions(REJECTORS.keys()))

    def _own_cut(self, scores: Scores) -> float | None:
        cut: float | None = self.scorer_.rejector.own_cut(scores)
        return cut

    def _saved_rejector(self, arrays: Mapping[str, Tensor]) -> Rejector:
        rejector = REJECTORS[self.rejector]()
        rejector.keep(part(arrays, "rejector."))
        return rejector


class RejectingScorer(nn.Module, ABC):
    """Adapted rows, a linear classifier if the rejector needs its logits, and the rejector.

    Shapes: x (n, D) -> logits (n, C), known scores (n,).
    """

    weights: Tensor | None
    offsets: Tensor | None

    def __init__(self, rejector: Rejector, saved: Saved = None) -> None:
        super().__init__()
        self.rejector = rejector
        for name in ("weights", "offsets"):
            self.register_buffer(name, saved[name] if saved and rejector.needs_logits else None)

    @abstractmethod
    def embed(self, x: Tensor, of_source: bool = False) -> Tensor:
        """Adapt rows: (n, D) -> (n, d)."""

    def fit(self, rows: Tensor, y: IntArray, n_classes: int, C: float) -> None:
        """Learn rejector and classifier, a logistic regression, from adapted rows of the source."""
        self.rejector.fit(rows, y, n_classes)
        if self.rejector.needs_logits:
            regression = LogisticRegression(C=C, max_iter=1000).fit(rows.numpy(), y)
            weights = regression.coef_
            offsets = regression.intercept_
            if n_classes == 2:
                weights = np.concatenate([-weights, weights]) / 2
                offsets = offsets * [-0.5, 0.5]
            # As they are saved, row by row: BLAS rounds columns differently.
            self.weights = torch.tensor(weights).contiguous()
            self.offsets = torch.tensor(offsets)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Score rows, each on its own."""
        z = self.embed(x)
        logits = None
        if self.weights is not None and self.offsets is not None:
            logits = z @ self.weights.T + self.offsets
        return self.rejector.forward(z, logits)


class ExtraClassNetwork(RivalNetwork):
    """A `classifier` of C + 1 outputs, the last for unknown, which a subclass makes.

    The known score is the largest of the others minus the last.
    """

    classifier: nn.Linear

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Score aligned rows by the largest output against the last one."""
        logits = self.classifier(self.features(x))
        return logits[:, :-1], logits[:, :-1].amax(dim=1) - logits[:, -1]


class ClosedSetNetwork(RivalNetwork):
    r"""A linear classifier on the bottleneck, trained by the cross-entropy of the source.

    .. math:: L_y = -\frac{1}{b} \sum_i \log \operatorname{softmax}(W g(x_i^s))_{y_i}

    A subclass adds the loss that aligns the domains, times `weight`. The rejector, which learns
    last, sees the learned features, scaled to unit length.
    """

    def __init__(self, width: int, n_classes: int, adapts: bool, settings: ClosedSetRival) -> None:
        super().__init__(width, n_classes, adapts, module=settings.module)
        self.classifier = nn.Linear(self.width_out, n_classes)
        self.weight = settings.weight
        self.rejector = REJECTORS[settings.rejector]()

    def source_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy."""
        logits = self.classifier(self.features(batch.source))
        return {"class": F.cross_entropy(logits, batch.labels)}

    def finish(self, source: Tensor, y: IntArray, target: Tensor) -> None:
        """Fit the rejector on the learned features of the source."""
        self.rejector.fit(F.normalize(self.features(source), dim=1), y, self.n_classes)

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Score aligned rows by the rejector."""
        features = self.features(x)
        return self.rejector.forward(F.normalize(features, dim=1), self.classifier(features))


@dataclass(eq=False, repr=False, kw_only=True)
class ClosedSetRival(RejectingRival, NetworkRival):
    """Base of MMD and DANN, the closed-set adapters, whose rejector learns from the source alone.

    All targets take part in the alignment, unknowns too, as in the tables of the open-set papers.
    A subclass names its `network`, a `ClosedSetNetwork`.

    Parameters
    ----------
    weight : float, default=1.0
        Weight of the loss that aligns the domains.
    """

    iterations: int = 200
    weight: float = checked(1.0, NON_NEGATIVE)

    network: ClassVar[type[ClosedSetNetwork]]

    def _make_network(self, width: int, n_classes: int, adapts: bool) -> ClosedSetNetwork:
        return self.network(width, n_classes, adapts, self)

    def _make_scorer(self, arrays: Mapping[str, Tensor]) -> RivalNetwork:
        network = super()._make_scorer(arrays)
        network.rejector = self._saved_rejector(arrays)
        return network
