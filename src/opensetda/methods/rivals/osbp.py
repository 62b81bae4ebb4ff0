"""OSBP: a boundary at one half, and features that move targets to either side of it."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import torch
import torch.nn.functional as F
from sklearn.utils._param_validation import Interval
from torch import Tensor, nn

from opensetda.methods.network import Batch, NetworkRival
from opensetda.methods.network_parts import reversal_strength, reverse_gradient
from opensetda.methods.parameters import NON_NEGATIVE, checked
from opensetda.methods.rival_bases import ExtraClassNetwork


class OSBPNetwork(ExtraClassNetwork):
    """Features G, and a classifier of C + 1 classes, the last of which is unknown."""

    def __init__(self, width: int, n_classes: int, adapts: bool, settings: OSBP) -> None:
        super().__init__(width, n_classes, adapts, module=settings.module)
        self.boundary, self.reversal = settings.boundary, settings.reversal
        self.classifier = nn.Linear(self.width_out, n_classes + 1)

    def source_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return :math:`L_s`, the cross-entropy of the source over all C + 1 classes."""
        logits = self.classifier(self.features(batch.source))
        return {"class": F.cross_entropy(logits, batch.labels)}

    def target_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return :math:`L_{adv}`, which the classifier descends and the features ascend."""
        strength = self.reversal * reversal_strength(batch.progress)
        logits = self.classifier(reverse_gradient(self.features(batch.target), strength))
        return {"boundary": boundary_loss(logits, self.boundary)}


@dataclass(eq=False, repr=False, kw_only=True)
class OSBP(NetworkRival):
    r"""Open set domain adaptation by backpropagation.

    Saito, Yamamoto, Ushiku and Harada, "Open set domain adaptation by backpropagation" (ECCV
    2018). A classifier of C + 1 classes learns the source, and to give every target the
    probability t = 1/2 of being unknown. The features, behind a reversed gradient, learn to
    deceive it: each target moves to the nearer side of the boundary, towards the known classes or
    away from them.

    .. math::
        \min_C\; L_s(x^s, y^s) + L_{adv}(x^t), \qquad
        \min_G\; L_s(x^s, y^s) - \lambda L_{adv}(x^t)

    .. math::
        L_{adv}(x^t) = -t \log p(y = C{+}1 \mid x^t) - (1 - t) \log (1 - p(y = C{+}1 \mid x^t))

    The known score is :math:`\log \max_{c \le C} p(c \mid x) / p(C{+}1 \mid x)`, its own boundary
    zero.

    Our choices: lambda grows from 0 to `reversal`, as in DANN, so that the boundary is learned
    before targets move away from it; in the paper it is 1. The larger it is, and the longer the
    training, the fewer targets are rejected. `reversal` and `iterations` were chosen with target
    labels (Office-31, two backbones), in favour of this rival.

    The other parameters are those of `NetworkRival`.

    Parameters
    ----------
    boundary : float, default=0.5
        t, in (0, 1).
    reversal : float, default=0.5
        lambda at the end of the training.
    """

    boundary: float = checked(0.5, Interval(Real, 0, 1, closed="neither"))
    reversal: float = checked(0.5, NON_NEGATIVE)

    def _make_network(self, width: int, n_classes: int, adapts: bool) -> OSBPNetwork:
        return OSBPNetwork(width, n_classes, adapts, self)


def boundary_loss(logits: Tensor, boundary: float) -> Tensor:
    r"""Return :math:`L_{adv}`, the mean over targets, from logits (n, C + 1), unknown last."""
    log_probabilities = F.log_softmax(logits, dim=1)
    unknown = log_probabilities[:, -1]
    known = torch.logsumexp(log_probabilities[:, :-1], dim=1)
    return -(boundary * unknown + (1 - boundary) * known).mean()
