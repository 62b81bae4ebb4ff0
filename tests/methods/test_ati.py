"""ATI-lambda: the assignment, the map, and both in turn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, milp

from opensetda import SourceOnly
from opensetda.methods.rivals.ati import ATI, OUTLIER, assign, fit_map, outlier_cost

# The assignment ---------------------------------------------------------------------------


def cost_of(labels, distances, cost):
    rows = np.arange(len(labels))
    return np.where(labels == OUTLIER, cost, distances[rows, labels]).sum()


def solve_as_printed(distances, cost):
    """The paper's binary linear program, given to a solver: the smallest sum."""
    n, n_classes = distances.shape
    x = np.arange(n * n_classes).reshape(n, n_classes)
    one_each = np.zeros((n, n * n_classes + n))
    every_class = np.zeros((n_classes, n * n_classes + n))
    for t in range(n):
        one_each[t, x[t]] = 1
        one_each[t, n * n_classes + t] = 1
    for c in range(n_classes):
        every_class[c, x[:, c]] = 1
    objective = np.r_[distances.ravel(), np.full(n, cost)]
    found = milp(
        objective,
        constraints=[LinearConstraint(one_each, 1, 1), LinearConstraint(every_class, 1, np.inf)],
        integrality=np.ones(len(objective)),
        bounds=(0, 1),
    )
    return found.fun


@pytest.mark.parametrize("seed", range(6))
def test_the_assignment_is_the_optimum_of_the_program(seed):
    rng = np.random.default_rng(seed)
    n_classes = int(rng.integers(2, 6))
    distances = rng.random((n_classes + int(rng.integers(0, 8)), n_classes))
    # One class is far from everybody, another nearest to all: the constraint binds.
    distances[:, 0] += 1.0
    distances[:, -1] *= 0.2
    cost = float(rng.choice([0.05, 0.2, 0.5, 2.0]))
    labels = assign(distances, cost)
    assert set(range(n_classes)) <= set(labels)
    assert cost_of(labels, distances, cost) == pytest.approx(solve_as_printed(distances, cost))


def test_the_rules_for_lambda():
    distances = np.array([[1.0, 9.0], [2.0, 7.0], [6.0, 3.0], [8.0, 4.0]])
    assert outlier_cost(distances, "none", 0.5) == np.inf
    assert outlier_cost(distances, "range", 0.5) == 5.0
    cost = outlier_cost(distances, "share", 0.5)
    assert 2 < cost < 3
    assert outlier_cost(distances, "share", 0.0) == 4.0


# The map ----------------------------------------------------------------------------------


def test_the_map_minimises_the_sum_over_all_pairs():
    rng = np.random.default_rng(1)
    y = np.r_[0, 0, 0, 1, 1, 2]
    rows, targets = rng.normal(size=(6, 3)), rng.normal(size=(9, 3))
    labels = np.r_[0, 0, 1, 1, 1, 2, OUTLIER, OUTLIER, 0]
    ridge = 0.3
    hold = ridge * (rows**2).mean()

    def loss(W):
        total = hold * ((W - np.eye(3)) ** 2).sum()
        assigned = (labels != OUTLIER).sum()
        for t, label in zip(targets, labels, strict=True):
            if label != OUTLIER:
                members = rows[y == label] @ W
                total += ((members - t) ** 2).sum(axis=1).mean() / assigned
        return total

    found = fit_map(rows, y, targets, labels, ridge)
    for step in rng.normal(size=(50, 3, 3)) * 1e-3:
        assert loss(found + step) > loss(found)


# Both in turn -----------------------------------------------------------------------------


def turned_task(seed=0, per_class=25, width=12):
    """Classes on a sphere; the target is turned by a good part of the way to the next class."""
    rng = np.random.default_rng(seed)
    centres = np.linalg.qr(rng.normal(size=(width, width)))[0][:9] * 6
    skew = rng.normal(size=(width, width))
    skew = 0.6 * (skew - skew.T) / np.sqrt(width)
    turn = np.linalg.inv(np.eye(width) - skew / 2) @ (np.eye(width) + skew / 2)
    y = np.repeat(np.arange(6), per_class)
    z = np.repeat(np.arange(9), per_class)
    source = centres[y] + rng.normal(size=(len(y), width))
    target = (centres[z] + rng.normal(size=(len(z), width))) @ turn
    X = np.concatenate([source, target])
    truth = np.where(z < 6, z, 9)
    return X, np.r_[y, np.zeros(len(z), int)], np.repeat([0, -1], [len(y), len(z)]), truth


@pytest.fixture(scope="module")
def turned():
    return turned_task()


def test_a_linear_shift_is_undone(turned):
    X, y, domain, truth = turned
    shared = {"openness": 1 / 3, "unknown_label": 9}
    adapted = ATI(ridge=0.3, **shared).fit(X, y, domain)
    assert (adapted.transduction_ == truth).mean() > 0.95
    alone = SourceOnly(rejector="osvm", **shared).fit(X, y, domain)
    assert (alone.transduction_ == truth).mean() < 0.85
    # The outliers are the unknowns, and the iterations come to rest.
    outliers = [entry["outliers"] for entry in adapted.history_]
    assert outliers == pytest.approx([1 / 3] * len(outliers), abs=0.02)
    assert len(adapted.history_) < 10
    assert adapted.step_labels_.shape == (len(adapted.history_), len(truth))
    right = [(labels == np.where(truth == 9, 6, truth)).mean() for labels in adapted.step_labels_]
    assert right[-1] > right[0]
