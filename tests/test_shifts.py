from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from feature_shifts import FEATURE_SHIFTS, FeatureShift, feature_task
from opensetda.data.benchmarks.digits import (
    DIGIT_SHIFTS,
    digit_task,
    load_digits_task,
    target_images,
)
from opensetda.errors import InputError

SHIFTED_FEATURES = [name for name in FEATURE_SHIFTS if name != "none"]
SHIFTED_DIGITS = [name for name in DIGIT_SHIFTS if name != "none"]


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def measured(task):
    """Known-class accuracy of source class means, AUROC, and the knowns' cosine with their own."""
    source, known = unit(task.source_features), np.array(task.split.known)
    means = unit(np.stack([source[task.source_labels == name].mean(axis=0) for name in known]))
    cosines = unit(task.target_features) @ means.T
    is_known = np.isin(task.target_truth, known)
    accuracy = (known[cosines.argmax(axis=1)] == task.target_truth)[is_known].mean()
    own = cosines[task.target_truth[:, None] == known]
    return 100 * accuracy, 100 * roc_auc_score(is_known, cosines.max(axis=1)), own.mean()


def features(shift, seed=0):
    return feature_task(10, 10, 64, shift, 0.5, seed)


def assert_equal_tasks(one, other):
    for field in fields(one):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


# The tables of the docstrings of `feature_shifts` and `digits`.
@pytest.mark.parametrize(
    ("name", "accuracy", "auroc"),
    [
        ("none", 96.1, 92.3),
        ("rotation", 82.1, 78.7),
        ("noise", 89.8, 82.0),
        ("translation", 78.4, 74.1),
        ("class-translation", 87.2, 77.4),
        ("all", 82.9, 75.7),
    ],
)
def test_table_of_feature_shifts(name, accuracy, auroc):
    mean = np.mean([measured(features(name, seed)) for seed in range(5)], axis=0)
    assert mean[:2] == pytest.approx([accuracy, auroc], abs=0.2)


@pytest.mark.parametrize(
    ("name", "accuracy", "auroc"),
    [
        ("none", 88.5, 70.5),
        ("rotated", 73.5, 56.2),
        ("noise", 75.0, 63.8),
        ("thickened", 79.6, 65.5),
        ("thinned", 84.8, 67.4),
        ("background", 80.8, 66.6),
        ("shifted-contrast", 79.1, 68.9),
        ("inverted", 13.3, 49.1),
    ],
)
def test_table_of_digit_shifts(name, accuracy, auroc):
    assert measured(digit_task(name))[:2] == pytest.approx([accuracy, auroc], abs=0.2)


def test_feature_task_has_the_form_asked_for():
    task = feature_task(4, 3, 17, "all", 0.3, 1, per_class=20)
    assert task.source_features.shape == (80, 17)
    assert task.target_features.shape == (80 + round(80 * 0.3 / 0.7), 17)
    assert task.source_features.dtype == task.target_features.dtype == np.float32
    assert np.isfinite(task.source_features).all()
    assert np.isfinite(task.target_features).all()
    assert set(task.source_labels) == set(task.split.known)
    assert set(task.target_truth) == set(task.split.known + task.split.unknown)


@pytest.mark.parametrize("openness", [0, 0.8])
def test_openness_is_as_asked(openness):
    task = feature_task(5, 5, 8, "all", openness, 0)
    assert task.openness == pytest.approx(openness, abs=0.5 / len(task.target_truth) + 1e-9)


def test_seeds_fix_the_task():
    assert_equal_tasks(features("all", 3), features("all", 3))
    assert not np.array_equal(features("all", 3).target_features, features("all").target_features)
    assert_equal_tasks(features("noise"), features(FEATURE_SHIFTS["noise"]))


@pytest.mark.parametrize("name", SHIFTED_FEATURES)
def test_a_feature_shift_moves_the_target_only_and_hurts(name):
    plain, shifted = features("none"), features(name)
    np.testing.assert_array_equal(shifted.source_features, plain.source_features)
    np.testing.assert_array_equal(shifted.target_truth, plain.target_truth)
    np.testing.assert_array_equal(shifted.target_rows, plain.target_rows)
    accuracy, auroc, cosine = np.subtract(measured(plain), measured(shifted))
    assert accuracy > 2
    assert auroc > 2
    assert cosine > 0.05
    # Far above the chance of one in ten.
    assert measured(shifted)[0] > 50


def test_without_a_shift_source_and_target_are_distributed_alike():
    def apart(shift):
        task = feature_task(3, 2, 6, shift, 0.4, 0, per_class=2000)
        worst = 0.0
        for name in task.split.known:
            source = task.source_features[task.source_labels == name]
            target = task.target_features[task.target_truth == name]
            error = np.sqrt(source.var(axis=0) / len(source) + target.var(axis=0) / len(target))
            mean = np.abs(source.mean(axis=0) - target.mean(axis=0)) / error
            # The covariance's own standard error is about variance * sqrt(2 / n) at most.
            spread = np.sqrt(np.outer(source.var(axis=0), source.var(axis=0)) * 4 / len(source))
            covariance = np.abs(np.cov(source.T) - np.cov(target.T)) / spread
            worst = max(worst, mean.max(), covariance.max())
        return worst

    assert apart("none") < 4.5
    for name in ("rotation", "noise"):
        assert apart(name) > 9


