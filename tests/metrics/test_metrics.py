"""The metrics against hand-computed numbers, brute force, scikit-learn and their own laws."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from metrics_helpers import (
    ALIENS,
    CALIBRATION,
    GAINS,
    KNOWN,
    SCALARS,
    column,
    evaluate_samples,
    given,
    samples_of_any_kind,
    samples_of_every_class,
)
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score

from opensetda.metrics.open_set import ClassRow, OpenSetMetrics, evaluate


class TestHandComputed:
    truth = ("a", "a", "a", "a", "b", "b", "x", "x", "x", "y")
    predicted = ("a", "a", "b", "unknown", "b", "unknown", "unknown", "unknown", "a", "b")
    score = (0.9, 0.8, 0.7, 0.2, 0.6, 0.3, 0.1, 0.2, 0.95, 0.6)
    nearest = ("a", "a", "b", "a", "b", "b", "a", "b", "a", "b")

    @pytest.fixture
    def metrics(self) -> OpenSetMetrics:
        return evaluate(
            self.truth,
            self.predicted,
            ["a", "b", "c"],
            known_score=self.score,
            nearest_class=self.nearest,
        )

    def test_accuracies(self, metrics: OpenSetMetrics) -> None:
        assert metrics.all == 5 / 10
        assert metrics.os_star == 1 / 2  # a: 2 of 4, b: 1 of 2; c has no sample
        assert metrics.unk == 2 / 4
        assert metrics.os == (1 / 2 + 1 / 2 + 2 / 4) / 3
        assert metrics.unk_per_class == (2 / 3 + 0) / 2
        assert metrics.hos == 1 / 2

    def test_areas(self, metrics: OpenSetMetrics) -> None:
        # Pairs won by a known, of 6 each: 6 against 0.1, 5.5 against 0.2, none against 0.95,
        # 3.5 against 0.6.
        assert metrics.auroc == 15 / 24
        # The same without the third sample, whose nearest class is wrong.
        assert metrics.oscr == (5 + 4.5 + 0 + 2.5) / 24

    def test_rows(self, metrics: OpenSetMetrics) -> None:
        a, b, c, x, y = metrics.per_class
        assert a == ClassRow("a", "known", 4, 2, 0.5, "b", 1)  # b and unknown tie: b comes first
        assert b == ClassRow("b", "known", 2, 1, 0.5, "unknown", 1)
        assert x == ClassRow("x", "unknown", 3, 2, 2 / 3, "a", 1)
        assert y == ClassRow("y", "unknown", 1, 0, 0.0, "b", 1)
        assert math.isnan(c.accuracy)
        assert replace(c, accuracy=0.0) == ClassRow("c", "known", 0, 0, 0.0, None, 0)

    def test_the_most_frequent_mistake_is_named(self) -> None:
        row = evaluate(list("aaaaab"), list("abcccb"), KNOWN).per_class[0]
        assert (row.confused_with, row.confused_count) == ("c", 3)


class TestLaws:
    @given(samples_of_any_kind)
    def test_values_are_fractions(self, samples: list[tuple[Any, ...]]) -> None:
        metrics = evaluate_samples(samples)
        for name in SCALARS:
            value = getattr(metrics, name)
            assert math.isnan(value) or 0 <= value <= 1, name
        assert sum(row.n for row in metrics.per_class) == len(samples)
        for row in metrics.per_class:
            assert row.confused_count <= row.n - row.correct
            assert (row.confused_with is None) == (row.n == row.correct)

    @given(samples_of_any_kind, st.data())
    def test_row_order_means_nothing(
        self, samples: list[tuple[Any, ...]], data: st.DataObject
    ) -> None:
        shuffled = data.draw(st.permutations(samples))
        assert evaluate_samples(shuffled).to_dict() == evaluate_samples(samples).to_dict()

    @given(samples_of_any_kind)
    def test_only_the_order_of_the_scores_matters(self, samples: list[tuple[Any, ...]]) -> None:
        ranks = np.unique(column(samples, 2), return_inverse=True)[1]
        ranked = [
            (*sample[:2], 1e-300 * (rank - 3), *sample[3:])
            for sample, rank in zip(samples, ranks, strict=True)
        ]
        assert evaluate_samples(ranked).to_dict() == evaluate_samples(samples).to_dict()

    @given(st.lists(st.sampled_from(KNOWN + ALIENS)).map(lambda drawn: drawn + KNOWN + ALIENS))
    def test_perfect_predictions(self, truth: list[str]) -> None:
        metrics = evaluate(
            truth,
            [label if label in KNOWN else "unknown" for label in truth],
            KNOWN,
            known_score=[0.1 if label in KNOWN else -0.1 for label in truth],
            nearest_class=[label if label in KNOWN else "a" for label in truth],
            probabilities=np.eye(4)[
                [KNOWN.index(label) if label in KNOWN else 3 for label in truth]
            ],
        )
        assert [getattr(metrics, name) for name in GAINS] == [1.0] * len(GAINS)
        assert [getattr(metrics, name) for name in CALIBRATION] == [0.0, 0.0]


class TestAgainstOthers:
    @given(samples_of_any_kind)
    def test_all_is_the_accuracy(self, samples: list[tuple[Any, ...]]) -> None:
        pooled = [label if label in KNOWN else "unknown" for label in column(samples, 0)]
        accuracy = accuracy_score(pooled, column(samples, 1))
        assert evaluate_samples(samples).all == pytest.approx(accuracy)

    @given(samples_of_every_class)
    def test_os_is_the_balanced_accuracy(self, samples: list[tuple[Any, ...]]) -> None:
        pooled = [label if label in KNOWN else "unknown" for label in column(samples, 0)]
        balanced = balanced_accuracy_score(pooled, column(samples, 1))
        assert evaluate_samples(samples).os == pytest.approx(balanced)

    def test_auroc_of_scikit_learn(self) -> None:
        rng = np.random.default_rng(0)
        truth = rng.integers(0, 5, 500)
        score = (rng.normal(truth < 3).round(1) * 3).astype(np.float32)
        metrics = evaluate(truth, np.zeros(500, int), [0, 1, 2], known_score=score)
        assert metrics.auroc == pytest.approx(roc_auc_score(truth < 3, score), abs=1e-12)
        assert 0.6 < metrics.auroc < 0.95

    @given(samples_of_every_class)
    def test_oscr_sweeps_thresholds(self, samples: list[tuple[Any, ...]]) -> None:
        known = [sample for sample in samples if sample[0] in KNOWN]
        unknown = [sample for sample in samples if sample[0] in ALIENS]
        curve = [(0.0, 0.0)]
        for threshold in sorted({sample[2] for sample in samples}, reverse=True):
            kept_right = [truth == nearest and s >= threshold for truth, _, s, nearest, _ in known]
            curve.append((np.mean([u[2] >= threshold for u in unknown]), np.mean(kept_right)))
        area = sum(
            (right - left) * (low + high) / 2 for (left, low), (right, high) in pairwise(curve)
        )
        assert evaluate_samples(samples).oscr == pytest.approx(area, abs=1e-12)
