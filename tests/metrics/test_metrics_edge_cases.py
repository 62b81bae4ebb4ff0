"""The metrics where something is missing, odd or wrong, and what they look like as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from metrics_helpers import (
    GAINS,
    KNOWN,
    SCALARS,
    evaluate_samples,
    given,
    samples_of_any_kind,
)

from opensetda.errors import InputError
from opensetda.metrics.open_set import evaluate


class TestEdgeCases:
    def test_no_unknown_sample(self) -> None:
        metrics = evaluate(
            ["a", "b"], ["a", "unknown"], KNOWN, known_score=[1, 0], nearest_class=["a", "b"]
        )
        for name in ("unk", "unk_per_class", "hos", "auroc", "oscr"):
            assert math.isnan(getattr(metrics, name)), name
        assert metrics.os == metrics.os_star == metrics.all == 1 / 2

    def test_no_known_sample(self) -> None:
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

    def test_calibration_errors_need_probabilities_only(self) -> None:
        truth, predicted = ["a", "x"], ["a", "unknown"]
        without = evaluate(truth, predicted, KNOWN, known_score=[1, 0])
        assert (without.ece, without.unknown_ece) == (None, None)
        rows = [[0.5, 0, 0, 0.5], [0.25, 0, 0, 0.75]]
        given = evaluate(truth, predicted, KNOWN, probabilities=rows)
        assert (given.ece, given.unknown_ece) == (0.375, 0.375)
        assert (given.auroc, given.oscr) == (None, None)

    def test_numbers_beside_text(self) -> None:
        metrics = evaluate([3, "moon", 7, 4], [3, "unknown", "unknown", 4], [4, 3])
        assert metrics.all == 1
        assert [row.label for row in metrics.per_class] == [4, 3, 7, "moon"]

    @pytest.mark.parametrize("container", [list, np.array])
    @pytest.mark.parametrize(
        ("labels", "unknown"), [(["b", "a", "z"], "?"), ([2, 1, 9], 0), ([2.5, 1.0, 9.0], 0)]
    )
    def test_containers_and_label_types(
        self, container: Any, labels: list[Any], unknown: Any
    ) -> None:
        metrics = evaluate(
            container(labels),
            container([*labels[:2], unknown]),
            container(labels[:2]),
            unknown_label=unknown,
            known_score=container([1, 2, 0]),
            nearest_class=container([*labels[:2], labels[0]]),
            probabilities=container([[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
        )
        assert [getattr(metrics, name) for name in GAINS] == [1.0] * len(GAINS)
        assert (metrics.ece, metrics.unknown_ece) == (0, 0)
        assert [row.label for row in metrics.per_class] == labels
        assert type(metrics.per_class[0].label) is type(labels[0])

    def test_pandas_columns(self) -> None:
        pandas = pytest.importorskip("pandas")
        truth = pandas.Series(["a", "x"], index=[5, 3], dtype="category")
        predicted = pandas.Series(["a", "unknown"], dtype="string")
        score = pandas.Series([1.0, 0.0], index=[9, 8])
        metrics = evaluate(truth, predicted, pandas.Index(["a"]), known_score=score)
        assert (metrics.all, metrics.auroc) == (1, 1)
        with pytest.raises(InputError, match=r"y_true: row 1 is <NA>"):
            evaluate(pandas.Series(["a", None], dtype="string"), predicted, ["a"])

    def test_order_of_the_classes_does_not_change_the_last_bit(self) -> None:
        truth = [label for label in KNOWN for _ in range(10)]
        predicted = [*"a", *"b" * 9, *"bb", *"a" * 8, *"ccc", *"a" * 7]
        assert (0.1 + 0.2 + 0.3) / 3 != (0.3 + 0.2 + 0.1) / 3
        forward, backward = (evaluate(truth, predicted, order) for order in (KNOWN, KNOWN[::-1]))
        assert [row.accuracy for row in forward.per_class] == [0.1, 0.2, 0.3]
        assert forward.os_star == backward.os_star


class TestToDict:
    @given(samples_of_any_kind)
    def test_is_strict_json(self, samples: list[tuple[Any, ...]]) -> None:
        metrics = evaluate_samples(samples)
        as_dict = metrics.to_dict()
        assert json.loads(json.dumps(as_dict, allow_nan=False)) == as_dict
        for name in SCALARS:
            value = getattr(metrics, name)
            assert as_dict[name] == (None if math.isnan(value) else value)


class TestErrors:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"y_true": []}, "y_true, known_classes: give at least one sample"),
            ({"y_true": ["a", "b", math.nan]}, "y_true: row 2 is nan"),
            ({"y_pred": ["a", "b"]}, "y_pred: 2 rows, but y_true has 3"),
            ({"y_pred": ["a", "b", "x"]}, "y_pred: row 2 is 'x', which is not in known_classes"),
            ({"known_classes": ["a", "b", "a"]}, "known_classes: give each class once"),
            ({"unknown_label": "b"}, "known_classes: .* none that is the unknown label 'b'"),
            ({"known_score": [0, 1]}, r"known_score: expected shape \(3,\), got shape \(2,\)"),
            ({"known_score": [0, None, math.nan]}, "known_score: row 1 has NaN or infinity"),
            ({"probabilities": [[1, 0]] * 3}, r"expected shape \(3, 3\), .*shape \(3, 2\)"),
        ],
    )
    def test_one_line_that_names_the_place(self, changes: dict[str, Any], message: str) -> None:
        arguments = {
            "y_true": ["a", "b", "x"],
            "y_pred": ["a", "b", "unknown"],
            "known_classes": ["a", "b"],
        }
        with pytest.raises(InputError, match=message) as caught:
            evaluate(**(arguments | changes))
        assert "\n" not in str(caught.value)

    def test_numbers_read_as_text_are_not_taken_for_unknowns(self) -> None:
        with pytest.raises(InputError, match=r"y_true: row 0 is '3' \(str\)"):
            evaluate(["3", "8"], [3, "unknown"], [3, 4])
