"""STA: who teaches the separator, what the soft weights do, the stages, the contract."""

from __future__ import annotations

import math

import pytest
import torch
from network_helpers import random_batch, shifted_task

from opensetda.methods.rivals.sta import (
    ALIGNED_FROM,
    RANKED_FROM,
    STA,
    STANetwork,
    separation_loss,
    unknown_loss,
    weighted_domain_loss,
)

SMALL = {"iterations": 100, "batch_size": 32, "random_state": 0}


@pytest.fixture(scope="module")
def shifted():
    return shifted_task()


@pytest.fixture(scope="module")
def fitted(shifted):
    return STA(**SMALL).fit(shifted.X, shifted.y, shifted.domain)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return STANetwork(6, 3, True, STA(extremes=0.25))


# Step 1: who seems known ------------------------------------------------------------------


def test_the_ends_of_the_ranking_teach_the_separator():
    similarity = torch.tensor([0.5, 0.9, 0.1, 0.4, 0.6, 0.2, 0.8, 0.3])
    separation = torch.arange(1.0, 9.0, requires_grad=True)
    loss = separation_loss(separation, similarity, 0.25)
    # Known: 1 and 6 (logits 2 and 7). Unknown: 2 and 5 (logits 3 and 6).
    expected = [math.log1p(math.exp(-2)), math.log1p(math.exp(-7))]
    expected += [math.log1p(math.exp(3)), math.log1p(math.exp(6))]
    assert loss.item() == pytest.approx(sum(expected) / 4)
    loss.backward()
    assert torch.sign(separation.grad).tolist() == [0, -1, 1, 0, 0, 1, -1, 0]


# Step 2: soft weights ---------------------------------------------------------------------


def test_targets_are_aligned_as_much_as_they_seem_known():
    source, target = torch.tensor([0.0, 0.0]), torch.tensor([1.0, -2.0])
    weights = torch.tensor([0.75, 0.25])
    loss = weighted_domain_loss(source, target, weights)
    costs = [math.log1p(math.exp(-1)), math.log1p(math.exp(2))]
    assert loss.item() == pytest.approx(math.log(2) + 0.75 * costs[0] + 0.25 * costs[1])
    # The weights are relative: half of them is the same.
    assert weighted_domain_loss(source, target, weights / 2).item() == pytest.approx(loss.item())


def test_unknowns_are_learned_from_targets_that_seem_unknown():
    logits = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]], requires_grad=True)
    second = math.log(sum(math.exp(z) for z in (1, 2, 3))) - 3
    loss = unknown_loss(logits, torch.tensor([0.8, 0.4]))
    # Two classes: a half of the mean with weights 0.2 and 0.6.
    assert loss.item() == pytest.approx((0.2 * math.log(3) + 0.6 * second) / 0.8 / 2)
    unknown_loss(logits, torch.tensor([1.0, 0.4])).backward()
    assert not logits.grad[0].any()
    assert logits.grad[1, 2] < 0


def test_no_gradient_reaches_the_separator_through_the_weights(network):
    losses = network.target_losses(random_batch(6, 3, progress=0.9))
    step_two = losses["domain"] + losses["unknown"] + losses["entropy"]
    parameters = [*network.separator.parameters(), *network.one_against_rest.parameters()]
    gradients = torch.autograd.grad(step_two, parameters, allow_unused=True, retain_graph=True)
    assert all(gradient is None for gradient in gradients)
    (gradient,) = torch.autograd.grad(losses["separation"], network.separator[0].weight)
    assert gradient.any()


# Stages -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("progress", "names"),
    [
        (RANKED_FROM - 0.01, set()),
        (RANKED_FROM, {"separation"}),
        (ALIGNED_FROM - 0.01, {"separation"}),
        (ALIGNED_FROM, {"separation", "domain", "unknown", "entropy"}),
    ],
)
def test_losses_of_each_stage(network, progress, names):
    batch = random_batch(6, 3, progress=progress)
    assert {*network.target_losses(batch)} == names
    assert {*network.source_losses(batch)} == {"class", "one_against_rest"}


# A problem with a known answer ------------------------------------------------------------


def test_classes_and_unknowns_are_found(fitted, shifted):
    """One class of four is unknown; the classifier of C + 1 says so itself."""
    assert (fitted.transduction_ == shifted.truth).mean() > 0.9
    assert fitted.decision_.threshold == 0
