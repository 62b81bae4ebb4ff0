"""Features by method: numbers on features of known quality, and where features come from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analyses_helpers import a_request
from opensetda.analyses.embedding import RAW, analyse, embedding_quality
from opensetda.errors import InputError
from opensetda.rows import unit_rows


def clusters(noise, shift=0.0, seed=0):
    """Two known classes and an unknown one, at right angles."""
    rng = np.random.default_rng(seed)
    centres = 10 * np.eye(3, 6)
    labels, truth = np.repeat([0, 1], 40), np.repeat([0, 1, 2], 40)
    source = centres[labels] + noise * rng.normal(size=(80, 6))
    target = centres[truth] + noise * rng.normal(size=(120, 6))
    target[:, 5] += shift
    return source, labels, target, truth


def test_classes_far_apart_and_domains_alike():
    quality = embedding_quality(*clusters(noise=0.5), 2)
    assert quality["silhouette"] > 0.9
    assert quality["purity"] == 1.0
    assert quality["auroc"] == 1.0
    assert quality["a_distance"] < 0.5


def test_noise_alone():
    source, labels, target, truth = clusters(noise=0.5)
    rng = np.random.default_rng(1)
    quality = embedding_quality(
        rng.normal(size=source.shape), labels, rng.normal(size=target.shape), truth, 2
    )
    assert abs(quality["silhouette"]) < 0.1
    assert quality["purity"] == pytest.approx(0.5, abs=0.2)
    assert quality["auroc"] == pytest.approx(0.5, abs=0.15)


def test_a_shift_shows_in_the_distance_of_the_domains():
    quality = embedding_quality(*clusters(noise=0.5, shift=8), 2)
    assert quality["a_distance"] == 2.0
    assert quality["purity"] == 1.0


def test_without_unknowns_nothing_is_said_of_them():
    source, labels, target, truth = clusters(noise=0.5)
    quality = embedding_quality(source, labels, target[:80], truth[:80], 2)
    assert math.isnan(quality["auroc"])


def test_features_are_those_of_transform_in_the_order_of_the_task():
    fitted = a_request("class-means").fit()
    # Class means have each domain centred on its own mean.
    task = fitted.task
    both = (task.source_features, task.target_features)
    for rows, raw in zip(fitted.features(), both, strict=True):
        unit = unit_rows(raw)
        np.testing.assert_allclose(rows, unit_rows(unit - unit.mean(axis=0)), atol=1e-5)


def test_the_analysis_has_a_row_and_a_panel_for_each_method():
    request = a_request("class-means", "moving-means")
    result = analyse(request)
    assert [row["method"] for row in result.rows] == [RAW, "class-means", "moving-means"]
    assert len(result.figure.axes) == 3
    n_samples = len(request.task.source_labels) + len(request.task.target_truth)
    drawn = sum(len(points.get_offsets()) for points in result.figure.axes[0].collections)
    assert drawn == n_samples


def test_a_method_without_features_is_refused():
    with pytest.raises(InputError, match="--method source-only: it learns no features"):
        analyse(a_request("source-only"))
