"""The metrics against hand-computed numbers, brute force, scikit-learn and their own laws."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from itertools import pairwise

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from opensetda.errors import InputError
from opensetda.metrics.open_set import (
    ClassRow,
    OpenSetMetrics,
    evaluate,
    expected_calibration_error,
)

KNOWN = ["a", "b", "c"]
ALIENS = ["x", "y"]
SCALARS = [field.name for field in fields(OpenSetMetrics) if field.name != "per_class"]


def given(*strategies):
    """Hypothesis's `given` with few examples: the samples are small, and the laws are many."""
    return lambda test: hypothesis.settings(max_examples=20)(hypothesis.given(*strategies)(test))


def column(samples, index):
    return [sample[index] for sample in samples]


def evaluate_samples(samples):
    truth, predicted, score, nearest, probabilities = (column(samples, i) for i in range(5))
    return evaluate(
        truth,
        predicted,
        KNOWN,
        known_score=score,
        nearest_class=nearest,
        probabilities=probabilities,
    )


# Few distinct scores make ties common; the wide floats look for overflow and underflow.
scores = st.sampled_from([0.0, -0.0, 0.25, 0.5, 1.0]) | st.floats(
    allow_nan=False, allow_infinity=False
)
# A few rows, of which some are tied, some certain and some rounded.
probability_rows = st.sampled_from(
    [
        (0.7, 0.1, 0.1, 0.1),
        (0.1, 0.7, 0.1, 0.1),
        (0.0, 0.0, 0.0, 1.0),
        (1.0005, 0.0, 0.0, 0.0),
        (0.1, 0.2, 0.3, 0.4),
        (0.333, 0.333, 0.0, 0.333),
    ]
)
samples_of_any_kind = st.lists(
    st.tuples(
        st.sampled_from(KNOWN + ALIENS),
        st.sampled_from([*KNOWN, "unknown"]),
        scores,
        st.sampled_from(KNOWN),
        probability_rows,
    ),
    min_size=1,
    max_size=30,
)


def with_every_class(samples):
    return [*samples, *((label, "a", 0.5, "b", (0.4, 0.3, 0.2, 0.1)) for label in KNOWN + ALIENS)]


samples_of_every_class = samples_of_any_kind.map(with_every_class)


class TestHandComputed:
    truth = ("a", "a", "a", "a", "b", "b", "x", "x", "x", "y")
    predicted = ("a", "a", "b", "unknown", "b", "unknown", "unknown", "unknown", "a", "b")
    score = (0.9, 0.8, 0.7, 0.2, 0.6, 0.3, 0.1, 0.2, 0.95, 0.6)
    nearest = ("a", "a", "b", "a", "b", "b", "a", "b", "a", "b")

    @pytest.fixture
    def metrics(self):
        return evaluate(
            self.truth,
            self.predicted,
            ["a", "b", "c"],
            known_score=self.score,
            nearest_class=self.nearest,
        )

    def test_accuracies(self, metrics):
        assert metrics.all == 5 / 10
        assert metrics.os_star == 1 / 2  # a: 2 of 4, b: 1 of 2; c has no sample
        assert metrics.unk == 2 / 4
        assert metrics.os == (1 / 2 + 1 / 2 + 2 / 4) / 3
        assert metrics.unk_per_class == (2 / 3 + 0) / 2
        assert metrics.hos == 1 / 2

    def test_areas(self, metrics):
        # Pairs won by a known, of 6 each: 6 against 0.1, 5.5 against 0.2, none against 0.95,
        # 3.5 against 0.6.
        assert metrics.auroc == 15 / 24
        # The same without the third sample, whose nearest class is wrong.
        assert metrics.oscr == (5 + 4.5 + 0 + 2.5) / 24

    def test_rows(self, metrics):
        a, b, c, x, y = metrics.per_class
        assert a == ClassRow("a", "known", 4, 2, 0.5, "b", 1)  # b and unknown tie: b comes first
        assert b == ClassRow("b", "known", 2, 1, 0.5, "unknown", 1)
        assert x == ClassRow("x", "unknown", 3, 2, 2 / 3, "a", 1)
        assert y == ClassRow("y", "unknown", 1, 0, 0.0, "b", 1)
        assert math.isnan(c.accuracy)
        assert replace(c, accuracy=0.0) == ClassRow("c", "known", 0, 0, 0.0, None, 0)

    def test_the_most_frequent_mistake_is_named(self):
        row = evaluate(list("aaaaab"), list("abcccb"), KNOWN).per_class[0]
        assert (row.confused_with, row.confused_count) == ("c", 3)


