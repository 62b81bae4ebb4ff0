"""The rejection cut over shards against that of one array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opensetda.openness.mixtures import rejection_cut
from opensetda.runs.large import keys_of, scores_of, shared_rejection_cut
from opensetda.system.team import Team
from team_helpers import in_threads

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


def shards(scores, size, step):
    """Return what gives each rank every `size`-th chunk of `step` scores."""

    def of(rank):
        starts = range(rank * step, len(scores), size * step)
        return lambda: (scores[at : at + step] for at in starts)

    return of


@settings(max_examples=60, deadline=None)
@given(score_arrays(), st.integers(1, 4), st.sampled_from([7, 30, 100]), st.floats(0, 1))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_rejection_cut_is_that_of_all_scores(scores, size, step, share):
    of = shards(scores, size, step)
    answers = in_threads(size, lambda team: shared_rejection_cut(of(team.rank), share, team))
    assert set(answers) == {rejection_cut(scores, share)}


@given(st.lists(st.floats(allow_nan=False), min_size=2))
def test_keys_have_the_order_of_the_scores(values):
    scores = np.array(values)
    keys = keys_of(scores)
    np.testing.assert_array_equal(scores_of(keys), scores)
    np.testing.assert_array_equal(keys[:-1] < keys[1:], scores[:-1] < scores[1:])
    np.testing.assert_array_equal(keys[:-1] == keys[1:], scores[:-1] == scores[1:])


def test_nan_is_refused_in_every_process():
    of = shards(np.array([0.0, 1.0, 2.0, np.nan, 4.0, 5.0]), 3, 1)

    def refused(team):
        with pytest.raises(ValueError, match="1 are NaN"):
            shared_rejection_cut(of(team.rank), 0.3, team)
        return True

    assert in_threads(3, refused) == [True] * 3


def test_what_is_exchanged_does_not_grow_with_the_scores():
    largest = 0

    class Watched(Team):
        def sum(self, values):
            nonlocal largest
            largest = max(largest, values.size)
            return values

        def gather(self, values):
            nonlocal largest
            largest = max(largest, values.size)
            return [values]

    scores = np.random.default_rng(0).random(300_000)
    cut = shared_rejection_cut(lambda: iter([scores]), 0.4, Watched())
    assert cut == rejection_cut(scores, 0.4)
    assert largest == 2**16
