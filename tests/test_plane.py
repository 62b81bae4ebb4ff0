"""The plane of the map: near stays near, a sample stays where it was, and it is repeatable."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from opensetda.report.plane import MOST_STEPS, _chosen, lay_out


def steps(n=90, count=3, wide=8, seed=0):
    """Three clouds that come nearer to each other from step to step."""
    rng = np.random.default_rng(seed)
    which = np.arange(n) % 3
    noise = rng.normal(0, 0.3, (n, wide))
    return which, [(6 - step) * np.eye(3, wide)[which] + noise for step in range(count)]


@pytest.fixture(scope="module")
def laid_out():
    which, embeddings = steps()
    return which, lay_out(embeddings, 1)


def test_neighbours_stay_neighbours(laid_out):
    which, planes = laid_out
    for plane in planes:
        distances = np.linalg.norm(plane[:, None] - plane[None], axis=2)
        np.fill_diagonal(distances, np.inf)
        assert (which[distances.argmin(axis=1)] == which).all()


def test_a_sample_stays_where_it_was(laid_out):
    _, planes = laid_out
    for before, after in pairwise(planes):
        moved = np.linalg.norm(after - before, axis=1)
        assert np.median(moved) < 0.1


def test_all_steps_fill_one_square(laid_out):
    _, planes = laid_out
    everything = np.concatenate(planes)
    assert everything.min() >= 0
    assert everything.max() <= 1
    assert np.ptp(everything, axis=0).max() == pytest.approx(1, abs=1e-5)


def test_the_same_rows_give_the_same_bits(laid_out):
    _, embeddings = steps()
    for plane, again in zip(laid_out[1], lay_out(embeddings, 1), strict=True):
        np.testing.assert_array_equal(plane, again)


def test_progress_counts_to_the_end():
    told = []
    _, embeddings = steps(n=30)
    lay_out(embeddings, 2, lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize("n", [1, 2, 4, 5, 6])
def test_a_few_samples_have_places_too(n):
    rows = np.random.default_rng(0).normal(size=(n, 3))
    [first, second] = lay_out([rows, rows + 0.1], 0)
    assert first.shape == second.shape == (n, 2)
    assert np.isfinite(first).all()


def test_one_column_and_equal_rows():
    assert np.isfinite(lay_out([np.arange(8.0)[:, None]], 0)[0]).all()
    assert np.isfinite(lay_out([np.ones((8, 3))], 0)[0]).all()


def test_of_many_steps_some_are_shown():
    assert _chosen(3, 1) == [1, 2, 3]
    some = _chosen(100, 41)
    assert len(some) <= MOST_STEPS
    assert {1, 42, 100} <= set(some)
    assert _chosen(1, 0) == [1]
