"""Results depend on neither target labels, row order nor batch; a saved classifier keeps them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from conftest import make_task
from estimator_helpers import alone_and_in_company, same_answers
from opensetda import InputError

# Fits of every method, which other tests cover: the tracer would add 40 % to their time.
pytestmark = pytest.mark.no_cover

# Target labels, row order, batch ----------------------------------------------------------


def test_labels_of_targets_may_be_anything(make, task, fitted_by_name):
    """The base class drops them, so one method will do; test_leaks.py has strings for all."""
    target = np.flatnonzero(task.domain < 0)
    y = task.y.astype(object)
    y[target] = np.array([None, 3.5, "?", (), np.nan] * len(target), dtype=object)[: len(target)]
    classifier = make("class-means").fit(task.X, y, task.domain)
    same_answers(classifier, fitted_by_name["class-means"], task.X)


def test_a_sample_gets_the_same_bits_regardless_of_the_batch(fitted, task):
    X = task.X[30:110]
    together, alone, in_sevens = alone_and_in_company(fitted, X)
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together, in_sevens)
    backwards = fitted.predict_proba(X[::-1])[::-1]
    np.testing.assert_array_equal(together, backwards)


def test_the_callers_arrays_are_not_written_to(fitted, task):
    """Read-only arrays, as torch writes into them nevertheless."""
    fitted.predict(task.X)
    fresh = make_task()
    for name in ("X", "y", "domain"):
        assert not getattr(task, name).flags.writeable
        np.testing.assert_array_equal(getattr(task, name), getattr(fresh, name))


def test_a_memory_map_gives_the_same_bits(make, method, task, fitted, tmp_path):
    np.save(tmp_path / "X.npy", task.X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    same_answers(make(method).fit(mapped, task.y, task.domain), fitted, mapped)


def test_identical_targets_get_identical_answers(make, method, task):
    twice = np.concatenate([task.X, task.target[:20]])
    y = np.concatenate([task.y, [""] * 20])
    domain = np.concatenate([task.domain, [-1] * 20])
    one = make(method).fit(twice, y, domain)
    last = slice(-20, None)
    np.testing.assert_array_equal(one.transduction_scores_[:20], one.transduction_scores_[last])
    np.testing.assert_array_equal(one.transduction_[:20], one.transduction_[last])
    assert len(one.transduction_) == len(task.target) + 20


# Save and load ----------------------------------------------------------------------------


def test_a_saved_classifier_predicts_the_same_bits(fitted, task):
    state, arrays = fitted.get_state()
    state = json.loads(json.dumps(state, allow_nan=False))
    assert not any(array.dtype == object for array in arrays.values())
    restored = type(fitted).from_state(state, arrays)
    np.testing.assert_array_equal(restored.predict_proba(task.X), fitted.predict_proba(task.X))
    np.testing.assert_array_equal(restored.predict(task.X), fitted.predict(task.X))
    np.testing.assert_array_equal(
        restored.decision_function(task.X), fitted.decision_function(task.X)
    )


def test_a_state_that_lacks_something_is_refused(fitted):
    state, arrays = fitted.get_state()
    first = next(iter(arrays))
    with pytest.raises((InputError, RuntimeError)):
        type(fitted).from_state(state, {k: v for k, v in arrays.items() if k != first})
    with pytest.raises(InputError, match="version"):
        type(fitted).from_state({**state, "state_version": 99}, arrays)
    with pytest.raises(InputError, match="it is a Other"):
        type(fitted).from_state({**state, "class": "Other"}, arrays)


def test_an_unfitted_classifier_has_no_state(make, method):
    with pytest.raises(NotFittedError):
        make(method).get_state()
