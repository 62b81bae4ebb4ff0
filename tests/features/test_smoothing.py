"""Rows that move towards their neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opensetda.features import smoothing
from opensetda.features.smoothing import mean_cosine, move_to_neighbours
from opensetda.rows import unit_rows


@pytest.fixture
def unit():
    return unit_rows(np.random.default_rng(0).normal(size=(30, 6)))


def test_a_row_moves_half_way_to_its_nearest_rows(unit):
    moved = move_to_neighbours(unit, unit, 3, 0.5)
    for row, after in zip(unit, moved, strict=True):
        mean = unit[np.argsort(unit @ row)[-4:-1]].sum(axis=0)
        expected = row + mean / np.linalg.norm(mean)
        np.testing.assert_allclose(after, expected / np.linalg.norm(expected))


def test_equal_rows_are_no_neighbours(unit):
    twice = np.concatenate([unit, unit])
    copies = move_to_neighbours(twice, twice, 1, 0.5)
    np.testing.assert_allclose(copies[:30], move_to_neighbours(unit, unit, 1, 0.5), atol=1e-6)
    same = np.repeat(unit[:1], 5, axis=0)
    np.testing.assert_allclose(move_to_neighbours(same, same, 3, 0.5), same)


def test_chunks_change_nothing(unit, monkeypatch):
    whole = move_to_neighbours(unit, unit, 4, 0.5)
    monkeypatch.setattr(smoothing, "MOST_COSINES", 90)
    np.testing.assert_allclose(move_to_neighbours(unit, unit, 4, 0.5), whole)


def test_the_mean_cosine_leaves_the_row_itself_out(unit):
    found = mean_cosine(torch.from_numpy(unit), torch.from_numpy(unit), 3).numpy()
    expected = [np.sort(unit @ row)[-4:-1].mean() for row in unit]
    np.testing.assert_allclose(found, expected)


def test_without_any_other_row_the_mean_cosine_is_zero(unit):
    one = torch.from_numpy(unit[:1])
    assert mean_cosine(one, one, 3).tolist() == [0.0]
