"""Scores without the nearest class: by hand, and against a slow rewrite that starts from rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opensetda.openness.held_out import cosine_without_nearest, softmax_without_nearest


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


# Three classes in the plane, of 2, 3 and 1 source rows: means (1, 0), (0, 1) and (-1, 0).
SUMS = np.array([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
COUNTS = np.array([2.0, 3.0, 1.0])


def test_of_two_classes_the_other_one_is_its_own_centre():
    """Centred anew, its mean would be zero and point nowhere: nobody can tell."""
    v = np.array([[0.6, 0.8], [0.6, 0.8]])
    held_out = cosine_without_nearest(v, np.array([0, 1]), SUMS[:2], COUNTS[:2])
    assert held_out.shape == (2,)
    assert np.isnan(held_out).all()


def slowly(v, nearest, rows, labels, target_means, mix):
    """One row at a time, from the source rows themselves."""
    held_out = []
    for sample, hidden in zip(v, nearest, strict=True):
        left = labels != hidden
        centred = rows[left] - rows[left].mean(axis=0)
        cosines = []
        for label in np.unique(labels[left]):
            mean = unit(centred[labels[left] == label].mean(axis=0))
            mean = unit((1 - mix[label]) * mean + mix[label] * target_means[label])
            cosines.append(float(sample @ mean))
        held_out.append(max(cosines))
    return np.array(held_out)


@given(st.integers(0, 10_000), st.integers(3, 6), st.booleans())
def test_against_a_slow_rewrite(seed, n_classes, mixed):
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(n_classes), rng.integers(0, n_classes, 20)])
    rows = unit(rng.normal(size=(len(labels), 5)))
    v, nearest = unit(rng.normal(size=(17, 5))), rng.integers(0, n_classes, 17)
    sums = np.stack([rows[labels == label].sum(axis=0) for label in range(n_classes)])
    counts = np.bincount(labels).astype(float)
    targets = unit(rng.normal(size=(n_classes, 5)))
    mix = rng.random(n_classes) if mixed else np.zeros(n_classes)
    extra = (targets, mix) if mixed else ()
    fast = cosine_without_nearest(v, nearest, sums, counts, *extra)
    np.testing.assert_allclose(fast, slowly(v, nearest, rows, labels, targets, mix), atol=1e-12)
    assert (np.abs(fast) <= 1 + 1e-12).all()


# Softmax ----------------------------------------------------------------------------------


def test_the_softmax_of_a_single_class_says_nothing():
    assert np.isnan(softmax_without_nearest(np.array([[1.0, 2.0], [3.0, -3.0]]))).all()


@given(st.integers(0, 10_000), st.integers(3, 7), st.floats(-500, 500))
def test_softmax_against_a_slow_rewrite(seed, n_classes, offset):
    logits = 4 * np.random.default_rng(seed).normal(size=(9, n_classes))
    expected = []
    for row in logits:
        left = np.delete(row, row.argmax())
        expected.append(max(np.exp(left) / np.exp(left).sum()))
    # Logits far from zero neither overflow nor change anything.
    np.testing.assert_allclose(softmax_without_nearest(logits + offset), expected, rtol=1e-9)
