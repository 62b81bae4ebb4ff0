"""The calibration error against hand-computed numbers, brute force and its own laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from metrics_helpers import given

from opensetda.metrics.open_set import evaluate, expected_calibration_error

# Few distinct values make ties common.
confidences = st.sampled_from([0.0, -0.0, 0.2, 0.5, 0.9, 1.0]) | st.floats(0, 1)
promises = st.lists(st.tuples(confidences, st.booleans()), min_size=1, max_size=40)
numbers_of_bins = st.integers(1, 20)


def error_of(samples: list[tuple[float, bool]], bins: int = 15) -> float:
    confidence, correct = zip(*samples, strict=True)
    return expected_calibration_error(confidence, correct, bins)


class TestHandComputed:
    def test_two_bins(self) -> None:
        # 0.65 promised and 1/2 kept, 0.85 promised and 2/2 kept.
        error = expected_calibration_error([0.9, 0.6, 0.8, 0.7], [True, False, True, True], bins=2)
        assert error == pytest.approx((0.15 + 0.15) / 2)

    def test_a_tie_across_a_cut(self) -> None:
        # Three of confidence 1/2, one of them right, have a surplus of 1/6 each. The first bin
        # has two of them, the second the third and the right one of 0.9.
        error = expected_calibration_error([0.5, 0.5, 0.9, 0.5], [1, 0, 1, 0], bins=2)
        assert error == pytest.approx((1 / 6 + (1 / 6 - 0.1) / 2) / 2)

    def test_in_the_metrics(self) -> None:
        metrics = evaluate(
            y_true=["a", "x", "b", "y"],
            y_pred=["a", "unknown", "a", "b"],
            known_classes=["b", "a"],
            probabilities=[[0.1, 0.7, 0.2], [0, 0, 1], [0.1, 0.8, 0.1], [0.3, 0.2, 0.5]],
        )
        # The last label is not the most probable one: its own probability counts.
        assert metrics.ece == pytest.approx((0.3 + 0 + 0.8 + 0.3) / 4)
        assert metrics.unknown_ece == pytest.approx((0.2 + 0 + 0.1 + 0.5) / 4)


class TestLaws:
    @given(promises, numbers_of_bins)
    def test_bounds(self, samples: list[tuple[float, bool]], bins: int) -> None:
        surplus = [confidence - correct for confidence, correct in samples]
        error = error_of(samples, bins)
        assert 0 <= error <= 1
        assert abs(np.mean(surplus)) - 1e-12 <= error <= np.abs(surplus).mean() + 1e-12
        assert error_of(samples, 1) == pytest.approx(abs(np.mean(surplus)), abs=1e-12)

    @given(promises, numbers_of_bins, st.data())
    def test_row_order_means_nothing(
        self, samples: list[tuple[float, bool]], bins: int, data: st.DataObject
    ) -> None:
        assert error_of(data.draw(st.permutations(samples)), bins) == error_of(samples, bins)

    @given(promises, numbers_of_bins)
    def test_brute_force(self, samples: list[tuple[float, bool]], bins: int) -> None:
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
