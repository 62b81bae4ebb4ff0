"""OVANet: as many one-vs-all classifiers as classes, each with a boundary of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opensetda.methods.network import Batch, NetworkRival, RivalNetwork
from opensetda.methods.network_parts import zero_linear
from opensetda.methods.parameters import NON_NEGATIVE, checked


class OVANetNetwork(RivalNetwork):
    """A closed-set classifier and C one-vs-all classifiers, on the adapted rows themselves."""

    def __init__(self, width: int, n_classes: int, adapts: bool, settings: OVANet) -> None:
        super().__init__(width, n_classes, adapts, bottleneck=False, module=settings.module)
        # Weights that begin at zero stay in the span of the rows that were seen: small components
        # of a few hundred rows are noise.
        self.closed = zero_linear(self.width_out, n_classes)
        # A softmax over two outputs is a sigmoid of their difference: one output is enough.
        self.one_vs_all = zero_linear(self.width_out, n_classes)
        self.entropy_weight = settings.entropy_weight

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return class logits and one-vs-all logits: (N, d) -> (N, C) each."""
        features = self.features(x)
        return self.closed(features), self.one_vs_all(features)

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Score aligned rows: the one-vs-all classifier of the nearest class says how known."""
        closed, one_vs_all = self.outputs(x)
        nearest = closed.argmax(dim=1, keepdim=True)
        return closed, one_vs_all.gather(1, nearest)[:, 0]

    def source_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy of the classes, and `one_vs_all_loss`."""
        closed, one_vs_all = self.outputs(batch.source)
        return {
            "class": F.cross_entropy(closed, batch.labels),
            "one_vs_all": one_vs_all_loss(one_vs_all, batch.labels),
        }

    def target_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return `open_set_entropy`, weighted."""
        _, one_vs_all = self.outputs(batch.target)
        return {"open_set_entropy": self.entropy_weight * open_set_entropy(one_vs_all)}


@dataclass(eq=False, repr=False, kw_only=True)
class OVANet(NetworkRival):
    r"""One-vs-all network.

    Saito and Saenko, "OVANet: One-vs-all network for universal domain adaptation" (ICCV 2021).

    .. math:: L = L_{cls}(x_s) + L_{ova}(x_s) + \lambda L_{ent}(x_t)

    with `one_vs_all_loss` and `open_set_entropy`. A sample gets the class of the closed-set
    classifier, and is unknown if the one-vs-all classifier of that class gives it less than 1/2.

    Trained by SGD with momentum, as in the paper. Rate and iterations were chosen with target
    labels (Office-31), in favour of this rival; from 300 to 600 iterations and from rates of 0.1
    to 0.3 little changes. For a backbone trained on images the paper has a rate of 0.01.

    The other parameters are those of `NetworkRival`; the default of `rate` is 0.1.

    Parameters
    ----------
    entropy_weight : float, default=0.1
        Lambda, the paper's value.
    """

    momentum = True

    entropy_weight: float = checked(0.1, NON_NEGATIVE)
    rate: float = 0.1

    def _make_network(self, width: int, n_classes: int, adapts: bool) -> OVANetNetwork:
        return OVANetNetwork(width, n_classes, adapts, self)


def one_vs_all_loss(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the loss of the one-vs-all classifiers with hard negative classifier sampling.

    .. math::
        L_{ova} = -\log p(\hat y^{y} | x) - \min_{j \ne y} \log (1 - p(\hat y^{j} | x))

    Of the classifiers of other classes only the most confident one is trained: its boundary ends
    up between the class and its nearest other class. Logits (N, C), labels (N,) -> the mean.
    """
    own = F.one_hot(labels, logits.shape[1]).bool()
    positive = -F.logsigmoid(logits[own])
    hardest = logits.masked_fill(own, float("-inf")).amax(dim=1)
    # -log(1 - sigmoid(z)) = -log sigmoid(-z)
    return (positive - F.logsigmoid(-hardest)).mean()


def open_set_entropy(logits: Tensor) -> Tensor:
    r"""Return the entropy of the one-vs-all classifiers, which is minimised on targets.

    .. math:: L_{ent} = \frac1C \sum_j H(p(\hat y^{j} | x))

    It moves a target inside or outside of every boundary. Logits (N, C) -> the mean.
    """
    p = torch.sigmoid(logits)
    return -(p * F.logsigmoid(logits) + (1 - p) * F.logsigmoid(-logits)).mean()
