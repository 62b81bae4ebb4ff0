"""DAOD: the open set difference by hand, the closed form against its objective."""

from __future__ import annotations

import numpy as np
import pytest

from network_helpers import refused, tensor
from opensetda.baselines.daod import (
    DAOD,
    Regression,
    Weights,
    gaussian_kernel,
    graph_laplacian,
    mean_differences,
    open_set_difference,
)
from opensetda.context import FitContext
from opensetda.openness.audit import Audit, CheckedTargets


@pytest.fixture(scope="module")
def fitted(task):
    return DAOD().fit(task.X, task.y, task.domain)


# The open set difference ------------------------------------------------------------------

CAT, DOG, UNKNOWN = np.eye(3)


def test_the_open_set_difference_by_hand():
    source = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    target = np.array([[0.0, 0.0, 0.5], [1.0, 0.0, 1.0]])
    # As unknowns the source costs (1.5 + 0) / 2, the target (0.25 + 1) / 2.
    assert open_set_difference(source, target, 0.0) == pytest.approx(0.625 - 0.75)
    assert open_set_difference(source, target, 0.5) == pytest.approx(1.25 - 0.75)
    assert open_set_difference(source, target, 0.75) == pytest.approx(2.5 - 0.75)


def test_a_classifier_that_is_right_has_no_open_set_difference():
    """Three targets of eight are unknown: the five known ones cost 5/8 / (5/8), as the source."""
    source = np.stack([CAT, DOG, CAT, DOG])
    target = np.stack([CAT, CAT, DOG, DOG, DOG, UNKNOWN, UNKNOWN, UNKNOWN])
    assert open_set_difference(source, target, 3 / 8) == pytest.approx(0.0)
    taken_for_known = np.stack([CAT, CAT, DOG, DOG, DOG, UNKNOWN, UNKNOWN, DOG])
    assert open_set_difference(source, taken_for_known, 3 / 8) == pytest.approx(2 / 8 / (5 / 8))
    rejected = np.stack([CAT, CAT, DOG, DOG, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN])
    assert open_set_difference(source, rejected, 3 / 8) == pytest.approx(-2 / 8 / (5 / 8))
    source_rejected = np.stack([CAT, DOG, CAT, UNKNOWN])
    assert open_set_difference(source_rejected, target, 3 / 8) == pytest.approx(2 / 4)


# The closed form --------------------------------------------------------------------------

WEIGHTS = Weights(
    alpha=0.6,
    gamma=0.3,
    discrepancy=20.0,
    conditional=0.4,
    manifold=2.0,
    ridge=0.7,
    neighbours=4,
)


@pytest.fixture(scope="module")
def problem():
    """Rows of both domains, source classes, and labels of the targets, 3 for unknown."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 6))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, rng.permutation(np.arange(15) % 3), rng.integers(0, 4, size=25)


def kernel_of(rows):
    return gaussian_kernel(tensor(rows), tensor(rows)).numpy()


def objective(coefficients, rows, y, labels, weights):
    """The paper's objective, term by term, times the larger number of rows."""
    kernel = np.exp(-((rows[:, None] - rows) ** 2).sum(axis=2) / 2)
    f = kernel @ coefficients
    of_source, of_target = f[: len(y)], f[len(y) :]
    risk = ((of_source - np.eye(4)[y]) ** 2).sum(axis=1).mean()
    # alpha = gamma / (1 - share) makes both open set terms one difference.
    share = 1 - weights.gamma / weights.alpha
    difference = weights.gamma * open_set_difference(of_source, of_target, share)
    known = labels < 3
    apart = [
        weights.conditional
        * ((of_source[y == c].mean(axis=0) - of_target[labels == c].mean(axis=0)) ** 2).sum()
        for c in range(3)
    ]
    means = of_source.mean(axis=0) - of_target[known].mean(axis=0)
    apart.append((1 - weights.conditional) * 3 * (means**2).sum())
    columns = np.zeros((len(rows), 4))
    for c in range(3):
        columns[: len(y), c] = (y == c) / (y == c).sum()
        columns[len(y) :, c] = -1.0 * (labels == c) / (labels == c).sum()
    columns[: len(y), 3] = 1 / len(y)
    columns[len(y) :, 3] = -1.0 * known / known.sum()
    factors = np.array([weights.conditional] * 3 + [(1 - weights.conditional) * 3])
    norm = np.linalg.norm(columns @ np.diag(factors) @ columns.T)
    laplacian = graph_laplacian(rows, weights.neighbours).toarray()
    return (
        max(len(y), len(labels)) * (risk + difference)
        + weights.discrepancy * sum(apart) / norm
        + weights.manifold * np.trace(f.T @ laplacian @ f)
        + weights.ridge * np.trace(coefficients.T @ kernel @ coefficients)
    )


def test_the_closed_form_is_the_minimum_of_the_objective(problem):
    rows, y, labels = problem
    best = Regression(rows, y, 3, WEIGHTS).coefficients(labels)
    lowest = objective(best, rows, y, labels, WEIGHTS)
    rng = np.random.default_rng(1)
    for _ in range(20):
        step = rng.normal(size=best.shape)
        above = [objective(best + h * step, rows, y, labels, WEIGHTS) for h in (-1e-3, 1e-3)]
        assert min(above) > lowest
        # A quadratic function: at its minimum both sides rise by the same.
        assert above[0] - lowest == pytest.approx(above[1] - lowest, rel=1e-5)


