"""The metric from the spread within classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opensetda.methods.means.scorer import (
    LabelledRows,
    scatter_within_classes,
    whitening_within_classes,
)

C = 3
NO_MAP = torch.eye(4, dtype=torch.float64)


def drawn(spread, n=300, seed=0):
    """Rows of C classes with this standard deviation along each axis."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % C
    rows = 5 * np.eye(C, len(spread))[labels] + rng.normal(size=(n, len(spread))) * spread
    return LabelledRows(torch.from_numpy(rows.astype(np.float32)), torch.from_numpy(labels))


def test_the_scatter_is_that_around_the_class_means():
    rows, labels = drawn([1.0, 2.0, 0.5, 0.1])
    around = [rows[labels == c] - rows[labels == c].mean(dim=0) for c in range(C)]
    expected = np.cov(torch.cat(around).numpy().T, bias=True)
    found = scatter_within_classes(rows, labels, C)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_unknown_unlabelled_and_single_rows_are_left_out():
    rows, labels = drawn([1.0, 2.0, 0.5, 0.1])
    far = 100 * torch.ones(3, 4)
    others = torch.tensor([C, -1, C])
    with_others = scatter_within_classes(torch.cat([rows, far]), torch.cat([labels, others]), C)
    assert torch.equal(with_others, scatter_within_classes(rows, labels, C))
    alone = scatter_within_classes(
        torch.cat([rows, far[:1]]), torch.cat([labels, torch.tensor([C])]), C + 1
    )
    assert torch.equal(alone, scatter_within_classes(rows, labels, C))


def test_after_the_map_the_classes_spread_alike():
    domains = [drawn([1.0, 3.0, 0.3, 0.1], seed=seed) for seed in (0, 1)]
    whitening = whitening_within_classes(domains, C, 1e-6).float()
    mapped = [(rows @ whitening.t(), labels) for rows, labels in domains]
    mean = sum(scatter_within_classes(*domain, C) for domain in mapped) / 2
    np.testing.assert_allclose((mean / mean[0, 0]).numpy(), np.eye(4), atol=1e-3)


def test_a_large_ridge_changes_nothing():
    whitening = whitening_within_classes([drawn([1.0, 3.0, 0.3, 0.1])], C, 1e9)
    np.testing.assert_allclose(whitening.numpy(), np.eye(4), atol=1e-6)


@pytest.mark.parametrize("labels", [torch.full((4,), -1), torch.tensor([0, 1, 2, 3])])
def test_without_spread_there_is_no_map(labels):
    assert torch.equal(
        whitening_within_classes([LabelledRows(torch.eye(4), labels)], 4, 0.3), NO_MAP
    )
