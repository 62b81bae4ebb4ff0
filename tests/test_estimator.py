"""The contract of every method: scikit-learn's own checks, the results of a fit, and labels."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from estimator_helpers import METHODS, for_scikit_learns_checks, numbers
from opensetda import InputError


@pytest.mark.no_cover  # 650 small fits of code that other tests cover; tracing adds a half.
@parametrize_with_checks(for_scikit_learns_checks())
def test_scikit_learns_checks(estimator, check):
    check(estimator)


# The results of a fit ---------------------------------------------------------------------


def test_every_target_gets_a_prediction(fitted, task):
    assert fitted.classes_.tolist() == ["ant", "bee", "cat", "dog"]
    n_targets = len(task.target)
    assert fitted.transduction_.shape == (n_targets,)
    assert set(fitted.transduction_) <= {*fitted.classes_, "unknown"}
    assert (fitted.transduction_ == "unknown").sum() == round(n_targets / 3)
    assert fitted.transduction_scores_.shape == (n_targets,)
    assert set(fitted.transduction_nearest_) <= set(fitted.classes_)
    assert fitted.openness_ == pytest.approx(1 / 3)


def test_adaptation_finds_classes_and_unknowns(fitted_by_name, task):
    for method in ("moving-means", "class-means", "smoothed-means"):
        classifier = fitted_by_name[method]
        assert (classifier.transduction_ == task.truth).mean() > 0.9, method
        assert (classifier.predict(task.target) == task.truth).mean() > 0.85, method


def probabilities_agree_with(labels, proba, classes):
    """Unknown is predicted where its probability is above 1/2, else the likeliest class.

    So a class may be predicted where unknown is likelier than each class, but below 1/2.
    """
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert (proba >= 0).all()
    unknown = labels == "unknown"
    np.testing.assert_array_equal(proba[:, -1] > 0.5, unknown)
    likeliest = classes[proba[:, :-1].argmax(axis=1)]
    np.testing.assert_array_equal(likeliest[~unknown], labels[~unknown])


def test_transduction_agrees_with_itself(fitted):
    labels = fitted.transduction_
    probabilities_agree_with(labels, fitted.transduction_proba_, fitted.classes_)
    known = labels != "unknown"
    np.testing.assert_array_equal(labels[known], fitted.transduction_nearest_[known])
    assert fitted.transduction_scores_[~known].max() <= fitted.transduction_scores_[known].min()


def test_probabilities_and_decisions_agree_with_predictions(fitted, task):
    X = np.concatenate([task.X, np.random.default_rng(0).normal(size=(40, 16))])
    labels, proba, decision = (
        fitted.predict(X),
        fitted.predict_proba(X),
        fitted.decision_function(X),
    )
    assert proba.shape == (len(X), 5)
    assert decision.shape == (len(X),)
    probabilities_agree_with(labels, proba, fitted.classes_)
    np.testing.assert_array_equal(decision < 0, labels == "unknown")
    assert 0 < (decision < 0).sum() < len(X)


@pytest.mark.parametrize("name", METHODS)
def test_the_labels_of_every_step_are_kept(fitted_by_name, name):
    classifier = fitted_by_name[name]
    assert [entry["step"] for entry in classifier.history_] == list(
        range(1, len(classifier.history_) + 1)
    )
    if name in ("pgl", "moving-means", "class-means", "smoothed-means", "oslpp"):
        assert classifier.step_labels_.shape == (len(classifier.history_), 72)
        names = np.array([*classifier.classes_, "unknown"])
        last = names[classifier.step_labels_[-1]]
        np.testing.assert_array_equal(last, classifier.transduction_)


def test_score_counts_every_other_label_as_unknown(fitted_by_name, task):
    fitted = fitted_by_name["class-means"]
    labels = fitted.predict(task.target)
    assert fitted.score(task.target, labels) == 1
    renamed = np.where(labels == "unknown", "zebra", labels)
    assert fitted.score(task.target, renamed) == 1
    weights = (labels == "unknown").astype(float)
    assert fitted.score(task.target, np.full(len(labels), "zebra"), sample_weight=weights) == 1
    assert fitted.score(task.target, np.full(len(labels), "zebra")) == weights.mean()


# Labels: encoded and decoded by the base class, so one method will do ----------------------


def test_number_labels_stay_numbers_if_unknown_is_one(make, task, fitted_by_name):
    fitted = fitted_by_name["class-means"]
    classifier = make("class-means", unknown_label=99).fit(task.X, numbers(task), task.domain)
    assert classifier.predict(task.X).dtype.kind == "i"
    assert set(classifier.transduction_) == {0, 1, 2, 3, 99}
    names = {**dict(enumerate(fitted.classes_)), 99: "unknown"}
    assert [names[label] for label in classifier.transduction_] == fitted.transduction_.tolist()


def test_number_labels_are_not_turned_into_text(make, task):
    classifier = make("class-means").fit(task.X, numbers(task), task.domain)
    assert set(classifier.transduction_) == {0, 1, 2, 3, "unknown"}


def test_object_labels(make, task, fitted_by_name):
    classifier = make("class-means").fit(task.X, task.y.astype(object), task.domain)
    expected = fitted_by_name["class-means"].transduction_
    assert classifier.transduction_.tolist() == expected.tolist()


@pytest.mark.parametrize("label", [-1, [1, 2], np.array(["a"])], ids=["minus-one", "list", "array"])
def test_an_unknown_label_that_others_misread_is_refused(make, task, label):
    with pytest.raises(InputError, match="unknown_label"):
        make("class-means", unknown_label=label).fit(task.X, task.y, task.domain)
