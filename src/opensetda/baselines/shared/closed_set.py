"""What MMD and DANN share: a closed-set classifier on adapted features, and a rejector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opensetda.base import Scores
from opensetda.baselines.shared.network import Batch, NetworkRival, RivalNetwork
from opensetda.baselines.shared.rival import NON_NEGATIVE, Constraints, RejectingRival
from opensetda.nn.inputs import TrainingInputs
from opensetda.rows import IntArray


class ClosedSetNetwork(RivalNetwork):
    r"""A linear classifier on the bottleneck, trained by the cross-entropy of the source.

    .. math:: L_y = -\frac{1}{b} \sum_i \log \operatorname{softmax}(W g(x_i^s))_{y_i}

    A subclass adds the loss that aligns the domains, times `weight`.
    """

    def __init__(self, width: int, n_classes: int, adapts: bool, weight: float) -> None:
        super().__init__(width, n_classes, adapts)
        self.classifier = nn.Linear(self.width_out, n_classes)
        self.weight = weight

    def source_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy."""
        logits = self.classifier(self.features(batch.source))
        return {"class": F.cross_entropy(logits, batch.labels)}


@dataclass(eq=False, repr=False, kw_only=True)
class ClosedSetRival(RejectingRival, NetworkRival):
    """Base of the closed-set adapters, whose rejector learns from the source alone.

    All targets take part in the alignment, unknowns too, as in the tables of the open-set papers.
    The rejector sees the learned features, scaled to unit length.

    Parameters
    ----------
    weight : float, default=1.0
        Weight of the loss that aligns the domains.
    """

    iterations: int = 200
    weight: float = 1.0

    _parameter_constraints: ClassVar[Constraints] = {
        **NetworkRival._parameter_constraints,
        **RejectingRival._parameter_constraints,
        "weight": NON_NEGATIVE,
    }

    def _after_training(self, inputs: TrainingInputs, y: IntArray) -> None:
        with torch.no_grad():
            features = self._network.features(inputs.source.cpu().double())
        self._fit_rejector(F.normalize(features, dim=1).numpy(), y)

    def _network_scores(self, network: Any, x: Tensor) -> Scores:
        features = network.features(x)
        logits = network.classifier(features)
        return self.rejector_.scores(F.normalize(features, dim=1).numpy(), logits.numpy())
