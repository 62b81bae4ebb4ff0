"""Order statistics and ranking over shards against the same in one array."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opensetda.pgl.shared_ranking import rank_shards

from opensetda.openness.mixtures import rejection_cut
from opensetda.pgl import shared_ranking
from opensetda.pgl.pseudo_labels import rank_pseudo_labels
from opensetda.runs import order_statistics
from opensetda.runs.order_statistics import (
    cut_of_smallest,
    cuts_of_smallest,
    keys_of,
    scores_of,
    shared_rejection_cut,
)

FEW = [-np.inf, -2.5, -0.0, 0.0, 5e-324, 1.0, np.nextafter(1.0, 2.0), 1e300, np.inf]


class Threads:
    """A team of threads: they meet at a barrier and look at each other's values."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._values: list[Any] = [None] * size

    def member(self, rank: int) -> Member:
        return Member(self, rank)

    def exchange(self, rank: int, values: Any) -> list[Any]:
        self._values[rank] = values
        self._barrier.wait(timeout=20)
        everyones = list(self._values)
        self._barrier.wait(timeout=20)
        return everyones

    def run(self, work: Callable[[Member], Any]) -> list[Any]:
        """Call `work` once a rank; return the answers, or raise what the ranks raised."""
        answers: list[Any] = [None] * self.size
        errors: list[Exception] = []

        def one(rank: int) -> None:
            try:
                answers[rank] = work(self.member(rank))
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            assert len(errors) == self.size, "some ranks went on without the others"
            raise errors[0]
        return answers


class Member:
    def __init__(self, team: Threads, rank: int) -> None:
        self._team, self.rank, self.size = team, rank, team.size

    def sum(self, values: np.ndarray) -> np.ndarray:
        assert values.dtype == np.int64
        return np.sum(self.gather(values), axis=0)

    def gather(self, values: np.ndarray) -> list[np.ndarray]:
        everyones = self._team.exchange(self.rank, values)
        assert len({(part.shape, part.dtype) for part in everyones}) == 1
        return everyones


def shard_of(rank: int, size: int, step: int, *arrays: np.ndarray) -> Callable[[], Iterator[Any]]:
    """Every `size`-th chunk of `step`."""
    starts = range(rank * step, len(arrays[0]), size * step)
    return lambda: ((at, *(array[at : at + step] for array in arrays)) for at in starts)


@st.composite
def small_limits(draw):
    """Limits so low that ranges are really divided."""
    return {
        "BINS": draw(st.sampled_from([4, 64])),
        "COLLECTED": draw(st.integers(0, 8)),
        "CELLS": draw(st.sampled_from([64, 5000])),
        "PIECE": draw(st.sampled_from([20, 1000])),
    }


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


teams = st.tuples(st.integers(1, 4), st.sampled_from([7, 30, 100]))
few_examples = settings(max_examples=40, deadline=None)


def run(team, arrays, work):
    size, step = team
    return Threads(size).run(lambda me: work(shard_of(me.rank, size, step, *arrays), me))


def with_limits(values, work):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            module = shared_ranking if name == "CELLS" else order_statistics
            patch.setattr(module, name, value)
        return work()


