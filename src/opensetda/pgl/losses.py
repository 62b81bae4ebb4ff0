"""The losses of Eq. 11, each weighted by name; a weight of 0 switches it off."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opensetda.nn.parts import Discriminator
from opensetda.pgl.network import GraphOutput
from opensetda.pgl.settings import LossSettings

# s of the loss on class means.
MEAN_SCALE = 10.0


def focal_loss(logits: Tensor, labels: Tensor, focusing: float) -> Tensor:
    r"""Node classification with less weight on nodes that are right already (L_n of Eq. 11).

    .. math:: \mathcal{L}_n = -\mathbb{E}\,(1 - p_y)^\rho \log p_y

    Shapes: logits (N, C), labels (N,) -> scalar.
    """
    log_p = F.log_softmax(logits, dim=1).gather(1, labels[:, None]).squeeze(1)
    # Not 0: below a power of 1 its gradient is infinite there.
    wrong = (1 - log_p.exp()).clamp(min=torch.finfo(log_p.dtype).tiny)
    return -(wrong**focusing * log_p).mean()


def edge_affinity_loss(logits: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    r"""Binary cross-entropy of affinities between labelled nodes (L_e, ours).

    .. math::
        \mathcal{L}_e = \frac12 \mathbb{E}_{y_i = y_j} [-\log A_{ij}]
                      + \frac12 \mathbb{E}_{y_i \ne y_j} [-\log (1 - A_{ij})]

    Off-diagonal pairs only; same-class pairs, which are rarer, get half of the weight.
    A known and an unknown node are a negative pair; two unknown nodes may or may not be of one
    class, and are left out.

    Shapes: logits (N, N), labels (N,) in 0..C, C for unknown -> scalar.
    """
    same, different = labelled_pairs(labels, n_classes)
    positive = F.softplus(-logits[same])
    negative = F.softplus(logits[different])
    parts = [part.mean() for part in (positive, negative) if part.numel()]
    return torch.stack(parts).mean() if parts else logits.sum() * 0


def normalised_edge_loss(edges: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    r"""Binary cross-entropy of the normalised edges (L_e of Eq. 11, the paper's).

    .. math::
        \mathcal{L}_e = -\mathbb{E}\,[\hat Y \log \mathcal{E}
                        + (1 - \hat Y) \log (1 - \mathcal{E})]

    Shapes: edges (N, N), labels (N,) -> scalar.
    """
    known = (labels >= 0) & (labels < n_classes)
    truth = (labels[:, None] == labels[None, :])[known][:, known]
    predicted = edges[known][:, known].clamp(1e-7, 1 - 1e-7)
    return F.binary_cross_entropy(predicted, truth.to(predicted.dtype))


def class_mean_loss(x: Tensor, labels: Tensor, means: Tensor) -> Tensor:
    r"""Draw labelled samples to the mean of their class, push unknown ones from all (ours).

    .. math::
        \mathcal{L}_m = \mathbb{E}_{y \le C} [-\log \operatorname{softmax}_y (s\, x M^\top)]
                      + \frac{s}{2}\, \mathbb{E}_{y = C + 1} \sum_c \max(0, x M_c^\top)^2

    Shapes: x (N, d) and means M (C, d), both of unit length, labels (N,) -> scalar.
    """
    cosines, n_classes = x @ means.t(), len(means)
    known, unknown = (labels >= 0) & (labels < n_classes), labels == n_classes
    loss = F.cross_entropy(MEAN_SCALE * cosines[known], labels[known])
    if unknown.any():
        loss = loss + MEAN_SCALE / 2 * F.relu(cosines[unknown]).square().sum(dim=1).mean()
    return loss


def labelled_pairs(labels: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Mark the pairs of one class and those of two: (N,) -> bool (N, N), bool (N, N)."""
    labelled = labels >= 0
    both = labelled[:, None] & labelled[None, :]
    both &= ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    same = labels[:, None] == labels[None, :]
    unknown = labels == n_classes
    return both & same & ~unknown[:, None], both & ~same


def domain_loss(
    discriminator: Discriminator, v: Tensor, is_target: Tensor, aligned: Tensor, strength: float
) -> Tensor:
    r"""Adversarial loss on the backbone's features (L_d of Eq. 11).

    .. math::
        \mathcal{L}_d = -\mathbb{E}_s \log (1 - D(v^{(0)})) - \mathbb{E}_t \log D(v^{(0)})

    Pseudo-unknown targets have no counterpart in the source and are left out (`aligned`).

    Shapes: v (N, D), is_target (N,), aligned (N,) -> scalar.
    """
    if not (is_target & aligned).any() or is_target[aligned].all():
        return v.sum() * 0
    logits = discriminator(v, strength)
    source = F.softplus(logits[aligned & ~is_target]).mean()
    target = F.softplus(-logits[aligned & is_target]).mean()
    return source + target


def graph_losses(
    output: GraphOutput,
    labels: Tensor,
    is_target: Tensor,
    aligned: Tensor,
    discriminator: Discriminator,
    strength: float,
    settings: LossSettings,
) -> dict[str, Tensor]:
    """Compute the weighted losses by name; their sum is the objective (Eq. 11).

    The minus sign of the backbone's domain loss comes from the reversed gradient, scaled by
    `strength`.
    """
    n_classes = output.class_logits[0].shape[1]
    known = (labels >= 0) & (labels < n_classes)
    losses: dict[str, Tensor] = {}
    if settings.node:
        scored = [logits[known] for logits in output.class_logits]
        layers = [focal_loss(logits, labels[known], settings.focusing) for logits in scored]
        losses["node"] = settings.node * torch.stack(layers).sum()
    if settings.edge and output.edges:
        if settings.edge_target == "affinity":
            layers = [edge_affinity_loss(e, labels, n_classes) for e in output.edge_logits]
        else:
            layers = [normalised_edge_loss(e, labels, n_classes) for e in output.edges]
        losses["edge"] = settings.edge * torch.stack(layers).sum()
    if settings.adversary:
        domains = domain_loss(discriminator, output.backbone, is_target, aligned, strength)
        losses["adversary"] = settings.adversary * domains
    return losses
