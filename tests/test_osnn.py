"""OSNN: the ratio of two distances, by hand, and its threshold."""

from __future__ import annotations

import numpy as np
import pytest

from opensetda.rejection import osnn
from opensetda.rejection.osnn import DEFAULT_THRESHOLD, DistanceRatioRejector, distance_ratio

ROWS = np.array([[0.0, 0.0], [0.0, 1.0], [4.0, 0.0], [0.0, 8.0]])
LABELS = np.array([0, 0, 1, 2])
NO_LOGITS = np.zeros((0, 0))


def fitted(rows=ROWS, y=LABELS):
    rejector = DistanceRatioRejector()
    rejector.fit(rows, y, int(y.max()) + 1)
    return rejector


def blobs(n_classes=6, per_class=15, width=10, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    centres = 4 * rng.normal(size=(n_classes, width))
    y = np.tile(np.arange(n_classes), per_class)
    return centres[y] + spread * rng.normal(size=(len(y), width)), y, centres


def test_the_ratio_by_hand():
    scores = fitted().scores(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 6.0]]), NO_LOGITS)
    # Nearest, and nearest of another class: 1 and 3; 2 and 2; 2 (class 2) and 5 (class 0).
    np.testing.assert_allclose(scores.known, [-1 / 3, -1, -2 / 5])
    np.testing.assert_array_equal(scores.nearest[[0, 2]], [0, 2])
    # Without the nearest class: 3 and the root of 65; 5 and the root of 52.
    np.testing.assert_allclose(scores.held_out[0], -3 / np.sqrt(65))
    np.testing.assert_allclose(scores.held_out[2], -5 / np.sqrt(52))


def test_on_a_row_and_on_rows_of_two_classes():
    rows = np.vstack([ROWS, ROWS[:1]])
    rejector = fitted(rows, np.append(LABELS, 1))
    scores = rejector.scores(np.array([[0.0, 8.0], [0.0, 0.0]]), NO_LOGITS)
    np.testing.assert_array_equal(scores.known, [0, -1])
    np.testing.assert_array_equal(distance_ratio(np.array([[0.0, 0.0], [0.0, 2.0]])), [1, 0])


def test_class_scores_are_distances_to_the_nearest_row():
    rows, y, _ = blobs()
    targets, _, _ = blobs(seed=1)
    scores = fitted(rows, y).scores(targets, NO_LOGITS)
    distances = np.linalg.norm(targets[:, None] - rows, axis=2)
    nearest = np.stack([distances[:, y == c].min(axis=1) for c in range(6)], axis=1)
    # Rows are stored in single precision.
    np.testing.assert_allclose(scores.classes / scores.classes[0, 0], nearest / nearest[0, 0], 1e-5)
    np.testing.assert_array_equal(scores.nearest, y[distances.argmin(axis=1)])


def test_held_out_is_the_score_without_the_nearest_class():
    rows, y, _ = blobs(4)
    targets, _, _ = blobs(4, seed=1)
    scores = fitted(rows, y).scores(targets, NO_LOGITS)
    for nearest in range(4):
        others = y != nearest
        _, relabelled = np.unique(y[others], return_inverse=True)
        without = fitted(rows[others], relabelled).scores(targets, NO_LOGITS)
        mine = scores.nearest == nearest
        np.testing.assert_allclose(scores.held_out[mine], without.known[mine], rtol=1e-12)


def test_the_threshold_is_chosen_on_hidden_classes():
    """The same choice from its definition, over a grid: hide half, leave one out."""
    rows, y, _ = blobs(spread=1.5)
    rejector = fitted(rows, y)
    distances = np.linalg.norm(rows[:, None] - rows, axis=2)
    np.fill_diagonal(distances, np.inf)

    def normalised_accuracy(threshold):
        values = []
        for start in range(6):
            hidden = np.isin(y, [start, (start + 1) % 6, (start + 2) % 6])
            right, rejected = [], []
            for row in range(len(y)):
                order = np.flatnonzero(~hidden)[np.argsort(distances[row, ~hidden])]
                t = order[0]
                u = next(other for other in order if y[other] != y[t])
                known = distances[row, t] / distances[row, u] <= threshold
                right.append(known and y[t] == y[row])
                rejected.append(not known)
            right, rejected = np.array(right), np.array(rejected)
            values.append((right[~hidden].mean() + rejected[hidden].mean()) / 2)
        return np.mean(values)

    best = max(normalised_accuracy(t) for t in np.linspace(0.05, 1, 39))
    assert normalised_accuracy(rejector.threshold) >= best - 1e-9
    assert 0 < rejector.threshold < 1


def test_two_classes_have_the_default_threshold_and_no_held_out_scores():
    rows, y, _ = blobs(2)
    rejector = fitted(rows, y)
    assert rejector.threshold == DEFAULT_THRESHOLD
    assert np.isnan(rejector.scores(rows, NO_LOGITS).held_out).all()


def test_samples_between_classes_are_unknown_and_those_of_classes_are_not():
    rows, y, centres = blobs(spread=0.5)
    rejector = fitted(rows, y)
    between = (centres[:-1] + centres[1:]) / 2
    cut = rejector.own_cut(rejector.scores(centres, NO_LOGITS))
    assert cut == -rejector.threshold
    assert (rejector.scores(between, NO_LOGITS).known < cut).all()
    assert (rejector.scores(centres, NO_LOGITS).known >= cut).all()


@pytest.mark.parametrize("block_rows", [7, 512])
def test_in_blocks(block_rows, monkeypatch):
    rows, y, _ = blobs()
    expected = fitted(rows, y).scores(rows[:40], NO_LOGITS)
    monkeypatch.setattr(osnn, "BLOCK_ROWS", block_rows)
    rejector = fitted(rows, y)
    np.testing.assert_allclose(rejector.scores(rows[:40], NO_LOGITS).known, expected.known)


def test_a_limit_of_rows_for_the_threshold_keeps_all_neighbours(monkeypatch):
    rows, y, _ = blobs(per_class=40)
    order = np.random.default_rng(0).permutation(len(y))
    full = fitted(rows[order], y[order])
    monkeypatch.setattr(osnn, "VALIDATION_ROWS", 120)
    limited = fitted(rows[order], y[order])
    assert len(limited.rows) == len(rows)
    assert limited.threshold == pytest.approx(full.threshold, abs=0.15)
