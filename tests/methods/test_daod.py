"""DAOD: the open set difference by hand, the closed form against its objective."""

from __future__ import annotations

import numpy as np
import pytest

from opensetda.context import FitContext
from opensetda.methods.daod import DAOD, Regression, graph_laplacian
from opensetda.share.audit import Audit, CheckedTargets


@pytest.fixture(scope="module")
def fitted(task):
    return DAOD().fit(task.X, task.y, task.domain)


# The closed form --------------------------------------------------------------------------

WEIGHTS = DAOD(alpha=0.6, gamma=0.3, discrepancy=20.0, conditional=0.4, manifold=2.0, ridge=0.7)
WEIGHTS.set_params(neighbours=4)


@pytest.fixture(scope="module")
def problem():
    """Rows of both domains, source classes, and labels of the targets, 3 for unknown."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 6))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, rng.permutation(np.arange(15) % 3), rng.integers(0, 4, size=25)


def objective(coefficients, rows, y, labels, weights):
    """The paper's objective, term by term, times the larger number of rows."""
    kernel = np.exp(-((rows[:, None] - rows) ** 2).sum(axis=2) / 2)
    f = kernel @ coefficients
    of_source, of_target = f[: len(y)], f[len(y) :]
    risk = ((of_source - np.eye(4)[y]) ** 2).sum(axis=1).mean()
    as_unknown = [
        ((part - np.eye(4)[3]) ** 2).sum(axis=1).mean() for part in (of_source, of_target)
    ]
    difference = weights.alpha * as_unknown[1] - weights.gamma * as_unknown[0]
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
    best = Regression(rows, y, 3, WEIGHTS.alpha, WEIGHTS).coefficients(labels)
    lowest = objective(best, rows, y, labels, WEIGHTS)
    rng = np.random.default_rng(1)
    for _ in range(20):
        step = rng.normal(size=best.shape)
        above = [objective(best + h * step, rows, y, labels, WEIGHTS) for h in (-1e-3, 1e-3)]
        assert min(above) > lowest
        # A quadratic function: at its minimum both sides rise by the same.
        assert above[0] - lowest == pytest.approx(above[1] - lowest, rel=1e-5)


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
    assert fitted.decision_.threshold == 0


def test_an_audited_share_is_kept_too(task):
    unknown = np.arange(24) < 12
    audit = Audit(np.arange(24), unknown, np.zeros(24, dtype=bool))
    context = FitContext(checked=CheckedTargets(12, 12, audit))
    audited = DAOD().fit(task.X, task.y, task.domain, context=context)
    share = audited.openness_report_.share
    assert audited.history_[-1]["openness"] == pytest.approx(share, abs=0.01)
