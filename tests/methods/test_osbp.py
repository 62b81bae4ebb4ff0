"""OSBP: the boundary at one half, who descends and who climbs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from network_helpers import random_batch, shifted_task, tensor

from opensetda.methods.network_parts import reversal_strength
from opensetda.methods.rivals.osbp import OSBP, OSBPNetwork, boundary_loss

# The features only come to move targets late: with the usual rate, not in so few iterations.
SMALL = {"iterations": 150, "rate": 5e-3, "batch_size": 32, "random_state": 0}


@pytest.fixture(scope="module")
def shifted():
    return shifted_task()


@pytest.fixture(scope="module")
def fitted(shifted):
    return OSBP(**SMALL).fit(shifted.X, shifted.y, shifted.domain)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return OSBPNetwork(6, 3, True, OSBP(reversal=0.8))


def logits_of(fitted, rows):
    network = fitted.scorer_
    with torch.no_grad():
        return network.classifier(network.embed(tensor(rows))).numpy()


# The boundary -----------------------------------------------------------------------------


def test_the_loss_by_hand():
    # Probabilities of unknown: 2 / 4, and 6 / 8.
    logits = torch.log(torch.tensor([[1.0, 1.0, 2.0], [1.0, 1.0, 6.0]]))
    first = math.log(2)
    second = -0.5 * math.log(0.75) - 0.5 * math.log(0.25)
    assert boundary_loss(logits, 0.5).item() == pytest.approx((first + second) / 2)
    second = -0.2 * math.log(0.75) - 0.8 * math.log(0.25)
    assert boundary_loss(logits[1:], 0.2).item() == pytest.approx(second)


def test_the_features_climb_where_the_classifier_descends(network):
    batch = random_batch(6, 3, progress=0.5)
    loss = network.target_losses(batch)["boundary"]
    plain = boundary_loss(network.classifier(network.features(batch.target)), 0.5)
    assert loss.item() == plain.item()
    weights = [network.bottleneck[0].weight, network.classifier.weight]
    reversed_gradient, classifiers = torch.autograd.grad(loss, weights)
    straight, same = torch.autograd.grad(plain, weights)
    torch.testing.assert_close(reversed_gradient, -0.8 * reversal_strength(0.5) * straight)
    torch.testing.assert_close(classifiers, same)


# A problem with a known answer ------------------------------------------------------------


def test_classes_and_unknowns_are_found(fitted, shifted):
    """One class of four is unknown, and nobody told how many."""
    assert (fitted.transduction_ == shifted.truth).mean() > 0.87
    assert fitted.decision_.threshold == 0
    assert fitted.openness_ == np.mean(fitted.transduction_ == "unknown")


def test_the_label_is_the_largest_output(fitted, shifted):
    logits = logits_of(fitted, shifted.target)
    names = np.array([*fitted.classes_, "unknown"])
    np.testing.assert_array_equal(names[logits.argmax(axis=1)], fitted.transduction_)
    np.testing.assert_array_equal(names[logits.argmax(axis=1)], fitted.predict(shifted.target))
