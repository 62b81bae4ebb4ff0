"""OVANet: as many one-vs-all classifiers as classes, each with a boundary of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opensetda.base import Scores
from opensetda.baselines._network import (
    Batch,
    NetworkBaseline,
    RivalNetwork,
    momentum_optimiser,
    numpy_scores,
)
from opensetda.nn.parts import zero_linear
from opensetda.nn.settings import OptimiserSettings


class OVANetNetwork(RivalNetwork):
    """A closed-set classifier F and C one-vs-all classifiers O on the same features.

    Shapes: x (N, d) -> class logits (N, C) and one-vs-all logits (N, C).
    """

    def __init__(self, width: int, n_classes: int, adapts: bool, entropy_weight: float) -> None:
        super().__init__(width, n_classes, adapts, bottleneck=width)
        # As in the paper, the heads see the features themselves.
        self.bottleneck = nn.Sequential()
        # Weights that begin at zero stay among the rows that were seen: small components of a few
        # hundred rows are noise.
        self.closed = zero_linear(width, n_classes)
        # A softmax over two outputs is a sigmoid of their difference: one output is enough.
        self.one_vs_all = zero_linear(width, n_classes)
        self.entropy_weight = entropy_weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return class logits and one-vs-all logits."""
        features = self.features(x)
        return self.closed(features), self.one_vs_all(features)

    def source_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cross entropy of the classes, and `one_vs_all_loss`."""
        closed, one_vs_all = self(batch.source)
        return {
            "class": F.cross_entropy(closed, batch.labels),
            "one_vs_all": one_vs_all_loss(one_vs_all, batch.labels),
        }

    def target_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return `open_set_entropy`, weighted."""
        _, one_vs_all = self(batch.target)
        return {"open_set_entropy": self.entropy_weight * open_set_entropy(one_vs_all)}


def one_vs_all_loss(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Loss of the one-vs-all classifiers with hard negative classifier sampling.

    .. math::
        L_{ova} = -\log p(\hat y^{y} | x) - \min_{j \ne y} \log (1 - p(\hat y^{j} | x))

    Of all the classifiers that should say no, only the one that is nearest to yes is trained:
    its boundary ends up between the class and its nearest other class.

    Shapes: logits (N, C), labels (N,) -> a number, the mean.
    """
    own = F.one_hot(labels, logits.shape[1]).bool()
    positive = -F.logsigmoid(logits[own])
    hardest = logits.masked_fill(own, float("-inf")).amax(dim=1)
    # -log(1 - sigmoid(z)) = -log sigmoid(-z)
    return (positive - F.logsigmoid(-hardest)).mean()


def open_set_entropy(logits: Tensor) -> Tensor:
    r"""Entropy of the one-vs-all classifiers, to be small on targets.

    .. math:: L_{ent} = \frac1C \sum_j H(p(\hat y^{j} | x))

    A target goes to the inside or to the outside of every boundary: knowns are aligned to a class,
    unknowns to none.

    Shapes: logits (N, C) -> a number, the mean.
    """
    p = torch.sigmoid(logits)
    return -(p * F.logsigmoid(logits) + (1 - p) * F.logsigmoid(-logits)).mean()


class OVANet(NetworkBaseline):
    r"""One-vs-all network (Saito and Saenko, ICCV 2021).

    .. math:: L = L_{cls}(x_s) + L_{ova}(x_s) + \lambda L_{ent}(x_t)

    A sample gets the class of the closed-set classifier, and is unknown where the one-vs-all
    classifier of that class gives it less than 1/2.

    Trained by SGD with momentum, as in the paper: Adam gives every principal component of the
    rows the same say, which is a whitening, and costs about two points. Rate and iterations were
    chosen on Office-31 features with a look at target labels, in the rival's favour; from 300 to
    600 iterations and from rates of 0.1 to 0.3 little changes.

    Parameters
    ----------
    openness : float or "auto", default="auto"
        Share of the target that is unknown, in [0, 1); "auto" leaves it to the method's own
        boundary, 1/2.
    entropy_weight : float, default=0.1
        Lambda, the paper's value.
    iterations : int, default=600
        Batches of both domains to train on.
    batch_size : int, default=64
        Samples of each domain in a batch.
    rate : float, default=0.1
        Learning rate of the heads; a tenth of it is the adapter's or backbone's. For a backbone
        that learns from images the paper has 0.01.
    random_state : int, RandomState or None, default=None
        Seed of weights and batches.
    unknown_label : default="unknown"
        What unknowns are called.

    References
    ----------
    K. Saito, K. Saenko: OVANet: One-vs-all network for universal domain adaptation. ICCV 2021.
    """

    def __init__(
        self,
        openness: float | str = "auto",
        entropy_weight: float = 0.1,
        iterations: int = 600,
        batch_size: int = 64,
        rate: float = 0.1,
        random_state: Any = None,
        unknown_label: Any = "unknown",
    ) -> None:
        self.openness = openness
        self.entropy_weight = entropy_weight
        self.iterations = iterations
        self.batch_size = batch_size
        self.rate = rate
        self.random_state = random_state
        self.unknown_label = unknown_label

    def _make_network(self, width: int, n_classes: int, adapts: bool) -> RivalNetwork:
        return OVANetNetwork(width, n_classes, adapts, self.entropy_weight)

    def _make_optimiser(
        self, network: RivalNetwork, rates: OptimiserSettings, backbone: list[nn.Parameter]
    ) -> torch.optim.Optimizer:
        return momentum_optimiser(network, rates, backbone)

    def _network_scores(self, network: OVANetNetwork, x: Tensor) -> Scores:
        closed, one_vs_all = network(x)
        return numpy_scores(closed, one_vs_all.gather(1, closed.argmax(dim=1)[:, None])[:, 0])

    def _own_cut(self, scores: Scores) -> float | None:
        # The known score is a logit: 0 is a probability of 1/2.
        return 0.0
