"""Features by method: numbers on features of known quality, and where features come from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analyses_helpers import QUICK, SmallTasks, a_request
from opensetda.analyses.embedding import RAW, analyse, embedding_quality, features_of
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
    assert quality.silhouette > 0.9
    assert quality.purity == 1.0
    assert quality.auroc == 1.0
    assert quality.a_distance < 0.5


def test_noise_alone():
    source, labels, target, truth = clusters(noise=0.5)
    rng = np.random.default_rng(1)
    quality = embedding_quality(
        rng.normal(size=source.shape), labels, rng.normal(size=target.shape), truth, 2
    )
    assert abs(quality.silhouette) < 0.1
    assert quality.purity == pytest.approx(0.5, abs=0.2)
    assert quality.auroc == pytest.approx(0.5, abs=0.15)


def test_a_shift_shows_in_the_distance_of_the_domains():
    quality = embedding_quality(*clusters(noise=0.5, shift=8), 2)
    assert quality.a_distance == 2.0
    assert quality.purity == 1.0


def test_without_unknowns_nothing_is_said_of_them():
    source, labels, target, truth = clusters(noise=0.5)
    quality = embedding_quality(source, labels, target[:80], truth[:80], 2)
    assert math.isnan(quality.auroc)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    [run] = a_request(tmp_path_factory.mktemp("out"), tasks=SmallTasks(("0",))).pgl_runs()
    return run


def test_class_means_have_each_domain_centred_on_its_own_mean(run):
    task = run.tasks.load("0")
    source, target = features_of("class-means", task, run)
    for rows, raw in ((source, task.source_features), (target, task.target_features)):
        unit = unit_rows(raw)
        expected = unit_rows(unit - unit.mean(axis=0))
        np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_raw_rows_are_those_of_the_task(run):
    task = run.tasks.load("0")
    source, target = features_of(RAW, task, run)
    assert source is task.source_features
    assert target is task.target_features


def test_pgls_rows_are_in_the_order_of_the_task(run):
    task = run.tasks.load("0")
    source, target = features_of("pgl", task, run)
    # Embeddings stay near the rows that they come from: the nearest class mean is the row's own.
    means = np.stack([source[task.source_labels == name].mean(0) for name in task.split.known])
    nearest = np.array(task.split.known)[(source @ means.T).argmax(axis=1)]
    assert (nearest == task.source_labels).mean() > 0.9
    known = np.isin(task.target_truth, task.split.known)
    nearest = np.array(task.split.known)[(target[known] @ means.T).argmax(axis=1)]
    assert (nearest == task.target_truth[known]).mean() > 0.7


def test_the_analysis_has_a_row_and_a_panel_a_method(tmp_path):
    request = a_request(tmp_path, tasks=SmallTasks(("0",)), methods=("class-means", "pgl"))
    result = analyse(request)
    assert [row["method"] for row in result.table.rows] == [RAW, "class-means", "pgl"]
    assert len(result.figure.axes) == 3
    n_samples = len(SmallTasks().load("0").source_labels) + len(SmallTasks().load("0").target_truth)
    drawn = sum(len(points.get_offsets()) for points in result.figure.axes[0].collections)
    assert drawn == n_samples


def test_a_method_without_features_is_refused(tmp_path):
    with pytest.raises(InputError, match="--method source-only: it learns no features"):
        analyse(a_request(tmp_path, tasks=SmallTasks(("0",)), methods=("source-only",)))
    with pytest.raises(InputError, match="method 'nonsense' does not exist"):
        analyse(a_request(tmp_path, tasks=SmallTasks(("0",)), methods=("nonsense",)))


def test_quick_settings_reach_pgl(run):
    assert run.changes == QUICK
