"""The contract where data is scarce, odd or wrong: it works, or one line says what to do."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_helpers import refused
from opensetda import InputError

# Corners ----------------------------------------------------------------------------------


def test_a_class_of_one_sample_works(make, method, task):
    rows = np.flatnonzero((task.domain < 0) | (task.y != "cat"))
    rows = np.append(rows, np.flatnonzero(task.y == "cat")[0])
    classifier = make(method).fit(task.X[rows], task.y[rows], task.domain[rows])
    assert "cat" in classifier.classes_
    assert len(classifier.transduction_) == len(task.target)
    # A network that saw sixty batches makes little of a class of one.
    if method in ("pgl", "class-means"):
        assert (classifier.transduction_ == task.truth).mean() > 0.8


@pytest.mark.parametrize("n_targets", [1, 2, 3])
def test_few_targets(make, method, task, n_targets):
    rows = np.arange(len(task.source) + n_targets)
    classifier = make(method).fit(task.X[rows], task.y[rows], task.domain[rows])
    assert len(classifier.transduction_) == n_targets
    assert (classifier.transduction_ == "unknown").sum() == round(n_targets / 3)


def test_without_unknowns_nothing_is_rejected(make, method, task):
    classifier = make(method, openness=0).fit(task.X, task.y, task.domain)
    assert "unknown" not in classifier.transduction_
    assert (classifier.transduction_ == classifier.transduction_nearest_).all()
    assert (classifier.transduction_proba_[:, -1] == 0).all()
    far = np.concatenate([task.X, -5 * task.X])
    assert "unknown" not in classifier.predict(far)
    assert np.isfinite(classifier.predict_proba(far)).all()


def test_nearly_all_unknown(make, method, task):
    classifier = make(method, openness=0.999).fit(task.X, task.y, task.domain)
    assert (classifier.transduction_ == "unknown").all()
    assert np.isfinite(classifier.transduction_proba_).all()
    assert (classifier.transduction_proba_.argmax(axis=1) == 4).all()


def test_without_targets_the_classifier_is_a_closed_set_one(make, method, task):
    for domain in (None, np.ones(len(task.source), dtype=int)):
        classifier = make(method).fit(task.source, task.labels, sample_domain=domain)
        assert classifier.predict_proba(task.X).shape == (len(task.X), 4)
        assert classifier.decision_function(task.X).shape == (len(task.X), 4)
        assert not hasattr(classifier, "transduction_")
        assert "unknown" not in classifier.predict(task.X)
        assert classifier.score(task.source, task.labels) > 0.9
        assert classifier.openness_ == 0
    two = np.isin(task.labels, ["ant", "bee"])
    classifier = make(method).fit(task.source[two], task.labels[two])
    decision = classifier.decision_function(task.X)
    assert decision.shape == (len(task.X),)
    np.testing.assert_array_equal(decision > 0, classifier.predict(task.X) == "bee")


def test_constant_rows_do_not_break_anything(make, method, task):
    classifier = make(method).fit(np.ones_like(task.X), task.y, task.domain)
    assert len(classifier.transduction_) == len(task.target)
    assert np.isfinite(classifier.predict_proba(task.X)).all()


def test_one_feature(make, method, task):
    classifier = make(method).fit(task.X[:, :1], task.y, task.domain)
    assert np.isfinite(classifier.transduction_proba_).all()


def test_fitting_again_without_targets_forgets_them(make, method, task):
    classifier = make(method).fit(task.X, task.y, task.domain)
    labelled = task.domain > 0
    classifier.fit(task.X[labelled], task.y[labelled])
    assert not hasattr(classifier, "transduction_")
    assert not hasattr(classifier, "rejection_threshold_")
    assert classifier.predict_proba(task.X).shape[1] == len(classifier.classes_)


def test_openness_zero_keeps_the_order_of_later_samples(make, method, task):
    classifier = make(method, openness=0.0).fit(task.X, task.y, task.domain)
    decision = classifier.decision_function(task.target)
    assert np.isfinite(decision).all()
    assert (decision > 0).all()
    assert len(np.unique(decision)) > 1


# Wrong input: one line that says what to do -----------------------------------------------


def test_one_class_only(make, method, task):
    y = np.full(len(task.y), "ant")
    message = refused(make(method), task.X, y, task.domain)
    assert message.startswith("the source has one class only")
    assert "at least two classes" in message


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "inf")])
def test_features_that_are_no_numbers(make, method, task, value, word):
    X = task.X.copy()
    X[17, 3] = value
    message = refused(make(method), X, task.y, task.domain)
    assert "row 17" in message
    assert word in message


def test_later_features_that_are_no_numbers(fitted, task):
    X = task.X[:5].copy()
    X[2, 3] = np.nan
    with pytest.raises(InputError, match="row 2 contains NaN"):
        fitted.predict(X)


@pytest.mark.parametrize("openness", [1.0, 1, -0.1, 7, float("nan"), True])
def test_openness_out_of_range(make, method, task, openness):
    message = refused(make(method, openness=openness), task.X, task.y, task.domain)
    assert message.startswith(f"openness={openness!r}: ")
    assert "[0, 1)" in message


def test_openness_is_estimated_unless_it_is_told(make, method, task):
    assert type(make(method))().openness == "auto"
    classifier = make(method, openness="auto").fit(task.X, task.y, task.domain)
    assert not classifier.openness_report_.told
    assert classifier.openness_ == classifier.openness_report_.share
    rejected = (classifier.transduction_ == "unknown").sum()
    assert rejected == round(classifier.openness_ * len(task.target))
    message = refused(make(method, openness="avto"), task.X, task.y, task.domain)
    assert message.startswith("openness='avto': ")
    assert "or 'auto' to have it estimated" in message


@pytest.mark.parametrize("openness", [None, [0.5]])
def test_openness_that_is_no_number(make, task, openness):
    assert "openness" in refused(
        make("class-means", openness=openness), task.X, task.y, task.domain
    )


def test_no_source_row(make, method, task):
    assert "no source row" in refused(make(method), task.X, task.y, -np.abs(task.domain))


@pytest.mark.parametrize(
    "domain", [np.ones(3, dtype=int), np.full(120, 0.5), np.full(120, "s")], ids=str
)
def test_a_domain_of_the_wrong_kind(make, task, domain):
    assert len(task.X) == 120
    message = refused(make("class-means"), task.X, task.y, domain)
    assert "sample_domain: expected 120 whole numbers" in message


def test_settings_that_do_not_exist(make, task):
    message = refused(make("pgl", settings={"losses.egde": 1}), task.X, task.y, task.domain)
    assert "did you mean 'losses.edge'" in message
    assert "paper-visda" in refused(make("pgl", preset="papper"), task.X, task.y, task.domain)


def test_wrong_steps_of_the_class_means(make, task):
    assert "'steps' parameter" in refused(make("class-means", steps=0), task.X, task.y, task.domain)
