"""The losses against their formulas, and that each can be switched off."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from opensetda.nn.parts import Discriminator, reversal_strength
from opensetda.pgl.graph import normalised_edges
from opensetda.pgl.losses import (
    MEAN_SCALE,
    class_mean_loss,
    domain_loss,
    edge_affinity_loss,
    focal_loss,
    graph_losses,
    labelled_pairs,
    normalised_edge_loss,
)
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.settings import GraphSettings, LossSettings

C = 3


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_focal_without_focusing_is_cross_entropy():
    logits, labels = randn(8, C), torch.arange(8) % C
    torch.testing.assert_close(focal_loss(logits, labels, 0), F.cross_entropy(logits, labels))


def test_focal_by_hand():
    logits, labels = torch.log(torch.tensor([[0.8, 0.2], [0.3, 0.7]])), torch.tensor([0, 0])
    expected = (0.2**2 * -math.log(0.8) + 0.7**2 * -math.log(0.3)) / 2
    assert float(focal_loss(logits, labels, 2)) == pytest.approx(expected)


@pytest.mark.parametrize("focusing", [0.0, 0.5, 2.0])
def test_focal_has_a_finite_gradient_where_everything_is_right(focusing):
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    focal_loss(logits, torch.tensor([0]), focusing).backward()
    assert logits.grad.isfinite().all()


def test_class_mean_loss_by_hand():
    means = torch.eye(2)
    x = torch.tensor([[0.6, 0.8], [-0.8, 0.6], [1.0, 0.0]])
    known = class_mean_loss(x[:1], torch.tensor([0]), means)
    assert float(known) == pytest.approx(math.log(1 + math.exp(MEAN_SCALE * 0.2)))
    both = class_mean_loss(x[:2], torch.tensor([0, 2]), means)
    assert float(both - known) == pytest.approx(MEAN_SCALE / 2 * 0.6**2)
    # A sample without a label has no part in it.
    assert float(class_mean_loss(x, torch.tensor([0, 2, -1]), means)) == float(both)


def test_pairs_that_count():
    # known 0, 0, 1, unknown, unknown, unlabelled
    labels = torch.tensor([0, 0, 1, C, C, -1])
    same, different = labelled_pairs(labels, C)
    assert same.nonzero().tolist() == [[0, 1], [1, 0]]
    pairs = {tuple(sorted(pair)) for pair in different.nonzero().tolist()}
    assert pairs == {(0, 2), (1, 2), (0, 3), (0, 4), (1, 3), (1, 4), (2, 3), (2, 4)}
    assert torch.equal(different, different.t())


def test_edge_loss_gives_half_the_weight_to_the_rare_pairs_of_one_class():
    labels, logits = torch.tensor([0, 0, 1, C, -1]), randn(5, 5)
    positive = [F.softplus(-logits[i, j]) for i, j in [(0, 1), (1, 0)]]
    negative = [
        F.softplus(logits[i, j]) for i in range(4) for j in range(4) if i != j and {i, j} != {0, 1}
    ]
    expected = (sum(positive) / len(positive) + sum(negative) / len(negative)) / 2
    torch.testing.assert_close(edge_affinity_loss(logits, labels, C), expected)


@pytest.mark.parametrize(("i", "j"), [(2, 3), (4, 0), (4, 2), (1, 1), (2, 2)])
def test_edges_that_do_not_count_have_no_gradient(i, j):
    labels, logits = torch.tensor([0, 0, C, C, -1]), randn(5, 5).requires_grad_()
    edge_affinity_loss(logits, labels, C).backward()
    assert logits.grad[i, j] == 0
    assert logits.grad[0, 1] < 0  # one class: pulled together
    assert logits.grad[0, 2] > 0  # known and unknown: pushed apart


@pytest.mark.parametrize("labels", [[-1, -1], [C, C], [0, -1]])
def test_edge_loss_without_a_pair_is_zero(labels):
    logits = randn(2, 2).requires_grad_()
    loss = edge_affinity_loss(logits, torch.tensor(labels), C)
    loss.backward()
    assert loss == 0
    assert (logits.grad == 0).all()


def test_edge_loss_with_one_kind_of_pairs_only():
    logits = randn(2, 2)
    expected = F.softplus(-logits[~torch.eye(2, dtype=torch.bool)]).mean()
    torch.testing.assert_close(edge_affinity_loss(logits, torch.tensor([1, 1]), C), expected)


def test_the_papers_edge_loss_is_on_normalised_edges_of_known_nodes():
    labels = torch.tensor([0, 1, 0, C, -1])
    edges = normalised_edges(torch.sigmoid(randn(5, 5)))
    terms = []
    for i in range(3):
        for j in range(3):
            truth = labels[i] == labels[j]
            terms.append(-torch.log(edges[i, j]) if truth else -torch.log(1 - edges[i, j]))
    torch.testing.assert_close(normalised_edge_loss(edges, labels, C), sum(terms) / 9)


def test_the_papers_edge_loss_is_finite_at_the_ends():
    edges = torch.tensor([[1.0, 1.0], [0.0, 1.0]], requires_grad=True)
    loss = normalised_edge_loss(edges, torch.tensor([0, 1]), C)
    loss.backward()
    assert loss.isfinite()
    assert edges.grad.isfinite().all()


def discriminator(width=4):
    torch.manual_seed(0)
    return Discriminator(width)


def test_domain_loss_by_hand():
    d, v = discriminator(), randn(6, 4)
    is_target = torch.tensor([False, False, False, False, True, True])
    loss = domain_loss(d, v, is_target, torch.ones(6, dtype=torch.bool), 1.0)
    p = torch.sigmoid(d(v, 1.0))
    expected = -torch.log(1 - p[:4]).mean() - torch.log(p[4:]).mean()
    torch.testing.assert_close(loss, expected)


def test_domain_loss_leaves_out_what_is_not_aligned():
    d, v = discriminator(), randn(6, 4)
    is_target, aligned = torch.arange(6) >= 3, torch.arange(6) != 5
    loss = domain_loss(d, v, is_target, aligned, 1.0)
    shorter = domain_loss(d, v[:5], is_target[:5], aligned[:5], 1.0)
    torch.testing.assert_close(loss, shorter)
    assert loss != domain_loss(d, v, is_target, torch.ones(6, dtype=torch.bool), 1.0)


@pytest.mark.parametrize("target_is_aligned", [True, False])
def test_domain_loss_of_one_domain_alone_is_zero(target_is_aligned):
    is_target = torch.tensor([False, False, True])
    aligned = is_target if target_is_aligned else ~is_target
    assert domain_loss(discriminator(), randn(3, 4), is_target, aligned, 1.0) == 0


def gradient_of(strength):
    d, v = discriminator(), randn(6, 4).requires_grad_()
    domain_loss(d, v, torch.arange(6) >= 3, torch.ones(6, dtype=torch.bool), strength).backward()
    return v.grad, [p.grad for p in d.parameters()]


def test_the_reversal_flips_the_sign_for_the_backbone_alone():
    straight, theirs = gradient_of(-1.0)
    reversed_, ours = gradient_of(1.0)
    torch.testing.assert_close(reversed_, -straight)
    assert reversed_.abs().sum() > 0
    torch.testing.assert_close(gradient_of(0.25)[0], -0.25 * straight)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_the_reversal_is_ramped():
    strengths = [reversal_strength(p) for p in (0.0, 0.1, 0.5, 1.0)]
    assert strengths[0] == 0
    assert strengths == sorted(strengths)
    assert 0.99 < strengths[-1] < 1


LABELS = torch.tensor([0, 1, 2, 0, 1, 2, C, -1])
IS_TARGET = torch.arange(8) >= 3


def all_losses(graph=None, **changes):
    torch.manual_seed(0)
    network = PGLNetwork(6, C, graph or GraphSettings(edge_width=4, node_width=4, layers=2))
    settings = LossSettings(**{"node": 1.0, "edge": 1.0, "adversary": 1.0, **changes})
    output = network(randn(8, 6), LABELS)
    losses = graph_losses(
        output, LABELS, IS_TARGET, LABELS != C, network.discriminator, 1.0, settings
    )
    return output, losses


@pytest.mark.parametrize("name", ["node", "edge", "adversary"])
def test_each_loss_can_be_switched_off_and_weighted(name):
    _, plain = all_losses()
    _, without = all_losses(**{name: 0})
    _, double = all_losses(**{name: 2})
    assert set(plain) == {"node", "edge", "adversary"}
    assert set(without) == set(plain) - {name}
    for other in without:
        torch.testing.assert_close(without[other], plain[other])
    torch.testing.assert_close(double[name], 2 * plain[name])


def test_node_and_edge_losses_are_summed_over_the_layers():
    output, losses = all_losses()
    known = (LABELS >= 0) & (LABELS < C)
    node = sum(focal_loss(logits[known], LABELS[known], 2) for logits in output.class_logits)
    edge = sum(edge_affinity_loss(logits, LABELS, C) for logits in output.edge_logits)
    assert len(output.class_logits) == 2
    torch.testing.assert_close(losses["node"], node)
    torch.testing.assert_close(losses["edge"], edge)


def test_the_edge_target_chooses_the_edge_loss():
    output, losses = all_losses(edge_target="normalised")
    expected = sum(normalised_edge_loss(edges, LABELS, C) for edges in output.edges)
    torch.testing.assert_close(losses["edge"], expected)


def test_the_adversary_does_not_align_pseudo_unknown_targets():
    torch.manual_seed(0)
    network = PGLNetwork(6, C, GraphSettings(edge_width=4, node_width=4))
    output = network(randn(8, 6).requires_grad_(), LABELS)
    output.backbone.retain_grad()
    settings = LossSettings(node=0, edge=0, adversary=1)
    losses = graph_losses(
        output, LABELS, IS_TARGET, LABELS != C, network.discriminator, 1.0, settings
    )
    losses["adversary"].backward()
    pulled = output.backbone.grad.abs().sum(dim=1) > 0
    assert pulled.tolist() == [True] * 6 + [False, True]


def test_without_a_graph_there_is_no_edge_loss():
    _, losses = all_losses(graph=GraphSettings(enabled=False))
    assert set(losses) == {"node", "adversary"}
