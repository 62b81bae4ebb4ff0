"""The contract on scarce, odd or wrong data: a result, or one line that says what to do."""

from __future__ import annotations

import copy
import re
import warnings

import numpy as np
import pandas as pd
import pytest

from estimator_helpers import METHODS, refused
from opensetda import InputError
from opensetda.context import FitContext

# Corners ----------------------------------------------------------------------------------


def test_a_class_of_one_sample_works(make, method, task):
    rows = np.flatnonzero((task.domain < 0) | (task.y != "cat"))
    rows = np.append(rows, np.flatnonzero(task.y == "cat")[0])
    classifier = make(method).fit(task.X[rows], task.y[rows], task.domain[rows])
    assert "cat" in classifier.classes_
    assert len(classifier.transduction_) == len(task.target)
    # A network learns little of a class of one sample in so few batches.
    if method in ("moving-means", "class-means"):
        assert (classifier.transduction_ == task.truth).mean() > 0.8


@pytest.mark.parametrize(
    ("method", "n_targets"),
    [*((method, 1) for method in METHODS), ("pgl", 2), ("pgl", 3), ("class-means", 3)],
)
def test_few_targets(make, method, task, n_targets):
    rows = np.arange(len(task.source) + n_targets)
    classifier = make(method).fit(task.X[rows], task.y[rows], task.domain[rows])
    assert len(classifier.transduction_) == n_targets
    assert (classifier.transduction_ == "unknown").sum() == round(n_targets / 3)


@pytest.mark.parametrize("openness", ["auto", 1 / 3])
@pytest.mark.parametrize("n_copies", [1, 25])
def test_of_one_target_or_copies_of_it_nothing_is_certain(make, method, task, openness, n_copies):
    rows = np.append(np.arange(len(task.source)), np.repeat(len(task.source), n_copies))
    classifier = make(method, openness=openness)
    classifier.fit(task.X[rows], task.y[rows], task.domain[rows], FitContext())
    # Alone, and for later samples that are the same.
    alone = classifier.transduction_proba_
    assert alone.max() < 0.95
    later = classifier.predict_proba(task.X[rows[-n_copies:]])
    np.testing.assert_allclose(later, alone, atol=0.01)
    assert classifier.transduction_confidence_.max() < 0.95
    assert classifier.predict_proba(task.X[rows[-1:]]).max() < 0.95


def test_without_unknowns_nothing_is_rejected(make, method, task):
    classifier = make(method, openness=0).fit(task.X, task.y, task.domain)
    assert "unknown" not in classifier.transduction_
    assert (classifier.transduction_ == classifier.transduction_nearest_).all()
    assert (classifier.transduction_proba_[:, -1] == 0).all()
    far = np.concatenate([task.X, -5 * task.X])
    assert "unknown" not in classifier.predict(far)
    assert np.isfinite(classifier.predict_proba(far)).all()
    # Later samples keep an order.
    decision = classifier.decision_function(task.target)
    assert np.isfinite(decision).all()
    assert (decision > 0).all()
    assert method == "committee" or len(np.unique(decision)) > 1  # All of its votes are whole.


# Two methods that work in steps with the share, and one that does not.
@pytest.mark.parametrize("method", ["pgl", "class-means", "osbp"])
def test_nearly_all_unknown(make, method, task):
    classifier = make(method, openness=0.999).fit(task.X, task.y, task.domain)
    assert (classifier.transduction_ == "unknown").all()
    assert np.isfinite(classifier.transduction_proba_).all()
    assert (classifier.transduction_proba_.argmax(axis=1) == 4).all()


def test_without_targets_the_classifier_is_a_closed_set_one(fitted, task):
    """And it forgets the targets of an earlier fit."""
    classifier = copy.deepcopy(fitted).fit(task.source, task.labels)
    assert hasattr(fitted, "transduction_")
    assert not hasattr(classifier, "transduction_")
    assert classifier.predict_proba(task.X).shape == (len(task.X), 4)
    assert classifier.decision_function(task.X).shape == (len(task.X), 4)
    assert "unknown" not in classifier.predict(task.X)
    assert classifier.score(task.source, task.labels) > 0.9
    assert classifier.openness_ == 0


def test_two_classes_without_targets_have_one_decision(make, task):
    two = np.isin(task.labels, ["ant", "bee"])
    classifier = make("class-means").fit(task.source[two], task.labels[two])
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


# Wrong input: checked by the base class, so one method will do ------------------------------


WRONG = {
    "one class only": ({"y": np.full(120, "ant")}, "the source has one class only .* two classes"),
    "no source row": ({"sample_domain": np.full(120, -1)}, "no source row"),
    "a domain of text": ({"sample_domain": np.full(120, "s")}, "expected 120 whole numbers"),
    "a domain of a half": ({"sample_domain": np.full(120, 0.5)}, "expected 120 whole numbers"),
    "openness of 1": ({"openness": 1}, r"openness=1: .*\[0, 1\), or 'auto' to have it"),
    "no step": ({"steps": 0}, "'steps' parameter"),
}


@pytest.mark.parametrize(("changes", "line"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_refused_in_a_line(make, task, changes, line):
    data = {"X": task.X, "y": task.y, "sample_domain": task.domain}
    data |= {name: value for name, value in changes.items() if name in data}
    parameters = {name: value for name, value in changes.items() if name not in data}
    assert re.search(line, refused(make("class-means", **parameters), *data.values()))


def test_features_that_are_no_numbers(make, task, fitted_by_name):
    X = task.X.copy()
    X[17, 3] = np.nan
    assert "row 17 contains NaN" in refused(make("class-means"), X, task.y, task.domain)
    with pytest.raises(InputError, match="row 17 contains NaN"):
        fitted_by_name["class-means"].predict(X)


def test_columns_of_a_frame_are_checked_and_warnings_raised(make, task):
    frame = pd.DataFrame(task.X).add_prefix("f")
    message = refused(make("class-means"), frame.assign(op="Ann"), task.y, task.domain)
    assert "X: column 'op' is not numeric (row 1 holds 'Ann')" in message
    classifier, counted = make("class-means"), frame.assign(part=np.arange(len(frame)))
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        classifier.fit(counted, task.y, task.domain.astype(float))
        make("class-means").fit(counted, task.y, task.domain, FitContext())
    first, *others = [str(warning.message) for warning in raised]
    assert (
        "'part' (a counter: evenly spaced numbers); drop them, or use opensetda.usecases" in first
    )
    assert tuple(others) == classifier.openness_report_.warnings


def test_settings_that_do_not_exist(make, task):
    message = refused(make("pgl", settings={"egde_weight": 1}), task.X, task.y, task.domain)
    assert "did you mean 'edge_weight'" in message
    assert "visda-17" in refused(make("pgl", preset="papper"), task.X, task.y, task.domain)
