"""The losses of Eq. 11; a weight of 0 switches one off."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opensetda.pgl.network import GraphOutput, PGLNetwork
from opensetda.pgl.settings import PGLSettings
from opensetda.pgl.taught import unknown_loss


def focal_loss(logits: Tensor, labels: Tensor, focusing: float) -> Tensor:
    r"""Node classification, with less weight on nodes that are right already (L_n).

    .. math:: \mathcal{L}_n = -\mathbb{E}\,(1 - p_y)^\rho \log p_y

    Shapes: logits (N, C), labels (N,) -> scalar.
    """
    log_p = F.log_softmax(logits, dim=1).gather(1, labels[:, None]).squeeze(1)
    # Not 0: below a power of 1 the gradient is infinite there.
    wrong = (1 - log_p.exp()).clamp(min=torch.finfo(log_p.dtype).tiny)
    return -(wrong**focusing * log_p).mean()


def edge_loss(edges: Tensor, labels: Tensor) -> Tensor:
    r"""Binary cross-entropy of the normalised edges between labelled nodes (L_e).

    .. math::
        \mathcal{L}_e = -\mathbb{E}\,[\hat Y \log \mathcal{E} + (1 - \hat Y) \log (1 - \mathcal{E})]

    with :math:`\hat Y_{ij} = 1` if i and j are of one class.

    Shapes: edges (N, N), labels (N,) -> scalar.
    """
    truth = (labels[:, None] == labels[None, :]).to(edges.dtype)
    return F.binary_cross_entropy(edges.clamp(1e-7, 1 - 1e-7), truth)


def domain_loss(logits: Tensor, is_target: Tensor) -> Tensor:
    r"""Tell source from target (L_d); the paper prints it with the other sign.

    .. math:: \mathcal{L}_d = -\mathbb{E}_s \log (1 - D(v^{(0)})) - \mathbb{E}_t \log D(v^{(0)})

    Shapes: logits of D (N,), is_target (N,) -> scalar.
    """
    return F.softplus(logits[~is_target]).mean() + F.softplus(-logits[is_target]).mean()


def graph_losses(
    network: PGLNetwork,
    output: GraphOutput,
    labels: Tensor,
    is_target: Tensor,
    is_unknown: Tensor,
    settings: PGLSettings,
) -> dict[str, Tensor]:
    r"""Compute the weighted losses by name (Eq. 11).

    .. math:: \sum_l \mathcal{L}_n^{(l)} + \mu \sum_l \mathcal{L}_e^{(l)} + \gamma \mathcal{L}_d

    and, if it has a weight, `unknown_loss` of the pseudo-unknown nodes in each layer.
    A reversed gradient turns :math:`+\gamma` into :math:`-\gamma` for the backbone. Pseudo-unknown
    targets have no counterpart in the source: the discriminator does not see them.

    Shapes: labels, is_target and is_unknown (N,), with -1 for nodes without a label.
    """
    known = labels >= 0
    aligned = ~is_unknown
    truth = labels[known]
    nodes = [focal_loss(logits[known], truth, settings.focusing) for logits in output.logits]
    losses = {"node": torch.stack(nodes).sum()}
    if settings.edge_weight and output.edges:
        layers = [edge_loss(edges[known][:, known], truth) for edges in output.edges]
        losses["edge"] = settings.edge_weight * torch.stack(layers).sum()
    if settings.unknown_weight and is_unknown.any():
        unknowns = [unknown_loss(logits[is_unknown]) for logits in output.logits]
        losses["unknown"] = settings.unknown_weight * torch.stack(unknowns).sum()
    of_target = is_target[aligned]
    if settings.adversary_weight and of_target.any() and not of_target.all():
        logits = network.discriminator(output.features[aligned], 1.0)
        losses["adversary"] = settings.adversary_weight * domain_loss(logits, of_target)
    return losses
