"""What every analysis shares: fitting without the truth, scores over steps, files."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
from analyses_helpers import fits

from opensetda.analyses import steps
from opensetda.analyses.request import share_above, shown
from opensetda.errors import InputError
from opensetda.usecases.evaluate_run import evaluate_targets


def test_ties_count_half_and_undefined_is_a_dash():
    assert shown(0.12345, "HOS %") == "12.3"
    assert shown(math.nan, "risk") == "-"
    assert shown(2, "step") == "2"
    assert share_above(np.array([1.0, 2.0]), np.array([1.0, 0.0])) == (0.5 + 1 + 1 + 1) / 4
    assert math.isnan(share_above(np.array([]), np.array([1.0])))


def test_the_last_step_is_the_result(tmp_path):
    (fitted,) = fits("moving-means", steps=3)
    result = steps.analyse(fitted)
    assert [row["step"] for row in result.rows] == [1, 2, 3]
    metrics = evaluate_targets(fitted.classifier, fitted.task.target_truth)
    assert result.rows[-1]["hos"] == pytest.approx(metrics.hos)
    files = result.write(tmp_path, "steps", "osda analyse steps")
    assert [file.name for file in files] == ["steps.csv", "steps.md", "steps.png"]
    with files[0].open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["hos"]) for row in rows] == [row["hos"] for row in result.rows]
    assert "Made by `osda analyse steps`" in files[1].read_text()


def test_a_method_without_steps_has_no_curve():
    with pytest.raises(InputError, match="--method source-only: it has no steps"):
        steps.analyse(*fits("source-only"))
