"""Rows that are among others, up to rounding."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from opensetda.pgl.induction import SAME, same_rows


@given(
    seed=st.integers(0, 1000),
    width=st.integers(1, 6),
    scale=st.sampled_from([1e-7, 1e-3, 1.0, 1e3, 1e8]),
    gap=st.sampled_from([0.0, 0.3 * SAME, 0.99 * SAME, 1.01 * SAME, 3 * SAME, 1e-3]),
)
def test_same_rows_are_those_that_are_near(seed, width, scale, gap):
    rng = np.random.default_rng(seed)
    others = torch.from_numpy(scale * rng.normal(size=(12, width)))
    directions = torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(8, width))), dim=1)
    x = torch.cat([others[:8] + gap * directions, others[8:] * 2, torch.zeros(1, width)])
    found = same_rows(x, others, (others**2).sum(dim=1))
    expected = (x[:, None] - others[None]).norm(dim=2) < SAME
    assert torch.equal(found, expected)


def test_no_rows_and_no_others():
    x = torch.ones(3, 2, dtype=torch.float64)
    assert same_rows(x[:0], x, (x**2).sum(dim=1)).shape == (0, 3)
    assert same_rows(x, x[:0], x[:0, 0]).shape == (3, 0)