@pytest.mark.parametrize("n_features", [6, 7])
def test_rotation_keeps_lengths_and_turns_by_the_angle(n_features):
    plain, turned = (
        feature_task(3, 2, n_features, FeatureShift(rotation=angle), 0.4, 0).target_features
        for angle in (0, 0.6)
    )
    np.testing.assert_allclose(
        np.linalg.norm(turned, axis=1), np.linalg.norm(plain, axis=1), rtol=1e-5
    )
    cosines = (unit(plain) * unit(turned)).sum(axis=1)
    # With an odd number of features a row may lie partly in the direction that stays.
    assert cosines.min() >= np.cos(0.6) - 1e-5
    if n_features == 6:
        np.testing.assert_allclose(cosines, np.cos(0.6), atol=1e-5)


def test_strengths_mean_what_they_say():
    def moved(**strengths):
        task = feature_task(3, 2, 8, FeatureShift(**strengths), 0.4, 0, per_class=400)
        plain = feature_task(3, 2, 8, "none", 0.4, 0, per_class=400)
        return task.target_features - plain.target_features, task

    common, _ = moved(translation=0.7)
    np.testing.assert_allclose(common, np.broadcast_to(common[0], common.shape), atol=1e-5)
    assert np.linalg.norm(common[0]) == pytest.approx(0.7, abs=1e-5)

    own, task = moved(class_translation=0.7)
    np.testing.assert_allclose(np.linalg.norm(own, axis=1), 0.7, atol=1e-5)
    means = [own[task.target_truth == name][0] for name in task.split.known + task.split.unknown]
    assert len(np.unique(np.round(means, 3), axis=0)) == 5

    noise, _ = moved(noise=0.7)
    assert np.sqrt((noise**2).sum(axis=1).mean()) == pytest.approx(0.7, rel=0.05)

    plain = feature_task(3, 2, 8, "none", 0.4, 0).target_features
    scaled = feature_task(3, 2, 8, FeatureShift(scaling=0.5), 0.4, 0).target_features
    gain = scaled / plain
    np.testing.assert_allclose(gain, np.broadcast_to(gain[0], gain.shape), rtol=1e-3)
    assert 0.1 < np.log(gain[0]).std() < 1.5


def test_classes_of_a_group_resemble_each_other():
    # 20 classes in 5 groups; class i is of group i mod 5.
    same, other = [], []
    for seed in range(2):
        task = feature_task(18, 2, 64, "none", 0, seed)
        means = unit(
            np.stack(
                [
                    task.source_features[task.source_labels == name].mean(axis=0)
                    for name in task.split.known
                ]
            )
        )
        cosines = means @ means.T
        apart = np.subtract.outer(np.arange(18), np.arange(18))
        same.append(cosines[(apart % 5 == 0) & (apart != 0)].mean())
        other.append(cosines[apart % 5 != 0].mean())
    assert np.mean(same) > np.mean(other) + 0.3


@pytest.mark.parametrize("name", DIGIT_SHIFTS)
def test_digit_task_alters_nothing_but_the_target_features(name):
    task, plain = digit_task(name), load_digits_task()
    assert digit_task(name) is task
    np.testing.assert_array_equal(task.source_features, plain.source_features)
    np.testing.assert_array_equal(task.target_truth, plain.target_truth)
    assert task.target_features.shape == (1797, 128)
    assert task.target_features.dtype == np.float32
    assert np.isfinite(task.target_features).all()
    with pytest.raises(ValueError, match="read-only"):
        task.target_features[0, 0] = 1
    np.testing.assert_array_equal(
        digit_task.__wrapped__(name).target_features, task.target_features
    )


def test_no_digit_shift_is_the_digits_task():
    assert_equal_tasks(digit_task("none"), load_digits_task())


@pytest.mark.parametrize("name", SHIFTED_DIGITS)
def test_a_digit_shift_hurts_and_stays_in_range(name):
    images = target_images()
    altered = DIGIT_SHIFTS[name](images)
    assert altered.shape == images.shape
    assert altered.min() >= 0
    assert altered.max() <= 1
    # The digits themselves are not written to.
    np.testing.assert_array_equal(images, target_images())
    # Every image changes, and the accuracy and the cosine with the source's means fall.
    assert (
        (digit_task(name).target_features != digit_task("none").target_features).any(axis=1).all()
    )
    accuracy, auroc, cosine = np.subtract(measured(digit_task("none")), measured(digit_task(name)))
    assert accuracy > 2
    assert auroc > 1
    assert cosine > 0.002


def test_ink_grows_shrinks_and_turns():
    images = target_images()
    ink = {name: DIGIT_SHIFTS[name](images).mean() / images.mean() for name in DIGIT_SHIFTS}
    assert ink["thinned"] < 0.5
    assert ink["thickened"] > 1.3
    bar = np.zeros((1, 8, 8))
    bar[:, :, 3:5] = 1
    top, bottom = DIGIT_SHIFTS["rotated"](bar)[0][[0, -1]] @ np.arange(8)
    assert top < bottom


def test_wrong_names_and_sizes_are_refused():
    with pytest.raises(InputError, match="'blur'; choose one of none, thickened, thinned"):
        digit_task("blur")
    with pytest.raises(InputError, match="at least 2 features"):
        feature_task(3, 2, 1, "none", 0.4, 0)
    with pytest.raises(InputError, match="at least two are known"):
        feature_task(1, 2, 8, "none", 0.4, 0)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="finite"):
            FeatureShift(noise=wrong)
