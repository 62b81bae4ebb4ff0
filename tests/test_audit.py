"""The share of unknowns that an audited sample of the targets speaks for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from opensetda.openness.audit import audited_share


def test_the_share_is_that_of_the_sample_within_its_interval() -> None:
    """Nine of thirty are 30 %, and the interval narrows with the sample."""
    few, many = audited_share(9, 30), audited_share(90, 300)
    assert few.share == many.share == 0.3
    assert few.low < many.low < 0.3 < many.high < few.high
    assert str(few) == "0.30 (0.18 to 0.45)"


@pytest.mark.parametrize(("k", "n", "low", "high"), [(0, 30, 0, 0.1), (30, 30, 0.9, 1)])
def test_a_sample_of_one_kind_has_an_open_end(k: int, n: int, low: float, high: float) -> None:
    """No unknown among thirty does not exclude some."""
    found = audited_share(k, n)
    assert found.low >= low
    assert found.high <= high
    assert found.high - found.low > 0.03
    assert (found.low == 0) == (k == 0)
    assert (found.high == 1) == (k == n)


def test_nothing_audited_says_nothing() -> None:
    """An empty sample excludes no share; more unknowns than targets are a mistake."""
    assert (audited_share(0, 0).low, audited_share(0, 0).high) == (0, 1)
    with pytest.raises(ValueError, match="4 unknown of 3"):
        audited_share(4, 3)


def test_nine_of_ten_intervals_contain_the_share() -> None:
    """The average over shares is the promised confidence; single shares differ a little."""
    ends = [audited_share(k, 30) for k in range(31)]
    shares = np.linspace(0.01, 0.99, 99)
    covered = [
        sum(binom.pmf(k, 30, p) for k, found in enumerate(ends) if found.low <= p <= found.high)
        for p in shares
    ]
    assert np.mean(covered) == pytest.approx(0.9, abs=0.02)
    assert min(covered) > 0.8
