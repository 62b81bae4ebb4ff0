"""What is specific to the smoothed means: the neighbours, and the moves of the class means."""

from __future__ import annotations

import numpy as np
import pytest

from opensetda import SmoothedMeans
from opensetda.baselines import smoothed_means
from opensetda.openness import smoothing
from opensetda.openness.smoothing import move_to_neighbours
from opensetda.rows import Rows, unit_rows


@pytest.fixture
def unit():
    return unit_rows(np.random.default_rng(0).normal(size=(30, 6)))


def test_a_row_moves_half_way_to_its_nearest_rows(unit):
    moved = move_to_neighbours(unit, unit, 3, 0.5)
    for row, after in zip(unit, moved, strict=True):
        nearest = np.argsort(unit @ row)[-4:-1]
        mean = unit[nearest].sum(axis=0)
        expected = row + mean / np.linalg.norm(mean)
        np.testing.assert_allclose(after, expected / np.linalg.norm(expected))


def test_no_message_moves_nothing(unit):
    np.testing.assert_allclose(move_to_neighbours(unit, unit, 3, 0.0), unit)


def test_equal_rows_are_no_neighbours(unit):
    twice = np.concatenate([unit, unit])
    copies = move_to_neighbours(twice.astype(np.float32), twice, 1, 0.5)
    np.testing.assert_allclose(copies[:30], move_to_neighbours(unit, unit, 1, 0.5), atol=1e-6)
    same = np.repeat(unit[:1], 5, axis=0)
    np.testing.assert_allclose(move_to_neighbours(same, same, 3, 0.5), same)


def test_chunks_change_nothing(unit, monkeypatch):
    whole = move_to_neighbours(unit, unit, 4, 0.5)
    monkeypatch.setattr(smoothing, "MOST_COSINES", 90)
    np.testing.assert_allclose(move_to_neighbours(unit, unit, 4, 0.5), whole)


def test_a_later_copy_of_a_target_has_its_score(task):
    fitted = SmoothedMeans().fit(task.X, task.y, task.domain)
    later = fitted.open_set_scores(task.target).known
    np.testing.assert_allclose(later, fitted.transduction_scores_, atol=1e-5)


def test_the_same_share_of_the_stored_rows_is_rejected_later(task, monkeypatch):
    monkeypatch.setattr(smoothed_means, "STORED_ROWS", 30)
    fitted = SmoothedMeans(1 / 3).fit(task.X, task.y, task.domain)
    assert len(fitted.rows_) == 30
    stored = Rows(task.target, np.arange(len(task.target))).in_canonical_order().index[:30]
    assert (fitted.predict(task.target[stored]) == "unknown").sum() == 10


@pytest.mark.parametrize("move", [0.0, 1.0])
def test_means_stay_or_become_those_of_the_targets(task, move):
    fitted = SmoothedMeans(1 / 3, move=move).fit(task.X, task.y, task.domain)
    closed = SmoothedMeans(1 / 3, move=0.0).fit(task.X, task.y, task.domain)
    assert np.allclose(fitted.means_, closed.means_) == (move == 0)
    if move:
        rows = fitted._smooth(fitted._alignment.later(task.target), fitted.rows_)
        labelled = fitted.step_labels_[-2] == 0
        mean = rows[labelled].sum(axis=0)
        np.testing.assert_allclose(fitted.means_[0], mean / np.linalg.norm(mean), atol=1e-4)


def test_without_a_target_the_source_has_the_neighbours(task):
    fitted = SmoothedMeans().fit(task.source, task.labels)
    assert (fitted.predict(task.source) == task.labels).mean() > 0.9
