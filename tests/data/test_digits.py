from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opensetda import ClassMeans, SourceOnly, evaluate
from opensetda.data.benchmarks import digits
from opensetda.data.images.decoding import decode_image
from opensetda.data.images.loading import read_image_domains, read_image_truth


@pytest.fixture(scope="module")
def task():
    return digits.load_digits_task()


def test_protocol(task):
    assert task.source_features.shape == (2500, 128)
    assert task.target_features.shape == (1797, 128)
    assert task.source_features.dtype == task.target_features.dtype == np.float32
    assert sorted(set(task.source_labels.tolist())) == list("01234")
    assert sorted(set(task.target_truth.tolist())) == list("0123456789")
    assert task.split.unknown == tuple("56789")
    assert task.openness == pytest.approx(896 / 1797)


def test_scores_of_the_features(task):
    X = np.concatenate([task.source_features, task.target_features])
    y = np.concatenate([task.source_labels, np.full(1797, "0")])
    domain = np.repeat([0, -1], [2500, 1797])
    for method, expected in ((SourceOnly, 77.8), (ClassMeans, 81.6)):
        classifier = method(openness=task.openness).fit(X, y, sample_domain=domain)
        hos = evaluate(task.target_truth, classifier.transduction_, classifier.classes_).hos
        assert 100 * hos == pytest.approx(expected, abs=0.3)


def test_digits_as_image_folders(tmp_path):
    source, target = read_image_domains(*digits.write_image_folders(tmp_path, every=50))
    assert source.class_counts().keys() == set("01234")
    assert len(target) == 36
    truth = read_image_truth(tmp_path / "scikit-learn").labels
    assert set(truth) == set("0123456789")
    pixels = decode_image(target.paths[0])
    row = int(Path(target.paths[0]).stem)
    expected = np.round(255 * digits._scikit_learn_digits()[0][row])
    np.testing.assert_array_equal(pixels[..., 0], expected)
