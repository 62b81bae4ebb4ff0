"""UniOT: marginals of its plans, filling, and later samples by the plan of the targets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from network_helpers import shifted_task, tensor

from opensetda import UniOT
from opensetda.methods.rivals.uniot import (
    ENTROPY,
    MARGINALS,
    UniOTNetwork,
    balanced_transport,
    log_plan,
    unbalanced_transport,
)

SMALL = {"iterations": 40, "batch_size": 32, "random_state": 0}


@pytest.fixture
def similarity():
    return tensor(np.random.default_rng(0).uniform(-1, 1, size=(30, 4)))


def test_the_balanced_plan_has_both_marginals(similarity):
    plan = balanced_transport(similarity, entropy=0.05, iterations=200)
    np.testing.assert_allclose(plan.sum(axis=1), 1 / 30, rtol=1e-9)
    np.testing.assert_allclose(plan.sum(axis=0), 1 / 4, rtol=1e-6)


def test_the_unbalanced_plan_is_a_maximum(similarity):
    """No small change of the plan raises what it maximises."""
    similarity = similarity.numpy()

    def objective(plan):
        rows, columns = plan.sum(axis=1), plan.sum(axis=0)

        def kl(p, q):
            return (p * np.log(p / q) - p + q).sum()

        entropy = -(plan * (np.log(plan) - 1)).sum()
        value = (similarity * plan).sum() + ENTROPY * entropy
        return value - MARGINALS * (kl(rows, 1 / len(plan)) + kl(columns, 1 / 4))

    start = torch.zeros(4, dtype=torch.float64)
    plan = unbalanced_transport(tensor(similarity), start, tolerance=1e-12)[0].numpy()
    best = objective(plan)
    rng = np.random.default_rng(1)
    for _ in range(50):
        changed = plan * np.exp(rng.normal(0, 0.01, plan.shape))
        assert objective(changed) < best


@pytest.fixture
def network():
    torch.manual_seed(0)
    network = UniOTNetwork(4, 2, True, UniOT(weight=0.1, groups=3, memory=8, filling=0.5))
    with torch.no_grad():
        network.classes.copy_(torch.eye(2, 4))
    return network


def test_filling_makes_near_and_far_equally_many(network):
    """The first class has what is near; what is far points elsewhere."""
    near, far = np.eye(1, 4), np.eye(4)[3:]
    for n_near, n_far in ((6, 2), (2, 6), (4, 4)):
        z = np.repeat([near[0], far[0]], [n_near, n_far], axis=0)
        filled = network.fill(tensor(z), tensor(z @ np.eye(2, 4).T)).numpy()
        assert len(filled) == abs(n_near - n_far)
        if n_near > n_far:
            # Half way to the class that it is farthest from: the cosine is below that of near ones.
            assert (filled.max(axis=1) < 0.99).all()
        elif n_far > n_near:
            np.testing.assert_allclose(filled, np.repeat([[1.0, 0.0]], len(filled), axis=0))


def test_unknowns_far_from_all_classes_are_found():
    task = shifted_task()
    fitted = UniOT(**SMALL).fit(task.X, task.y, task.domain)
    assert np.mean(fitted.transduction_ == task.truth) > 0.9


def test_the_known_score_is_the_weight_of_the_row_in_the_plan():
    task = shifted_task()
    fitted = UniOT(**SMALL).fit(task.X, task.y, task.domain)
    network = fitted.scorer_
    with torch.no_grad():
        similarity = network.similarity(network.embed(tensor(task.target)))
        logs = log_plan(similarity, network.potential)
    # The offset turns them into multiples of an equal share: about one half lies above.
    known = fitted.transduction_scores_
    np.testing.assert_allclose(known, logs.amax(dim=1) + network.offset, atol=1e-9)
    assert 0.3 < np.mean(known > 0) < 0.9
