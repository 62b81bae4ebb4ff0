"""MMD: the discrepancy by hand, and features that meet where the domains are apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from network_helpers import shifted_task

from opensetda.methods.rivals.mmd import BANDWIDTHS, MMD, mean_discrepancy

SMALL = {"iterations": 60, "batch_size": 32, "random_state": 0}


def test_the_discrepancy_of_single_points_by_hand():
    """Of one point each, the mean squared distance is theirs: d^2 drops out of the kernels."""
    one, other = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    # Both pairs (a, b) and (b, a) have 25, and there are no others: the scale is 25.
    expected = sum(1 + 1 - 2 * np.exp(-1 / width) for width in BANDWIDTHS)
    assert mean_discrepancy(one, other).item() == pytest.approx(expected, rel=1e-6)


def test_equal_samples_have_none_and_it_grows_with_the_shift():
    rows = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    assert mean_discrepancy(rows, rows).item() == pytest.approx(0, abs=1e-6)
    shifted = [mean_discrepancy(rows, rows + step).item() for step in (0.2, 0.5, 1.0)]
    assert 0 < shifted[0] < shifted[1] < shifted[2]


def test_the_weight_makes_the_domains_more_alike():
    task = shifted_task()
    distance = {}
    for weight in (1e-6, 10.0):
        fitted = MMD(openness=task.openness, weight=weight, **SMALL).fit(
            task.X, task.y, task.domain
        )
        rows = torch.from_numpy(fitted.transform(task.X, task.domain))
        is_source = torch.from_numpy(task.domain >= 0)
        distance[weight] = mean_discrepancy(rows[is_source], rows[~is_source]).item()
        assert np.mean(fitted.transduction_ == task.truth) > 0.85
    assert distance[10.0] < 0.9 * distance[1e-6]
