"""The losses of Eq. 11 by hand, their weights, and the reversed gradient."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from opensetda.pgl.losses import (
    domain_loss,
    edge_loss,
    focal_loss,
    graph_losses,
)
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.settings import PGLSettings
from opensetda.pgl.taught import unknown_loss

SMALL = PGLSettings(edge_width=5, node_width=6, dropout=0.0)
LABELS = torch.tensor([0, 0, 1, 1, -1, -1, -1, -1])
IS_TARGET = torch.tensor([False, False, True, False, True, True, True, True])
IS_UNKNOWN = torch.tensor([False] * 7 + [True])


def test_focal_loss_by_hand():
    logits = torch.tensor([[math.log(0.8), math.log(0.2)], [math.log(0.5), math.log(0.5)]])
    labels = torch.tensor([0, 1])
    expected = -(0.2**2 * math.log(0.8) + 0.5**2 * math.log(0.5)) / 2
    assert focal_loss(logits, labels, 2.0).item() == pytest.approx(expected)
    nll = F.cross_entropy(logits, labels)
    torch.testing.assert_close(focal_loss(logits, labels, 0.0), nll)


@pytest.mark.parametrize("focusing", [0.0, 0.5, 2.0])
def test_the_gradient_of_a_certain_node_is_finite(focusing):
    logits = torch.tensor([[100.0, 0.0]], requires_grad=True)
    focal_loss(logits, torch.tensor([0]), focusing).backward()
    assert torch.isfinite(logits.grad).all()


def test_edge_loss_by_hand():
    edges = torch.tensor([[0.5, 0.4, 0.1], [0.4, 0.6, 0.2], [0.1, 0.2, 0.7]])
    same = [0.5, 0.4, 0.4, 0.6, 0.7]
    different = [0.1, 0.2, 0.1, 0.2]
    expected = -(sum(map(math.log, same)) + sum(math.log(1 - e) for e in different)) / 9
    assert edge_loss(edges, torch.tensor([0, 0, 1])).item() == pytest.approx(expected)


def test_domain_loss_by_hand():
    logits = torch.tensor([1.0, -2.0, 3.0])
    d = torch.sigmoid(logits)
    expected = -(torch.log(1 - d[0]) + torch.log(1 - d[1])) / 2 - torch.log(d[2])
    torch.testing.assert_close(domain_loss(logits, torch.tensor([False, False, True])), expected)


def losses_of(settings, is_unknown=IS_UNKNOWN, is_target=IS_TARGET, seed=0):
    torch.manual_seed(seed)
    network = PGLNetwork(4, 2, settings, adapts=True)
    output = network(torch.randn(8, 4))
    return network, output, graph_losses(network, output, LABELS, is_target, is_unknown, settings)


def test_the_losses_are_weighted_as_in_the_paper():
    _, output, losses = losses_of(SMALL)
    assert set(losses) == {"node", "edge", "adversary"}
    known = LABELS >= 0
    edge = edge_loss(output.edges[0][known][:, known], LABELS[known])
    torch.testing.assert_close(losses["edge"], 0.3 * edge)
    torch.testing.assert_close(
        losses["node"], focal_loss(output.logits[0][known], LABELS[known], 2.0)
    )


def test_unknowns_are_drawn_to_the_middle_of_all_classes_if_that_has_a_weight():
    equal, sure = torch.zeros(3, 4), torch.tensor([[9.0, 0.0, 0.0, 0.0]])
    assert unknown_loss(equal).item() == pytest.approx(math.log(4))
    assert unknown_loss(sure) > 2 * unknown_loss(equal)
    _, output, losses = losses_of(replace(SMALL, unknown_weight=0.5))
    torch.testing.assert_close(losses["unknown"], 0.5 * unknown_loss(output.logits[0][IS_UNKNOWN]))
    none_is = torch.zeros_like(IS_UNKNOWN)
    assert "unknown" not in losses_of(replace(SMALL, unknown_weight=0.5), is_unknown=none_is)[2]


def test_losses_of_all_layers_are_summed():
    settings = PGLSettings(layers=3, edge_width=5, node_width=6, dropout=0.0)
    _, output, losses = losses_of(settings)
    known = LABELS >= 0
    nodes = sum(focal_loss(logits[known], LABELS[known], 2.0) for logits in output.logits)
    torch.testing.assert_close(losses["node"], nodes)
    edges = sum(edge_loss(e[known][:, known], LABELS[known]) for e in output.edges)
    torch.testing.assert_close(losses["edge"], 0.3 * edges)


def test_unlabelled_nodes_do_not_count_and_pseudo_unknown_ones_are_not_aligned():
    network, output, losses = losses_of(SMALL)
    logits = network.discriminator(output.features[:7], 1.0)
    torch.testing.assert_close(losses["adversary"], 0.4 * domain_loss(logits, IS_TARGET[:7]))


@pytest.mark.parametrize(
    ("is_target", "is_unknown"),
    [(torch.zeros(8, dtype=torch.bool), IS_UNKNOWN), (torch.ones(8, dtype=torch.bool), IS_UNKNOWN)],
)
def test_one_domain_alone_has_no_adversary(is_target, is_unknown):
    assert "adversary" not in losses_of(SMALL, is_unknown, is_target)[2]


@pytest.mark.parametrize(
    ("changes", "gone"), [({"edge_weight": 0}, "edge"), ({"adversary_weight": 0}, "adversary")]
)
def test_a_weight_of_zero_switches_a_loss_off(changes, gone):
    assert gone not in losses_of(SMALL.with_changes(changes))[2]


def test_the_backbone_climbs_the_loss_that_the_discriminator_descends():
    network, output, losses = losses_of(SMALL)
    losses["adversary"].backward()
    reversed_ = network.backbone.change.bias.grad.clone()
    features = output.features.detach()[:7].requires_grad_()
    plain = network.discriminator.layers(features).squeeze(-1)
    (0.4 * domain_loss(plain, IS_TARGET[:7])).backward()
    torch.testing.assert_close(reversed_, -features.grad.sum(dim=0))
