"""The evidence for a share of unknowns, and how it is weighed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feature_shifts import feature_task
from opensetda.features.alignment import aligned_samples
from opensetda.rows import unit_rows
from opensetda.share import evidence as weighed
from opensetda.share.evidence import (
    Evidence,
    cosine_without_nearest,
    estimate_share,
    gather_evidence,
)
from opensetda.usecases.fit_rows import read_rows_of

pytestmark = pytest.mark.filterwarnings("error")


def aligned(task):
    """Source rows, class indices and target rows of a task, as `fit` compares them."""
    rows = read_rows_of(task.source_features, task.source_labels, task.target_features)
    return aligned_samples(rows)


def evidence_at(openness, shift="none", seed=0):
    return gather_evidence(*aligned(feature_task(10, 10, 128, shift, openness, seed=seed)))


def check(evidence):
    assert np.isfinite(evidence).all()
    assert 0 <= evidence.hidden <= 1
    assert 0 <= evidence.hidden_moved <= 1
    assert np.log(0.02) <= evidence.margin <= np.log(2)
    assert 0 <= evidence.below <= 1
    for n_targets in (1, 1000):
        estimate = estimate_share(evidence, n_targets)
        assert 0 <= estimate.low <= estimate.share <= estimate.high <= 1
        assert (estimate.high - estimate.low == 1) == (n_targets == 1)


# Evidence -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", ["none", "class-translation"])
def test_more_unknowns_show_in_every_figure(shift):
    few, many = evidence_at(0.1, shift), evidence_at(0.7, shift)
    check(few)
    check(many)
    assert few.hidden + 0.3 < many.hidden
    assert few.hidden_moved + 0.3 < many.hidden_moved
    assert few.margin > many.margin + 0.2
    assert few.below < many.below


def test_the_order_of_rows_changes_nothing():
    source, y, target = aligned(feature_task(4, 3, 32, "all", 0.4, seed=0, per_class=20))
    first = gather_evidence(source, y, target)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(y))
    again = gather_evidence(source[order], y[order], rng.permutation(target))
    np.testing.assert_allclose(again, first, rtol=1e-4, atol=1e-5)


def rows(n, seed, width=5):
    return unit_rows(np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32))


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(1, 30))
def test_any_rows_have_evidence(seed, n_classes, n_targets):
    y = np.arange(n_classes * 3) % n_classes
    check(gather_evidence(rows(len(y), seed), y, rows(n_targets, seed + 1)))


# Weights ------------------------------------------------------------------------------------


def test_weights_by_hand(monkeypatch):
    """With four classes half of what many classes add is added."""
    monkeypatch.setattr(weighed, "WEIGHTS", np.array([[0.1, 0, 0, 0, 0], [0, 0.8, 0.2, 0.1, 0.4]]))
    monkeypatch.setattr(weighed, "HALF_WIDTH", (0.2, -0.1))
    evidence = Evidence(hidden=0.5, hidden_moved=0.4, margin=-1.0, below=0.25, n_classes=4)
    estimate = estimate_share(evidence, 100)
    # Such evidence is weak: half way to the usual share.
    assert estimate.share == pytest.approx((0.1 + 0.5 * (0.4 + 0.08 - 0.1 + 0.1) + 0.4) / 2)
    assert estimate.high - estimate.share == pytest.approx(0.2)
    assert estimate.share - estimate.low == pytest.approx(0.2)
    # With nine, hidden classes decide by four fifths, the larger of their two figures.
    estimate = estimate_share(evidence._replace(hidden_moved=0.7, margin=9.0, n_classes=9), 100)
    assert estimate.share == pytest.approx(0.2 * 0.75 + 0.8 * 0.7)
    assert estimate.high - estimate.share == pytest.approx(0.12)


# Hidden classes -----------------------------------------------------------------------------


def slowly(v, nearest, rows, labels, target_means, mix):
    """One row at a time, from the source rows themselves."""
    held_out = []
    for sample, hidden in zip(v, nearest, strict=True):
        left = labels != hidden
        centred = rows[left] - rows[left].mean(axis=0)
        cosines = []
        for label in np.unique(labels[left]):
            mean = unit_rows(centred[labels[left] == label].mean(axis=0)[None])
            mean = unit_rows((1 - mix) * mean + mix * target_means[label])[0]
            cosines.append(float(sample @ mean))
        held_out.append(max(cosines))
    return np.array(held_out)


@given(st.integers(0, 10_000), st.integers(3, 6), st.floats(0, 0.9))
def test_hidden_classes_against_a_slow_rewrite(seed, n_classes, mix):
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(n_classes), rng.integers(0, n_classes, 20)])
    draw = [unit_rows(rng.normal(size=(n, 5))) for n in (len(labels), 17, n_classes)]
    source, v, means = draw
    nearest = rng.integers(0, n_classes, 17)
    sums = np.stack([source[labels == label].sum(axis=0) for label in range(n_classes)])
    fast = cosine_without_nearest(v, nearest, sums, np.bincount(labels), means, mix)
    np.testing.assert_allclose(fast, slowly(v, nearest, source, labels, means, mix), atol=1e-9)
    # Of two classes the other one is its own centre: nobody can tell.
    assert np.isnan(cosine_without_nearest(v, nearest, sums[:2], np.ones(2), means, mix)).all()
