"""Features by method: numbers on features of known quality, and where features come from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from analyses_helpers import fits

from opensetda.analyses.embedding import RAW, analyse, embedding_quality
from opensetda.errors import InputError
from opensetda.rows import unit_rows


def clusters(shift=0.0):
    """Two known classes and an unknown one, at right angles."""
    rng = np.random.default_rng(0)
    centres = 10 * np.eye(3, 6)
    labels, truth = np.repeat([0, 1], 40), np.repeat([0, 1, 2], 40)
    source = centres[labels] + 0.5 * rng.normal(size=(80, 6))
    target = centres[truth] + 0.5 * rng.normal(size=(120, 6))
    target[:, 5] += shift
    return source, labels, target, truth


def test_classes_far_apart_and_domains_alike():
    quality = embedding_quality(*clusters(), 2)
    assert (quality["purity"], quality["auroc"]) == (1.0, 1.0)
    assert quality["a_distance"] < 0.5


def test_a_shift_shows_in_the_distance_of_the_domains():
    source, labels, target, truth = clusters(shift=8)
    quality = embedding_quality(source, labels, target[:80], truth[:80], 2)
    assert (quality["a_distance"], quality["purity"]) == (2.0, 1.0)
    assert math.isnan(quality["auroc"])  # without unknowns nothing is said of them


def test_the_analysis_has_a_row_and_a_panel_for_each_method():
    fitted, other = fits("class-means", "moving-means")
    task = fitted.task
    # Class means have each domain centred on its own mean.
    for rows, raw in zip(
        fitted.features(), (task.source_features, task.target_features), strict=True
    ):
        unit = unit_rows(raw)
        np.testing.assert_allclose(rows, unit_rows(unit - unit.mean(axis=0)), atol=1e-5)
    result = analyse(fitted, other)
    assert [row["method"] for row in result.rows] == [RAW, "class-means", "moving-means"]
    assert len(result.figure.axes) == 3
    drawn = sum(len(points.get_offsets()) for points in result.figure.axes[0].collections)
    assert drawn == len(task.source_labels) + len(task.target_truth)
    legend = [text.get_text() for text in result.figure.legends[0].get_texts()]
    assert legend == ["unknown", *sorted(task.split.known)]


def test_a_method_without_features_is_refused():
    with pytest.raises(InputError, match="--method source-only: it learns no features"):
        analyse(*fits("source-only"))
