"""The rejection cut against its definition: the nearest end of a group of equal scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensetda.openness.mixtures import rejection_cut

FEW = [-np.inf, -2.5, -0.0, 0.0, 5e-324, 1.0, np.nextafter(1.0, 2.0), 1e300, np.inf]


@st.composite
def score_arrays(draw):
    n = draw(st.integers(0, 300))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["few", "two", "one", "normal", "rounded", "bits"]))
    if kind == "normal":
        return rng.normal(size=n)
    if kind == "rounded":
        return rng.random(n).round(draw(st.integers(1, 3)))
    if kind == "bits":
        scores = rng.integers(0, 2**64, n, dtype=np.uint64).view(np.float64)
        return np.where(np.isnan(scores), 0.0, scores)
    values = rng.permutation(FEW)[: {"few": 9, "two": 2, "one": 1}[kind]]
    return rng.choice(values, n)


def by_definition(scores, share):
    ordered = np.sort(scores)
    gaps = np.flatnonzero(np.diff(ordered) > 0) + 1
    places = np.concatenate([[0], gaps, [len(ordered)]])
    below = int(places[np.abs(places - round(share * len(ordered))).argmin()])
    if below == 0:
        return -np.inf
    if below == len(ordered):
        return np.nextafter(ordered[-1], np.inf)
    middle = (ordered[below - 1] + ordered[below]) / 2
    return middle if middle > ordered[below - 1] else ordered[below]


@given(score_arrays(), st.floats(0, 1))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_cut_is_at_the_nearest_end_of_a_group(scores, share):
    assert rejection_cut(scores, share) == by_definition(scores, share)