class TestLaws:
    @given(samples_of_any_kind)
    def test_values_are_fractions(self, samples):
        metrics = evaluate_samples(samples)
        for name in SCALARS:
            value = getattr(metrics, name)
            assert math.isnan(value) or 0 <= value <= 1, name
        assert sum(row.n for row in metrics.per_class) == len(samples)
        for row in metrics.per_class:
            assert row.confused_count <= row.n - row.correct
            assert (row.confused_with is None) == (row.n == row.correct)

    @given(samples_of_any_kind, st.data())
    def test_row_order_means_nothing(self, samples, data):
        shuffled = data.draw(st.permutations(samples))
        assert evaluate_samples(shuffled).to_dict() == evaluate_samples(samples).to_dict()

    @given(samples_of_any_kind)
    def test_only_the_order_of_the_scores_matters(self, samples):
        ranks = np.unique(column(samples, 2), return_inverse=True)[1]
        ranked = [
            (*sample[:2], 1e-300 * (rank - 3), *sample[3:])
            for sample, rank in zip(samples, ranks, strict=True)
        ]
        assert evaluate_samples(ranked).to_dict() == evaluate_samples(samples).to_dict()


class TestAgainstOthers:
    @given(samples_of_every_class)
    def test_os_is_the_balanced_accuracy(self, samples):
        pooled = [label if label in KNOWN else "unknown" for label in column(samples, 0)]
        balanced = balanced_accuracy_score(pooled, column(samples, 1))
        assert evaluate_samples(samples).os == pytest.approx(balanced)

    def test_auroc_of_scikit_learn(self):
        rng = np.random.default_rng(0)
        truth = rng.integers(0, 5, 500)
        score = (rng.normal(truth < 3).round(1) * 3).astype(np.float32)
        metrics = evaluate(truth, np.zeros(500, int), [0, 1, 2], known_score=score)
        assert metrics.auroc == pytest.approx(roc_auc_score(truth < 3, score), abs=1e-12)
        assert 0.6 < metrics.auroc < 0.95

    @given(samples_of_every_class)
    def test_oscr_sweeps_thresholds(self, samples):
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


class TestEdgeCases:
    def test_no_unknown_sample(self):
        metrics = evaluate(
            ["a", "b"], ["a", "unknown"], KNOWN, known_score=[1, 0], nearest_class=["a", "b"]
        )
        for name in ("unk", "unk_per_class", "hos", "auroc", "oscr"):
            assert math.isnan(getattr(metrics, name)), name
        assert metrics.os == metrics.os_star == metrics.all == 1 / 2

    def test_no_known_sample(self):
        metrics = evaluate(
            ["x", "y", "y"],
            ["unknown", "a", "a"],
            KNOWN,
            known_score=[1, 0, 0],
            nearest_class=["a", "a", "a"],
        )
        for name in ("os_star", "hos", "auroc", "oscr"):
            assert math.isnan(getattr(metrics, name)), name
        assert metrics.os == metrics.unk == metrics.all == 1 / 3
        assert metrics.unk_per_class == 1 / 2

    def test_numbers_beside_text(self):
        metrics = evaluate([3, "moon", 7, 4], [3, "unknown", "unknown", 4], [4, 3])
        assert metrics.all == 1
        assert [row.label for row in metrics.per_class] == [4, 3, 7, "moon"]

    def test_pandas_columns(self):
        pandas = pytest.importorskip("pandas")
        truth = pandas.Series(["a", "x"], index=[5, 3], dtype="category")
        predicted = pandas.Series(["a", "unknown"], dtype="string")
        score = pandas.Series([1.0, 0.0], index=[9, 8])
        metrics = evaluate(truth, predicted, pandas.Index(["a"]), known_score=score)
        assert (metrics.all, metrics.auroc) == (1, 1)
        with pytest.raises(InputError, match=r"y_true: row 1 is <NA>"):
            evaluate(pandas.Series(["a", None], dtype="string"), predicted, ["a"])

    def test_order_of_the_classes_does_not_change_the_last_bit(self):
        truth = [label for label in KNOWN for _ in range(10)]
        predicted = [*"a", *"b" * 9, *"bb", *"a" * 8, *"ccc", *"a" * 7]
        assert (0.1 + 0.2 + 0.3) / 3 != (0.3 + 0.2 + 0.1) / 3
        forward, backward = (evaluate(truth, predicted, order) for order in (KNOWN, KNOWN[::-1]))
        assert [row.accuracy for row in forward.per_class] == [0.1, 0.2, 0.3]
        assert forward.os_star == backward.os_star


