"""The shared classifier F: linear as in the paper, or the cosine to class means."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# A cosine lies in [-1, 1]: without a scale its softmax is flat.
COSINE_SCALE = 16.0


def class_means(v: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Sum the nodes of each class, and count them; unlabelled and unknown nodes do not count.

    Shapes: v (N, D), labels (N,) -> sums (C, D), counts (C,).
    """
    known = (labels >= 0) & (labels < n_classes)
    sums = v.new_zeros(n_classes, v.shape[1]).index_add(0, labels[known], v[known])
    return sums, torch.bincount(labels[known], minlength=n_classes)


def mixed_means(v: Tensor, labels: Tensor, is_target: Tensor, n_classes: int, mix: float) -> Tensor:
    r"""Class means on the way from the source to the target.

    .. math::
        \mu_c = \operatorname{unit}((1 - w) \operatorname{unit}(\mu_c^s)
                + w \operatorname{unit}(\mu_c^t))

    the expectation, over draws, of the mean of a support whose slots hold pseudo-labelled
    targets with probability w. A class that one domain lacks is taken from the other.

    Shapes: v (N, D), labels (N,), is_target (N,) -> (C, D), unit rows.
    """
    nowhere = torch.full_like(labels, -1)
    sums_s, n_s = class_means(v, torch.where(is_target, nowhere, labels), n_classes)
    sums_t, n_t = class_means(v, torch.where(is_target, labels, nowhere), n_classes)
    weight = torch.full_like(sums_s[:, :1], mix)
    weight[n_t == 0] = 0.0
    weight[n_s == 0] = 1.0
    source, target = F.normalize(sums_s, dim=1), F.normalize(sums_t, dim=1)
    return F.normalize((1 - weight) * source + weight * target, dim=1)


class ClassMeanClassifier(nn.Module):
    """Logits are scaled cosines to the class means of the labelled nodes in the graph.

    A labelled node is left out of the mean of its own class: otherwise it would
    be near that mean whatever the network does.

    Shapes: v (N, D), labels (N,) -> logits (N, C).
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = n_classes

    def forward(self, v: Tensor, labels: Tensor) -> Tensor:
        """Classify all nodes by the labelled ones."""
        sums, counts = class_means(v, labels, self.n_classes)
        logits = v @ F.normalize(sums, dim=1).t()
        rows = torch.nonzero((labels >= 0) & (labels < self.n_classes)).squeeze(1)
        own = labels[rows]
        others = F.normalize(sums[own] - v[rows], dim=1)
        without_itself = (v[rows] * others).sum(1)
        alone = counts[own] < 2
        logits = logits.index_put((rows[~alone], own[~alone]), without_itself[~alone])
        return COSINE_SCALE * logits


class LinearClassifier(nn.Module):
    """The paper's F: a linear map of the node embedding.

    Shapes: v (N, h) -> logits (N, C).
    """

    def __init__(self, width: int, n_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, n_classes)

    def forward(self, v: Tensor, labels: Tensor) -> Tensor:
        """Classify all nodes; their labels play no part."""
        logits: Tensor = self.linear(v)
        return logits