@few_examples
@given(score_arrays(), teams, small_limits(), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_cuts_are_those_of_a_stable_sort(scores, team, limits, shares):
    ks = [round(share * len(scores)) for share in shares] + [0, len(scores)]

    def work(shard, me):
        return cuts_of_smallest(shard, ks, me)

    answers = with_limits(limits, lambda: run(team, [scores], work))
    assert all(answer == answers[0] for answer in answers)
    order = np.argsort(scores, kind="stable")
    for k, cut in zip(ks, answers[0], strict=True):
        expected = np.zeros(len(scores), dtype=bool)
        expected[order[:k]] = True
        np.testing.assert_array_equal(cut.below(0, scores), expected)
        middle = len(scores) // 2
        np.testing.assert_array_equal(cut.below(middle, scores[middle:]), expected[middle:])


@few_examples
@given(score_arrays(), teams, small_limits(), st.floats(0, 1))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_rejection_cut_is_that_of_all_scores(scores, team, limits, share):
    answers = with_limits(
        limits,
        lambda: run(team, [scores], lambda shard, me: shared_rejection_cut(shard, share, me)),
    )
    assert set(answers) == {rejection_cut(scores, share)}


@given(st.lists(st.floats(allow_nan=False), min_size=2))
def test_keys_have_the_order_of_the_scores(values):
    scores = np.array(values)
    keys = keys_of(scores)
    np.testing.assert_array_equal(scores_of(keys), scores)
    np.testing.assert_array_equal(keys[:-1] < keys[1:], scores[:-1] < scores[1:])
    np.testing.assert_array_equal(keys[:-1] == keys[1:], scores[:-1] == scores[1:])


def test_nan_is_refused_in_every_process():
    scores = np.array([0.0, 1.0, 2.0, np.nan, 4.0, 5.0])
    with pytest.raises(ValueError, match="1 are NaN"):
        run((3, 1), [scores], lambda shard, me: cut_of_smallest(shard, 2, me))


@pytest.mark.parametrize("k", [-1, 4])
def test_more_than_there_are_is_refused(k):
    with pytest.raises(ValueError, match="expected 0 to 3"):
        run((2, 1), [np.arange(3.0)], lambda shard, me: cut_of_smallest(shard, k, me))


@settings(max_examples=80, deadline=None)
@given(
    score_arrays(),
    teams,
    small_limits(),
    st.sampled_from([0.0, 0.1, 0.5, 0.6, 1.0]) | st.floats(0, 1),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]) | st.floats(0, 1),
    st.sampled_from([0.0, 0.5, 1.0, 1e-300, 1 - 2**-53]) | st.floats(0, 1),
    st.integers(1, 12),
    st.integers(0, 2**32),
)
def test_shards_are_ranked_as_one(
    scores, team, limits, openness, progress, class_balance, n_classes, seed
):
    rng = np.random.default_rng(seed)
    nearest = rng.choice(n_classes, len(scores), p=rng.dirichlet(np.full(n_classes, 0.5)))
    parameters = (openness, progress, n_classes, class_balance)

    def work(shard, me):
        ranking = rank_shards(shard, me, *parameters)
        return [(first, ranking.labels(first, *chunk)) for first, *chunk in shard()]

    labels = np.full(len(scores), -9)
    for answers in with_limits(limits, lambda: run(team, [scores, nearest], work)):
        for first, part in answers:
            labels[first : first + len(part)] = part
    np.testing.assert_array_equal(labels, rank_pseudo_labels(scores, nearest, *parameters))


N = 10**6
HARD = {
    "spread": lambda rng: rng.random(N),
    "equal": lambda rng: np.full(N, 0.5),
    "two values": lambda rng: rng.choice([0.2, 0.7], N),
    "all bits": lambda rng: rng.integers(1, 2**62, N).view(np.float64),
    "near one": lambda rng: 1 - 10.0 ** -rng.uniform(0, 16, N),
    "most in one place": lambda rng: np.where(rng.random(N) < 0.6, 0.5, rng.random(N)),
}


@pytest.mark.parametrize(("class_balance", "most_passes"), [(0, 8), (0.5, 13)])
@pytest.mark.parametrize("kind", HARD)
def test_passes_and_exchanges_are_few(kind, class_balance, most_passes):
    rng = np.random.default_rng(0)
    scores, n_classes = HARD[kind](rng), 50
    nearest = rng.choice(n_classes, N, p=rng.dirichlet(np.full(n_classes, 0.3)))
    # The worst for the balance: one class hides its order from all others.
    nearest[scores == 0.5] = 0
    passes, largest = 0, 0

    class Alone:
        rank, size = 0, 1

        def sum(self, values):
            nonlocal largest
            largest = max(largest, values.size)
            return values

        def gather(self, values):
            nonlocal largest
            largest = max(largest, values.size)
            return [values]

    def shard():
        nonlocal passes
        passes += 1
        return (
            (at, scores[at : at + 10**5], nearest[at : at + 10**5]) for at in range(0, N, 10**5)
        )

    ranking = rank_shards(shard, Alone(), 0.6, 0.4, n_classes, class_balance)
    assert passes <= most_passes
    # Never the shard, only tables whose size does not depend on it.
    assert largest <= (shared_ranking.CELLS if class_balance else 4 * order_statistics.COLLECTED)
    expected = rank_pseudo_labels(scores, nearest, 0.6, 0.4, n_classes, class_balance)
    np.testing.assert_array_equal(ranking.labels(0, scores, nearest), expected)


def test_a_class_that_does_not_exist_is_refused_in_every_process():
    scores, nearest = np.arange(9.0), np.array([0, 1, 2, 0, 1, 2, 0, 3, 2])
    with pytest.raises(ValueError, match="1 nearest classes are not 0 to 2"):
        run((3, 1), [scores, nearest], lambda shard, me: rank_shards(shard, me, 0.1, 0.5, 3, 0.5))


def test_shares_outside_0_and_1_are_refused():
    nothing = [np.zeros(0), np.zeros(0, dtype=int)]
    with pytest.raises(ValueError, match=r"class_balance = 1\.5"):
        run((1, 1), nothing, lambda shard, me: rank_shards(shard, me, 0.1, 0.5, 3, 1.5))
