"""Heads that several rivals with a network have: C + 1 outputs, or C outputs and a rejector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from opensetda.base import NON_NEGATIVE, checked
from opensetda.baselines.shared.rival import RejectingRival
from opensetda.nn.network import Batch, NetworkRival, RivalNetwork
from opensetda.openness.decision import Scores
from opensetda.rejection import make_rejector
from opensetda.rejection.base import Rejector
from opensetda.rows import IntArray


class ExtraClassNetwork(RivalNetwork):
    """A `classifier` of C + 1 outputs, the last for unknown, which a subclass makes.

    The known score is the largest of the others minus the last.
    """

    classifier: nn.Linear

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Score aligned rows by the largest output against the last one."""
        logits = self.classifier(self.features(x))
        return logits[:, :-1], logits[:, :-1].amax(dim=1) - logits[:, -1]


class ExtraClassRival(NetworkRival):
    """Base of the rivals with an `ExtraClassNetwork`; their own boundary is zero."""

    def _own_cut(self, scores: Scores) -> float | None:
        return 0.0


class ClosedSetNetwork(RivalNetwork):
    r"""A linear classifier on the bottleneck, trained by the cross-entropy of the source.

    .. math:: L_y = -\frac{1}{b} \sum_i \log \operatorname{softmax}(W g(x_i^s))_{y_i}

    A subclass adds the loss that aligns the domains, times `weight`. The rejector, which learns
    last, sees the learned features, scaled to unit length.
    """

    def __init__(
        self, width: int, n_classes: int, adapts: bool, weight: float, rejector: Rejector
    ) -> None:
        super().__init__(width, n_classes, adapts)
        self.classifier = nn.Linear(self.width_out, n_classes)
        self.weight, self.rejector = weight, rejector

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
        logits = self.classifier(features)
        scored: tuple[Tensor, Tensor] = self.rejector(F.normalize(features, dim=1), logits)
        return scored


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
        return self.network(width, n_classes, adapts, self.weight, make_rejector(self.rejector))

    def _make_scorer(self, arrays: Mapping[str, Tensor]) -> RivalNetwork:
        network = super()._make_scorer(arrays)
        network.rejector = self._saved_rejector(arrays)
        return network
