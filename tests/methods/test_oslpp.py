"""OSLPP: the projection, and who is selected and rejected."""

from __future__ import annotations

import numpy as np
import pytest

from opensetda.methods.rivals.oslpp import (
    OSLPP,
    locality_projection,
    principal_components,
    select_and_reject,
)
from opensetda.rows import Domains, Rows


@pytest.fixture(scope="module")
def fitted(task):
    return OSLPP(openness=task.openness).fit(task.X, task.y, task.domain)


# The projection ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def samples():
    """Known rows of three classes, their labels, and rejected rows, in six dimensions."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [5, 9, 14])
    return rng.normal(size=(28, 6)) + 2 * labels[:, None], labels, rng.normal(size=(7, 6)) - 3


def pairwise_matrices(known, labels, rejected):
    """X D X' and X L X' as the paper writes them, with a matrix M of all pairs."""
    X = np.concatenate([known, rejected]).T
    # A rejected sample has a label of its own: it is like itself alone.
    own = np.concatenate([labels, 100 + np.arange(len(rejected))])
    M = (own[:, None] == own).astype(float)
    D = np.diag(M.sum(axis=1))
    return X @ D @ X.T, X @ (D - M) @ X.T


def test_the_projection_solves_the_generalised_eigenproblem(samples):
    spread, scatter = pairwise_matrices(*samples)
    metric = scatter + np.eye(6)
    P = locality_projection(*samples, dimensions=4)
    np.testing.assert_allclose(P.T @ metric @ P, np.eye(4), atol=1e-8)
    values = np.diag(P.T @ spread @ P)
    np.testing.assert_allclose(spread @ P, metric @ P * values, rtol=1e-6, atol=1e-6)
    every = np.sort(np.linalg.eigvals(np.linalg.solve(metric, spread)).real)[::-1]
    np.testing.assert_allclose(values, every[:4], rtol=1e-8)


@pytest.mark.parametrize("n_rows", [9, 40], ids=["fewer-rows-than-features", "more-rows"])
def test_principal_components_are_those_of_unit_rows(n_rows):
    X = np.random.default_rng(0).normal(size=(n_rows, 20)).astype(np.float32)
    domains = Domains(
        source=Rows(X, np.arange(4)),
        y=np.arange(4),
        target=Rows(X, np.arange(4, n_rows)),
        classes=np.arange(4),
    )
    mean, directions = principal_components(domains, 5)
    unit = X.astype(float) / np.linalg.norm(X.astype(float), axis=1, keepdims=True)
    np.testing.assert_allclose(mean, unit.mean(axis=0))
    _, _, expected = np.linalg.svd(unit - unit.mean(axis=0))
    np.testing.assert_allclose(np.abs(expected[:5] @ directions), np.eye(5), atol=1e-8)


# Select and reject ------------------------------------------------------------------------


def test_counts_of_selected_and_rejected_grow_step_by_step():
    n, share = 100, 0.4
    known = np.random.default_rng(0).permutation(n).astype(float)
    nearest = np.where(np.arange(n) % 4 == 0, 0, 1)
    sizes = np.bincount(nearest[known >= 40])
    for step in range(1, 11):
        labels = select_and_reject(known, nearest, share, step / 10, 2)
        assert (labels == 2).sum() == 4 * step
        for label in (0, 1):
            assert (labels == label).sum() == -(-step * sizes[label] // 10)
    assert (labels >= 0).all()


# A problem with a known answer ------------------------------------------------------------


def test_classes_and_unknowns_are_found(fitted, task):
    assert (fitted.transduction_ == task.truth).mean() > 0.9
    assert (fitted.predict(task.target) == task.truth).mean() > 0.9
    assert (fitted.transduction_ == "unknown").sum() == round(len(task.target) / 3)
