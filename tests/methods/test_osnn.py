"""OSNN: the ratio of two distances, by hand, and its threshold."""

from __future__ import annotations

import numpy as np
import torch

from opensetda.methods.rejectors.osnn import DistanceRatioRejector
from opensetda.share.decision import Scores

ROWS = np.array([[0.0, 0.0], [0.0, 1.0], [4.0, 0.0], [0.0, 8.0]])
LABELS = np.array([0, 0, 1, 2])


def fitted(rows=ROWS, y=LABELS):
    rejector = DistanceRatioRejector()
    rejector.fit(torch.from_numpy(rows), y, int(y.max()) + 1)
    return rejector


def scored(rejector, rows):
    """Scores without the logits of a classifier."""
    return Scores(*(values.numpy() for values in rejector(torch.from_numpy(rows), None)))


def blobs(n_classes=6, per_class=15, width=10, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    centres = 4 * rng.normal(size=(n_classes, width))
    y = np.tile(np.arange(n_classes), per_class)
    return centres[y] + spread * rng.normal(size=(len(y), width)), y, centres


def test_the_ratio_by_hand():
    scores = scored(fitted(), np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 6.0]]))
    # Nearest, and nearest of another class: 1 and 3; 2 and 2; 2 (class 2) and 5 (class 0).
    np.testing.assert_allclose(scores.known, [-1 / 3, -1, -2 / 5])
    np.testing.assert_array_equal(scores.nearest[[0, 2]], [0, 2])


def test_class_scores_are_distances_to_the_nearest_row():
    rows, y, _ = blobs()
    targets, _, _ = blobs(seed=1)
    scores = scored(fitted(rows, y), targets)
    distances = np.linalg.norm(targets[:, None] - rows, axis=2)
    nearest = np.stack([distances[:, y == c].min(axis=1) for c in range(6)], axis=1)
    np.testing.assert_allclose(scores.classes / scores.classes[0, 0], nearest / nearest[0, 0])
    np.testing.assert_array_equal(scores.nearest, y[distances.argmin(axis=1)])


def test_samples_between_classes_are_unknown_and_those_of_classes_are_not():
    rows, y, centres = blobs(spread=0.5)
    rejector = fitted(rows, y)
    between = (centres[:-1] + centres[1:]) / 2
    cut = rejector.own_cut(scored(rejector, centres))
    assert cut == -rejector.threshold
    assert (scored(rejector, between).known < cut).all()
    assert (scored(rejector, centres).known >= cut).all()
