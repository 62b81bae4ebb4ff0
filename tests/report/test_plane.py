"""The plane of the map: near stays near, it is repeatable, and it is kept with the run."""

from __future__ import annotations

import numpy as np
import pytest

from opensetda.report.plane import lay_out, plane_of
from opensetda.runs.folder import MAP


def clouds(n=90, wide=8, seed=0):
    rng = np.random.default_rng(seed)
    which = np.arange(n) % 3
    return which, 6 * np.eye(3, wide)[which] + rng.normal(0, 0.3, (n, wide))


def test_neighbours_stay_neighbours_in_a_square_and_the_same_rows_give_the_same_bits():
    told = []
    which, rows = clouds()
    plane = lay_out(rows, lambda *count: told.append(count))
    distances = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (which[distances.argmin(axis=1)] == which).all()
    assert plane.min() >= 0
    assert plane.max() <= 1
    assert np.ptp(plane, axis=0).max() == pytest.approx(1, abs=1e-5)
    assert told[-1] == (500, 500)
    np.testing.assert_array_equal(lay_out(rows), plane)


@pytest.mark.parametrize(
    "rows",
    [*np.split(np.random.default_rng(0).normal(size=(11, 3)), [1, 5]), np.arange(8.0)[:, None]],
)
def test_a_few_samples_and_one_column_have_places_too(rows):
    plane = lay_out(rows)
    assert plane.shape == (len(rows), 2)
    assert np.isfinite(plane).all()
    assert np.isfinite(lay_out(np.ones_like(rows))).all()


@pytest.mark.usefixtures("quick_maps")
def test_a_damaged_map_is_made_anew(evaluated):
    places = plane_of(evaluated)
    (evaluated.path / MAP).write_bytes(b"no parquet")
    np.testing.assert_array_equal(plane_of(evaluated), places)
