from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from opensetda.data.benchmarks.protocols import (
    ClassSplit,
    open_set_split,
    open_set_task,
    with_openness,
)
from opensetda.errors import InputError


@given(
    st.sets(st.text(max_size=4), min_size=2, max_size=12), st.integers(2, 12), st.integers(0, 12)
)
def test_known_and_unknown_never_overlap(classes, n_known, n_unknown):
    if n_known + n_unknown > len(classes):
        with pytest.raises(InputError, match="there must be enough"):
            open_set_split(classes, n_known, n_unknown)
        return
    split = open_set_split(classes, n_known, n_unknown)
    assert (len(split.known), len(split.unknown)) == (n_known, n_unknown)
    ordered = sorted(classes)
    assert split.known == tuple(ordered[:n_known])
    assert split.unknown == tuple(ordered[len(ordered) - n_unknown :])


def test_task_keeps_knowns_in_the_source_and_drops_the_middle():
    X = np.arange(12, dtype=np.float32).reshape(6, 2)
    y = np.array(list("abcdef"))
    task = open_set_task((X, y), (X + 100, y), open_set_split("abcdef", 2, 2))
    assert task.source_labels.tolist() == ["a", "b"]
    assert task.target_truth.tolist() == ["a", "b", "e", "f"]
    np.testing.assert_array_equal(task.target_features, X[[0, 1, 4, 5]] + 100)
    assert task.openness == 0.5


def test_task_without_rows_of_a_class_is_refused():
    X, y = np.zeros((2, 1), np.float32), np.array(["a", "c"])
    split = ClassSplit(("a", "b"), ("c",))
    with pytest.raises(InputError, match="known class 'b'"):
        open_set_task((X, y), (X, y), split)
    with pytest.raises(InputError, match="no row"):
        open_set_task((X, np.array(["a", "b"])), (X, np.array(["x", "z"])), split)


def task_of(known, unknown, seed=0):
    """Target with so many rows of each known and each unknown class, in any order."""
    names = [f"k{i}" for i in range(len(known))], [f"u{i}" for i in range(len(unknown))]
    truth = np.repeat([*names[0], *names[1]], [*known, *unknown])
    # With rows of a left-out class.
    truth = np.random.default_rng(seed).permutation(np.append(truth, ["x", "x"]))
    X = np.arange(len(truth), dtype=np.float32)[:, None]
    source = X[: len(known)], np.array(names[0])
    return open_set_task(source, (X, truth), ClassSplit(tuple(names[0]), tuple(names[1])))


def count(task, names):
    return np.array([(task.target_truth == name).sum() for name in names])


tasks = st.builds(
    task_of,
    st.lists(st.integers(1, 40), min_size=2, max_size=5),
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(0, 9),
)
shares = st.floats(0, 0.95)


def opened(task, openness, seed):
    """The task with that openness, or none if it would lose a known class."""
    n_known, n_unknown = (
        count(task, names).sum() for names in (task.split.known, task.split.unknown)
    )
    if round(n_known * openness / (1 - openness)) > n_unknown:
        n_known = round(n_unknown * (1 - openness) / openness)
    if n_known < len(task.split.known):
        with pytest.raises(InputError, match="too few"):
            with_openness(task, openness, seed)
        reject()
    return with_openness(task, openness, seed)


@given(tasks, shares, st.integers(0, 5))
def test_openness_is_met_in_proportion_and_no_row_is_lost_in_vain(task, openness, seed):
    result = opened(task, openness, seed)
    known, unknown = count(result, task.split.known), count(result, task.split.unknown)
    assert known.sum() + unknown.sum() == len(result.target_truth)
    # Whichever side is whole, the other is within half a row of what the share asks.
    n_known = known.sum()
    assert (
        abs(unknown.sum() - n_known * openness / (1 - openness)) <= 0.5 + 1e-9
        or abs(n_known * openness - unknown.sum() * (1 - openness)) <= (0.5 + 1e-9) * openness
    )
    everything = count(task, task.split.known).sum(), count(task, task.split.unknown).sum()
    assert known.sum() == everything[0] or unknown.sum() == everything[1]
    before, after = count(task, task.split.known), known
    assert (after >= 1).all()
    quota = after.sum() * before / before.sum()
    # A class too small for a row of its own takes it from the others.
    slack = np.maximum(0, 1 - quota).sum()
    assert (np.abs(after - quota) < 1 + slack).all()
    kept = result.target_features[:, 0]  # numbers of rows
    assert (np.diff(kept) > 0).all()
    where = np.searchsorted(task.target_features[:, 0], kept)
    np.testing.assert_array_equal(task.target_truth[where], result.target_truth)
    again = with_openness(task, openness, seed)
    np.testing.assert_array_equal(again.target_features, result.target_features)


def test_openness_of_zero_closes_the_set_and_seeds_differ():
    task = task_of([30, 20], [25, 25])
    closed = with_openness(task, 0, 0)
    assert closed.openness == 0
    assert count(closed, task.split.known).tolist() == [30, 20]
    assert count(with_openness(task, 0.8, 0), task.split.known).tolist() == [7, 5]
    first, second = (with_openness(task, 0.2, seed).target_features.tolist() for seed in (0, 1))
    assert first != second


def test_openness_that_cannot_be_is_refused():
    task = task_of([5, 5], [4])
    for openness in (-0.1, 1, 1.5, float("nan")):
        with pytest.raises(InputError, match=r"\[0, 1\)"):
            with_openness(task, openness, 0)
    with pytest.raises(InputError, match=r"4 unknown rows are too few for openness 0\.9"):
        with_openness(task, 0.9, 0)
    with pytest.raises(InputError, match="of known and of unknown"):
        with_openness(task_of([5, 5], []), 0.1, 0)
    assert with_openness(task_of([5, 5], []), 0, 0).openness == 0
