"""What MMD and DANN share: a closed-set classifier on aligned features, and a rejector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opensetda.base import Scores
from opensetda.baselines._network import Batch, NetworkBaseline, RivalNetwork
from opensetda.nn.inputs import TrainingInputs
from opensetda.rejection.classifier import RejectingClassifier
from opensetda.rows import IntArray


class AdapterNetwork(RivalNetwork):
    r"""A linear classifier on the bottleneck, trained by the cross-entropy of the source.

    .. math:: L_y = -\frac{1}{b} \sum_i \log \operatorname{softmax}(W g(x_i^s))_{y_i}

    A subclass adds the loss that brings the domains together.
    """

    def __init__(self, width: int, n_classes: int, adapts: bool, weight: float) -> None:
        super().__init__(width, n_classes, adapts)
        self.classifier = nn.Linear(self.width_out, n_classes)
        self.weight = weight

    def source_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy."""
        logits = self.classifier(self.features(batch.source))
        return {"class": F.cross_entropy(logits, batch.labels)}


class AdapterBaseline(NetworkBaseline, RejectingClassifier):
    """Aligned features for a closed set, and a rejector that knows nothing of the target.

    The rejector learns from the source's learned features, scaled to length one.
    """

    weight: float

    def __init__(
        self,
        openness: float | str = "auto",
        rejector: str = "osvm",
        weight: float = 1.0,
        iterations: int = 200,
        batch_size: int = 64,
        rate: float = 1e-3,
        random_state: Any = None,
        unknown_label: Any = "unknown",
    ) -> None:
        self.openness = openness
        self.rejector = rejector
        self.weight = weight
        self.iterations = iterations
        self.batch_size = batch_size
        self.rate = rate
        self.random_state = random_state
        self.unknown_label = unknown_label

    def _after_training(self, inputs: TrainingInputs, y: IntArray) -> None:
        with torch.no_grad():
            features = self._network.features(inputs.source.cpu().double())
        self._fit_rejector(F.normalize(features, dim=1).numpy(), y)

    def _network_scores(self, network: Any, x: Tensor) -> Scores:
        features = network.features(x)
        logits = network.classifier(features)
        return self._rejected_scores(F.normalize(features, dim=1).numpy(), logits.numpy())

    def _fitted_state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        values, arrays = super()._fitted_state()
        own_values, own_arrays = self._rejector_state()
        return {**values, **own_values}, {**arrays, **own_arrays}

    def _restore_fitted_state(
        self, values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        super()._restore_fitted_state(values, arrays)
        self._restore_rejector(values, arrays)