class TestErrors:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"y_true": ["a", "b", math.nan]}, "y_true: row 2 is nan"),
            ({"y_pred": ["a", "b", "x"]}, "y_pred: row 2 is 'x', which is not in known_classes"),
            ({"known_classes": ["a", "b", "a"]}, "known_classes: give each class once"),
            ({"known_score": [0, None, math.nan]}, "known_score: row 1 has NaN or infinity"),
            ({"probabilities": [[1, 0]] * 3}, r"expected shape \(3, 3\), .*shape \(3, 2\)"),
        ],
    )
    def test_one_line_that_names_the_place(self, changes, message):
        arguments = {
            "y_true": ["a", "b", "x"],
            "y_pred": ["a", "b", "unknown"],
            "known_classes": ["a", "b"],
        }
        with pytest.raises(InputError, match=message) as caught:
            evaluate(**(arguments | changes))
        assert "\n" not in str(caught.value)

    def test_numbers_read_as_text_are_not_taken_for_unknowns(self):
        with pytest.raises(InputError, match=r"y_true: row 0 is '3' \(str\)"):
            evaluate(["3", "8"], [3, "unknown"], [3, 4])


# Calibration ------------------------------------------------------------------------------

# Few distinct values make ties common.
confidences = st.sampled_from([0.0, -0.0, 0.2, 0.5, 0.9, 1.0]) | st.floats(0, 1)
promises = st.lists(st.tuples(confidences, st.booleans()), min_size=1, max_size=40)
numbers_of_bins = st.integers(1, 20)


def error_of(samples, bins=15):
    confidence, correct = zip(*samples, strict=True)
    return expected_calibration_error(confidence, correct, bins)


class TestCalibration:
    def test_a_tie_across_a_cut(self):
        # Three of confidence 1/2, one of them right, have a surplus of 1/6 each. The first bin
        # has two of them, the second the third and the right one of 0.9.
        error = expected_calibration_error([0.5, 0.5, 0.9, 0.5], [1, 0, 1, 0], bins=2)
        assert error == pytest.approx((1 / 6 + (1 / 6 - 0.1) / 2) / 2)

    def test_in_the_metrics(self):
        metrics = evaluate(
            y_true=["a", "x", "b", "y"],
            y_pred=["a", "unknown", "a", "b"],
            known_classes=["b", "a"],
            probabilities=[[0.1, 0.7, 0.2], [0, 0, 1], [0.1, 0.8, 0.1], [0.3, 0.2, 0.5]],
        )
        # The last label is not the most probable one: its own probability counts.
        assert metrics.ece == pytest.approx((0.3 + 0 + 0.8 + 0.3) / 4)
        assert metrics.unknown_ece == pytest.approx((0.2 + 0 + 0.1 + 0.5) / 4)

    @given(promises, numbers_of_bins)
    def test_brute_force(self, samples, bins):
        """With every sample cut into as many crumbs as there are bins, no bin cuts a crumb."""
        bins = min(bins, len(samples))
        confidence = np.array([sample[0] for sample in samples])
        correct = np.array([sample[1] for sample in samples], dtype=float)
        tied_mean = np.array([correct[confidence == value].mean() for value in confidence])
        order = np.argsort(confidence)
        promised = np.repeat(confidence[order], bins).reshape(bins, -1)
        kept = np.repeat(tied_mean[order], bins).reshape(bins, -1)
        expected = np.abs(promised.mean(axis=1) - kept.mean(axis=1)).mean()
        assert error_of(samples, bins) == pytest.approx(expected, abs=1e-12)
