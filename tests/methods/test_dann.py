"""DANN: the domain loss by hand, and what the reversed gradient does."""

from __future__ import annotations

import math

import pytest
import torch
from network_helpers import random_batch

from opensetda.methods.network_parts import reversal_strength
from opensetda.methods.rivals.dann import DANN, DANNNetwork


@pytest.fixture
def network():
    torch.manual_seed(0)
    return DANNNetwork(6, 3, True, DANN(weight=2.0, rejector="quantile"))


def test_a_discriminator_that_knows_nothing_costs_log_two(network):
    last = network.discriminator.layers[-1]
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.zeros_(last.bias)
    losses = network.target_losses(random_batch(6, 3))
    assert losses["domain"].item() == pytest.approx(2.0 * math.log(2))


def test_features_climb_where_the_discriminator_descends(network):
    """The same loss, once with the gradient reversed and once without: opposite signs."""
    batch = random_batch(6, 3, progress=0.5)
    loss = network.target_losses(batch)["domain"]
    (reversed_gradient,) = torch.autograd.grad(
        loss, network.bottleneck[0].weight, retain_graph=True
    )
    (discriminators,) = torch.autograd.grad(loss, network.discriminator.layers[0].weight)
    plain = 0.0
    for rows, sign in ((batch.source, 1.0), (batch.target, -1.0)):
        logits = network.discriminator.layers(network.features(rows)).squeeze(-1)
        plain = plain + torch.nn.functional.softplus(sign * logits).mean()
    (straight,) = torch.autograd.grad(plain, network.bottleneck[0].weight, retain_graph=True)
    (same,) = torch.autograd.grad(plain, network.discriminator.layers[0].weight)
    # The weight 2 and the two halves cancel.
    torch.testing.assert_close(reversed_gradient, -reversal_strength(0.5) * straight)
    torch.testing.assert_close(discriminators, same)
