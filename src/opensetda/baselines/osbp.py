"""OSBP: a boundary at one half, and features that move targets to either side of it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opensetda.base import Scores
from opensetda.baselines._network import Batch, NetworkBaseline, RivalNetwork, numpy_scores
from opensetda.errors import InputError
from opensetda.nn.parts import reversal_strength, reverse_gradient


class OSBPNetwork(RivalNetwork):
    """Features G, and a classifier C of C + 1 classes, the last of which is unknown.

    Parameters
    ----------
    width, n_classes, adapts
        As in `RivalNetwork`.
    boundary : float
        t, the probability of unknown that the classifier wants for every target.
    reversal : float
        How much of the classifier's gradient the features get, reversed, at the end.
    """

    def __init__(
        self, width: int, n_classes: int, adapts: bool, boundary: float, reversal: float
    ) -> None:
        super().__init__(width, n_classes, adapts)
        self.boundary, self.reversal = boundary, reversal
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


class OSBP(NetworkBaseline):
    r"""Open set domain adaptation by backpropagation.

    Saito, Yamamoto, Ushiku and Harada, "Open set domain adaptation by backpropagation" (ECCV
    2018). A classifier of C + 1 classes learns the source, and to give every target the
    probability t = 1/2 of being unknown. The features, behind a reversed gradient, learn to
    deceive it: each target goes to the side of the boundary that it is nearer to, to the known
    classes or away from them.

    .. math::
        \min_C\; L_s(x^s, y^s) + L_{adv}(x^t), \qquad
        \min_G\; L_s(x^s, y^s) - \lambda L_{adv}(x^t)

    .. math::
        L_{adv}(x^t) = -t \log p(y = C{+}1 \mid x^t) - (1 - t) \log (1 - p(y = C{+}1 \mid x^t))

    The label is the likeliest of the C + 1 classes. So the known score is the logarithm of
    :math:`\max_{c \le C} p(c \mid x) / p(C{+}1 \mid x)`, and its own boundary is zero.

    Ours: the features' lambda grows from 0 to `reversal`, as DANN's does, so that there is a
    boundary before targets flee from it; the paper's formula has 1. The larger it is, and the
    longer the training, the fewer targets are rejected. `reversal` and `iterations` were chosen
    with a look at target labels (Office-31, two backbones), in the rival's favour.

    Parameters
    ----------
    openness : float or "auto", default="auto"
        Share of the target that is unknown, in [0, 1); "auto" leaves it to the classifier, whose
        unknown output is the largest or is not.
    boundary : float, default=0.5
        t, in (0, 1).
    reversal : float, default=0.5
        lambda at the end of the training.
    iterations : int, default=600
        Batches of both domains to train on.
    batch_size : int, default=64
        Samples of each domain in a batch.
    rate : float, default=0.001
        Learning rate of bottleneck and classifier; a tenth of it is the adapter's or backbone's.
    random_state : int, RandomState or None, default=None
        Seed of weights and batches.
    unknown_label : default="unknown"
        What unknowns are called.
    """

    def __init__(
        self,
        openness: float | str = "auto",
        boundary: float = 0.5,
        reversal: float = 0.5,
        iterations: int = 600,
        batch_size: int = 64,
        rate: float = 1e-3,
        random_state: Any = None,
        unknown_label: Any = "unknown",
    ) -> None:
        self.openness = openness
        self.boundary = boundary
        self.reversal = reversal
        self.iterations = iterations
        self.batch_size = batch_size
        self.rate = rate
        self.random_state = random_state
        self.unknown_label = unknown_label

    def _make_network(self, width: int, n_classes: int, adapts: bool) -> OSBPNetwork:
        if not 0 < self.boundary < 1:
            raise InputError(f"boundary={self.boundary!r}: give a probability in (0, 1)")
        if not 0 <= self.reversal < float("inf"):
            raise InputError(f"reversal={self.reversal!r}: give 0 or a number above")
        return OSBPNetwork(width, n_classes, adapts, self.boundary, self.reversal)

    def _network_scores(self, network: Any, x: Tensor) -> Scores:
        logits = network.classifier(network.features(x))
        classes = logits[:, :-1]
        return numpy_scores(classes, classes.max(dim=1).values - logits[:, -1])

    def _own_cut(self, scores: Scores) -> float | None:
        return 0.0


def boundary_loss(logits: Tensor, boundary: float) -> Tensor:
    r"""Return :math:`L_{adv}`, in the mean of some targets; smallest where p(unknown) = t.

    Shapes: logits (n, C + 1), unknown last -> ().
    """
    log_probabilities = F.log_softmax(logits, dim=1)
    unknown = log_probabilities[:, -1]
    known = torch.logsumexp(log_probabilities[:, :-1], dim=1)
    return -(boundary * unknown + (1 - boundary) * known).mean()