@pytest.mark.parametrize(("changed", "grows"), [({"alpha": 0.9}, True), ({"gamma": 0.6}, False)])
def test_alpha_draws_targets_to_unknown_and_gamma_holds_them_back(problem, changed, grows):
    rows, y, labels = problem
    values = []
    for weights in (WEIGHTS, WEIGHTS._replace(**changed)):
        coefficients = Regression(rows, y, 3, weights).coefficients(labels)
        values.append((kernel_of(rows) @ coefficients)[len(y) :, 3].mean())
    assert (values[1] > values[0] + 0.02) == grows
    assert (values[1] < values[0] - 0.02) != grows


def test_the_distance_of_the_domains_shrinks_with_its_weight(problem):
    rows, y, labels = problem
    columns, _ = mean_differences(y, labels, 3, 0.4)
    apart = []
    for discrepancy in (0.0, 5.0, 500.0):
        weights = WEIGHTS._replace(discrepancy=discrepancy)
        coefficients = Regression(rows, y, 3, weights).coefficients(labels)
        apart.append(np.linalg.norm(columns.T @ kernel_of(rows) @ coefficients))
    assert apart[0] > 1.5 * apart[1] > 3 * apart[2]


def test_a_class_that_no_target_has_is_left_out(problem):
    _, y, _ = problem
    columns, factors = mean_differences(y, np.array([0, 0, 2, 3]), 3, 0.5)
    assert (factors > 0).tolist() == [True, False, True, True]
    assert np.linalg.norm(columns @ np.diag(factors) @ columns.T) == pytest.approx(1)
    none, factors = mean_differences(y, np.full(4, 3), 3, 0.5)
    assert not factors.any()
    assert np.isfinite(none).all()


def test_the_graph_joins_nearest_neighbours():
    angles = np.radians([0, 10, 30, 100, 110])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    laplacian = graph_laplacian(rows, 1).toarray()
    joined = (laplacian < 0).astype(int)
    expected = np.zeros((5, 5), dtype=int)
    for i, j in ((0, 1), (1, 2), (3, 4)):
        expected[i, j] = expected[j, i] = 1
    np.testing.assert_array_equal(joined, expected)
    near, far = np.cos(np.radians([10, 20]))
    # Row 1 has both neighbours, row 0 has row 1 alone.
    assert laplacian[0, 1] == pytest.approx(-near / np.sqrt(near * (near + far)))
    assert np.linalg.eigvalsh(laplacian).min() > -1e-12


# A problem with a known answer ------------------------------------------------------------


def test_classes_and_unknowns_are_found(fitted, task):
    """Two classes of six are unknown; the regression says so itself."""
    assert (fitted.transduction_ == task.truth).mean() > 0.9
    assert fitted.openness_ == pytest.approx(1 / 3, abs=0.1)
    assert fitted.rejection_threshold_ == 0


def test_a_share_that_is_told_is_kept(task):
    for openness in (0.0, 0.5):
        told = DAOD(openness).fit(task.X, task.y, task.domain)
        assert (told.transduction_ == "unknown").mean() == openness
        assert told.history_[-1]["openness"] == openness


def test_a_share_that_is_told_sets_the_weight_of_the_targets():
    assert DAOD(gamma=0.3)._weights(0.5).alpha == pytest.approx(0.6)
    assert DAOD(alpha=0.7, gamma=0.3)._weights(None).alpha == 0.7


def test_an_audited_share_is_kept_too(task):
    unknown = np.arange(24) < 12
    audit = Audit(np.arange(24), unknown, np.zeros(24, dtype=bool))
    context = FitContext(checked=CheckedTargets(12, 12, audit))
    audited = DAOD().fit(task.X, task.y, task.domain, context=context)
    share = audited.openness_report_.share
    assert audited.history_[-1]["openness"] == pytest.approx(share, abs=0.01)


def test_rounds_stop_when_no_label_changes(fitted):
    changed = [entry["changed"] for entry in fitted.history_]
    assert [entry["step"] for entry in fitted.history_] == list(range(1, len(changed) + 1))
    assert changed[-1] == 0
    assert all(changed[:-1])
    assert all(np.isfinite(entry["open_set_difference"]) for entry in fitted.history_)


def test_a_sample_of_each_domain_is_enough(task):
    sampled = DAOD(task.openness, most_rows=30).fit(task.X, task.y, task.domain)
    # Of the source the first of each class: seven of each of four.
    assert len(sampled.scorer_.rows) == 28 + 30
    assert len(sampled.transduction_) == len(task.target)
    assert (sampled.transduction_ == task.truth).mean() > 0.85


@pytest.mark.parametrize(
    "parameters",
    [
        {"alpha": -1.0},
        {"gamma": 1.0},
        {"discrepancy": float("nan")},
        {"conditional": 1.5},
        {"manifold": -0.1},
        {"ridge": 0.0},
        {"neighbours": 0},
        {"iterations": 0},
        {"most_rows": 0},
    ],
    ids=lambda parameters: next(iter(parameters)),
)
def test_values_out_of_range_are_refused(task, parameters):
    refused(DAOD(**parameters), task, next(iter(parameters)))
