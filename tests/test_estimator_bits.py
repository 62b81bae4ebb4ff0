"""No label of a target, no order of rows and no company reaches an answer; saved ones stay."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from estimator_helpers import SMALL_PAPER, alone_and_in_company, numbers, same_answers
from opensetda import InputError, PGLClassifier

# No label of a target, no order of rows, no company ---------------------------------------


@pytest.mark.parametrize("kind", ["garbage", "nan"])
def test_labels_of_targets_may_be_anything(make, method, task, fitted, kind):
    """What labels could give away is looked for in test_leaks.py."""
    target = np.flatnonzero(task.domain < 0)
    y = task.y.astype(object)
    y[target] = {
        "garbage": np.array([None, 3.5, "?", ()] * len(target), dtype=object)[: len(target)],
        "nan": np.full(len(target), np.nan),
    }[kind]
    same_answers(make(method).fit(task.X, y, task.domain), fitted, task.X)


def test_nan_as_label_of_number_targets(make, method, task):
    y = numbers(task)
    with_nan = np.where(task.domain < 0, np.nan, y)
    classifiers = [
        make(method, unknown_label=99).fit(task.X, labels, task.domain) for labels in (y, with_nan)
    ]
    same_answers(*classifiers, task.X)


def test_permuting_the_rows_permutes_the_answer(make, method, task, fitted):
    order = np.random.default_rng(3).permutation(len(task.X))
    shuffled = make(method).fit(task.X[order], task.y[order], task.domain[order])
    place = np.full(len(task.X), -1)
    place[task.domain < 0] = np.arange(len(task.target))
    mine = place[order][task.domain[order] < 0]
    np.testing.assert_array_equal(shuffled.transduction_, fitted.transduction_[mine])
    np.testing.assert_array_equal(shuffled.transduction_proba_, fitted.transduction_proba_[mine])
    np.testing.assert_array_equal(shuffled.predict_proba(task.X), fitted.predict_proba(task.X))
    if method == "pgl":
        np.testing.assert_array_equal(shuffled.step_labels_, fitted.step_labels_[:, mine])


def test_a_sample_alone_gets_the_answer_it_gets_in_company(fitted, task):
    together, alone, in_sevens = alone_and_in_company(fitted, task.X[30:110])
    np.testing.assert_allclose(together, alone, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(together, in_sevens, rtol=1e-12, atol=1e-15)


def test_a_sample_alone_gets_the_answer_it_gets_in_company_to_the_bit(fitted, task):
    X = task.X[30:110]
    together, alone, in_sevens = alone_and_in_company(fitted, X)
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together, in_sevens)
    backwards = fitted.predict_proba(X[::-1])[::-1]
    np.testing.assert_array_equal(together, backwards)


def test_the_callers_arrays_are_not_written_to(make, method, task):
    arrays = [array.copy() for array in (task.X, task.y, task.domain)]
    for array in arrays:
        array.flags.writeable = False
    classifier = make(method).fit(*arrays)
    classifier.predict(arrays[0])
    for array, original in zip(arrays, (task.X, task.y, task.domain), strict=True):
        np.testing.assert_array_equal(array, original)


def test_a_memory_map_gives_the_same_bits(make, method, task, fitted, tmp_path):
    np.save(tmp_path / "X.npy", task.X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    same_answers(make(method).fit(mapped, task.y, task.domain), fitted, mapped)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(make, task, fitted_by_name):
    again = make("pgl").fit(task.X, task.y, task.domain)
    same_answers(again, fitted_by_name["pgl"], task.X)
    other = make("pgl", random_state=1).fit(task.X, task.y, task.domain)
    assert (other.transduction_proba_ != again.transduction_proba_).any()


def test_identical_targets_get_identical_answers_in_any_order(make, method, task):
    twice = np.concatenate([task.X, task.target[:20]])
    y = np.concatenate([task.y, [""] * 20])
    domain = np.concatenate([task.domain, [-1] * 20])
    one = make(method).fit(twice, y, domain)
    last, n = slice(-20, None), len(task.target)
    np.testing.assert_array_equal(one.transduction_scores_[:20], one.transduction_scores_[last])
    other = make(method).fit(twice[::-1], y[::-1], domain[::-1])
    np.testing.assert_array_equal(one.transduction_scores_, other.transduction_scores_[::-1])
    assert len(one.transduction_) == n + 20


def test_long_target_labels_leave_no_trace(make, method, task):
    y = task.y.astype("U30")
    y[task.domain < 0] = "a very long label of a target"
    one, other = (make(method).fit(task.X, labels, task.domain) for labels in (task.y, y))
    assert one.classes_.dtype == other.classes_.dtype
    assert one.transduction_.dtype == other.transduction_.dtype


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


@pytest.mark.parametrize("preset", ["default", "paper-office-home"])
def test_a_saved_pgl_without_targets_or_of_the_paper(make, task, preset):
    settings = SMALL_PAPER if preset != "default" else None
    classifier = make("pgl", preset=preset, settings=settings or {"steps": 1})
    classifier.fit(task.source, task.labels)
    restored = PGLClassifier.from_state(*classifier.get_state())
    np.testing.assert_array_equal(restored.predict_proba(task.X), classifier.predict_proba(task.X))


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
