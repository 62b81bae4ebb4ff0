"""The plane of the map: near stays near, and it is repeatable."""

from __future__ import annotations

import numpy as np
import pytest

from opensetda.report.plane import lay_out


def clouds(n=90, wide=8, seed=0):
    rng = np.random.default_rng(seed)
    which = np.arange(n) % 3
    return which, 6 * np.eye(3, wide)[which] + rng.normal(0, 0.3, (n, wide))


@pytest.fixture(scope="module")
def laid_out():
    which, rows = clouds()
    return which, lay_out(rows)


def test_neighbours_stay_neighbours_in_a_square(laid_out):
    which, plane = laid_out
    distances = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (which[distances.argmin(axis=1)] == which).all()
    assert plane.min() >= 0
    assert plane.max() <= 1
    assert np.ptp(plane, axis=0).max() == pytest.approx(1, abs=1e-5)


def test_the_same_rows_give_the_same_bits_and_progress_counts_to_the_end(laid_out):
    told = []
    again = lay_out(clouds()[1], lambda done, total: told.append((done, total)))
    np.testing.assert_array_equal(laid_out[1], again)
    assert told[-1] == (500, 500)
    assert told == sorted(told)


@pytest.mark.parametrize("n", [1, 2, 4, 5, 6])
def test_a_few_samples_have_places_too(n):
    plane = lay_out(np.random.default_rng(0).normal(size=(n, 3)))
    assert plane.shape == (n, 2)
    assert np.isfinite(plane).all()


def test_one_column_and_equal_rows():
    assert np.isfinite(lay_out(np.arange(8.0)[:, None])).all()
    assert np.isfinite(lay_out(np.ones((8, 3)))).all()
