"""OVANet: the hardest negative, the entropy of the open classifiers, the boundary at one half."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from network_helpers import shifted_task, tensor

from opensetda.methods.rivals.ovanet import OVANet, one_vs_all_loss, open_set_entropy

SMALL = {"iterations": 120, "batch_size": 32, "random_state": 0}


@pytest.fixture(scope="module")
def shifted():
    return shifted_task()


@pytest.fixture(scope="module")
def fitted(shifted):
    return OVANet(**SMALL).fit(shifted.X, shifted.y, shifted.domain)


def logits(probabilities):
    """One-vs-all logits with these probabilities."""
    p = torch.tensor(probabilities, dtype=torch.float64)
    return torch.log(p / (1 - p))


@torch.no_grad()
def outputs_of(fitted, task):
    network = fitted.scorer_
    return network.outputs(network.alignment(tensor(task.target)))


# The losses -------------------------------------------------------------------------------


def test_the_one_vs_all_loss_by_hand():
    """Of the wrong classifiers only the one that is nearest to yes counts."""
    outputs = logits([[0.8, 0.1, 0.4], [0.3, 0.5, 0.2]])
    first = -math.log(0.8) - math.log(1 - 0.4)
    second = -math.log(0.5) - math.log(1 - 0.3)
    loss = one_vs_all_loss(outputs, torch.tensor([0, 1]))
    assert loss.item() == pytest.approx((first + second) / 2)


def test_the_entropy_by_hand():
    """Averaged over all classifiers, the right one or not."""

    def entropy(p):
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    loss = open_set_entropy(logits([[0.8, 0.1], [0.5, 0.3]]))
    expected = (entropy(0.8) + entropy(0.1) + entropy(0.5) + entropy(0.3)) / 4
    assert loss.item() == pytest.approx(expected)


# A problem with a known answer ------------------------------------------------------------


def task_of_many_classes(known=8, classes=12, per_class=10, width=20):
    """Eight known classes and four unknown, all equally far from each other."""
    rng = np.random.default_rng(0)
    centres = 6 * np.eye(classes, width)
    source_class = np.repeat(np.arange(known), per_class)
    target_class = rng.permutation(np.repeat(np.arange(classes), per_class))
    rows = centres[np.concatenate([source_class, target_class])]
    X = (rows + rng.normal(size=rows.shape)).astype(np.float32)
    domain = np.repeat([0, -1], [len(source_class), len(target_class)])
    X[domain < 0, -1] += 2
    y = np.concatenate([source_class, np.full(len(target_class), -1)])
    return X, y, domain, np.where(target_class < known, target_class, 99)


def test_classes_and_unknowns_are_found():
    """A class's nearest other class is as far as an unknown one: the boundary lies between."""
    X, y, domain, truth = task_of_many_classes()
    found = OVANet(unknown_label=99, **SMALL).fit(X, y, domain)
    assert (found.transduction_ == truth).mean() > 0.9
    assert found.decision_.threshold == 0
    assert found.openness_ == np.mean(found.transduction_ == 99)


def test_the_nearest_classs_own_classifier_decides(fitted, shifted):
    closed, open_outputs = outputs_of(fitted, shifted)
    nearest = closed.argmax(dim=1).numpy()
    known = open_outputs.numpy()[np.arange(len(nearest)), nearest]
    expected = np.where(known < 0, "unknown", fitted.classes_[nearest])
    np.testing.assert_array_equal(fitted.predict(shifted.target), expected)
    # Not the largest of the open outputs: the closed-set classifier names the class.
    np.testing.assert_allclose(fitted.transduction_scores_, known, atol=1e-9)
