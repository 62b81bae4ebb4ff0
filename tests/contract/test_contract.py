"""The contract of every method: scikit-learn's checks, results, bits, saved and exported models.

A sample gets the same bits regardless of its batch, after saving, and from a memory map. That
neither target labels nor the order of rows matter is in test_leaks.py.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from conftest import make_task
from estimator_helpers import METHODS, for_scikit_learns_checks, numbers, same_answers
from opensetda import InputError

# The default, a closed form, the paper, a network with its own output for unknown, a rejector.
CHECKED_IN_FULL = ["committee", "moving-means", "pgl", "osbp", "source-only"]
# Of the others, what a method itself can break; the rest is code of the base class.
CHECKS = [
    estimator_checks.check_classifiers_train,
    estimator_checks.check_classifiers_one_label_sample_weights,
    estimator_checks.check_dict_unchanged,
    estimator_checks.check_estimators_dtypes,
    estimator_checks.check_estimators_overwrite_params,
    estimator_checks.check_estimators_pickle,
    estimator_checks.check_fit2d_1feature,
    estimator_checks.check_fit_idempotent,
    estimator_checks.check_methods_sample_order_invariance,
    estimator_checks.check_methods_subset_invariance,
    estimator_checks.check_n_features_in,
    estimator_checks.check_no_attributes_set_in_init,
    estimator_checks.check_readonly_memmap_input,
]

SCORERS = [
    *METHODS,
    *("source-only+osnn", "source-only+osvm"),
    *("ati+quantile", "mmd+quantile", "dann+osnn"),
]
every_scorer = pytest.mark.parametrize("method", SCORERS)
# That of PGL is exported in tests/pgl.
all_but_pgl = pytest.mark.parametrize("method", [name for name in SCORERS if name != "pgl"])


@pytest.mark.no_cover  # Small fits of code that other tests cover; tracing adds a half.
@parametrize_with_checks(
    [for_scikit_learns_checks(method) for method in CHECKED_IN_FULL],
    expected_failed_checks=lambda estimator: {
        "check_dataframe_column_names_consistency": "columns are matched by their names"
    },
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.no_cover
@pytest.mark.parametrize("method", sorted({*METHODS} - {*CHECKED_IN_FULL}))
@pytest.mark.parametrize("check", CHECKS)
def test_some_of_scikit_learns_checks(method, check):
    check(method, for_scikit_learns_checks(method))


# The results of a fit ---------------------------------------------------------------------


def probabilities_agree_with(labels, proba, classes):
    """A label is never less probable than another column of its own row."""
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert (proba >= 0).all()
    names = np.array([*classes, "unknown"])
    np.testing.assert_array_equal(names[proba.argmax(axis=1)], labels)


def test_every_target_gets_a_prediction(fitted, task):
    assert fitted.classes_.tolist() == ["ant", "bee", "cat", "dog"]
    labels, scores = fitted.transduction_, fitted.transduction_scores_
    assert labels.shape == scores.shape == (len(task.target),)
    assert set(labels) <= {*fitted.classes_, "unknown"}
    assert (labels == "unknown").sum() == round(len(task.target) / 3)
    assert fitted.openness_ == pytest.approx(1 / 3)
    probabilities_agree_with(labels, fitted.transduction_proba_, fitted.classes_)
    known = labels != "unknown"
    np.testing.assert_array_equal(labels[known], fitted.transduction_nearest_[known])
    assert scores[~known].max() <= scores[known].min()


def test_probabilities_and_decisions_agree_with_predictions(fitted, task):
    X = np.concatenate([task.X, np.random.default_rng(0).normal(size=(40, 16))])
    labels, proba = fitted.predict(X), fitted.predict_proba(X)
    decision = fitted.decision_function(X)
    assert proba.shape == (len(X), 5)
    probabilities_agree_with(labels, proba, fitted.classes_)
    np.testing.assert_array_equal(decision < 0, labels == "unknown")
    assert 0 < (decision < 0).sum() < len(X)


def test_adaptation_finds_classes_and_unknowns(fitted_by_name, task):
    for method in ("moving-means", "class-means", "smoothed-means"):
        classifier = fitted_by_name[method]
        assert (classifier.transduction_ == task.truth).mean() > 0.9, method
        assert (classifier.predict(task.target) == task.truth).mean() > 0.85, method


def test_the_labels_of_every_step_are_kept(fitted, method):
    steps = [entry["step"] for entry in fitted.history_]
    assert steps == list(range(1, len(steps) + 1))
    if method in ("pgl", "moving-means", "class-means", "smoothed-means"):
        assert fitted.step_labels_.shape == (len(steps), 72)
        names = np.array([*fitted.classes_, "unknown"])
        np.testing.assert_array_equal(names[fitted.step_labels_[-1]], fitted.transduction_)


@pytest.mark.parametrize("method", SCORERS)
def test_predict_gives_targets_the_bits_of_fit(fitted, task):
    scores = fitted.open_set_scores(task.target)
    assert scores.classes.shape == (len(task.target), len(fitted.classes_))
    assert all(np.isfinite(values).all() for values in scores)
    np.testing.assert_array_equal(scores.known, fitted.transduction_scores_)
    np.testing.assert_array_equal(fitted.predict(task.target), fitted.transduction_)
    np.testing.assert_array_equal(fitted.predict_proba(task.target), fitted.transduction_proba_)


def test_the_representation_of_both_domains(fitted, task):
    if not fitted.transforms_domains:
        pytest.skip("has none")
    of_target = fitted.transform(task.X)
    both = fitted.transform(task.X, sample_domain=task.domain)
    np.testing.assert_array_equal(both[task.domain < 0], of_target[task.domain < 0])
    assert np.isfinite(both).all()


# Labels: encoded and decoded by the base class, so one method will do ----------------------


def test_score_counts_every_other_label_as_unknown(fitted_by_name, task):
    fitted = fitted_by_name["class-means"]
    labels = fitted.predict(task.target)
    zebras, weights = np.full(len(labels), "zebra"), (labels == "unknown").astype(float)
    assert fitted.score(task.target, np.where(labels == "unknown", "zebra", labels)) == 1
    assert fitted.score(task.target, zebras, sample_weight=weights) == 1
    assert fitted.score(task.target, zebras) == weights.mean()


def test_number_labels_stay_numbers(make, task, fitted_by_name):
    fitted = fitted_by_name["class-means"]
    classifier = make("class-means", unknown_label=99).fit(task.X, numbers(task), task.domain)
    assert classifier.predict(task.X).dtype.kind == "i"
    names = {**dict(enumerate(fitted.classes_)), 99: "unknown"}
    assert [names[label] for label in classifier.transduction_] == fitted.transduction_.tolist()
    mixed = make("class-means").fit(task.X, numbers(task), task.domain)
    assert set(mixed.transduction_) == {0, 1, 2, 3, "unknown"}


@pytest.mark.parametrize("label", [-1, [1, 2]], ids=["minus-one", "list"])
def test_an_unknown_label_that_others_misread_is_refused(make, task, label):
    with pytest.raises(InputError, match="unknown_label"):
        make("class-means", unknown_label=label).fit(task.X, task.y, task.domain)


# The same bits ----------------------------------------------------------------------------


def check_rows_on_their_own(fitted, X):
    together = fitted.open_set_scores(X)
    order = np.random.default_rng(0).permutation(len(X))
    shuffled = fitted.open_set_scores(X[order])
    alone = [fitted.open_set_scores(row[None]) for row in X[:20]]
    for place, values in enumerate(together):
        np.testing.assert_array_equal(shuffled[place], values[order])
        np.testing.assert_array_equal(np.concatenate([one[place] for one in alone]), values[:20])


@every_scorer
def test_a_sample_gets_the_same_bits_regardless_of_the_batch(fitted):
    check_rows_on_their_own(fitted, make_task(per_class=20, seed=7).X[:200])


@pytest.mark.parametrize("method", ["moving-means", "daod", "osbp", "source-only+osvm"])
def test_an_odd_number_of_columns_and_classes_changes_no_bits(make, method):
    """Rows then begin at other places in memory, which BLAS rounds differently."""
    task = make_task(width=13)
    chosen = task.y != "dog"
    fitted = make(method).fit(task.X[chosen], task.y[chosen], task.domain[chosen])
    check_rows_on_their_own(fitted, make_task(per_class=20, width=13, seed=7).X[:100])


@pytest.mark.no_cover
def test_a_read_only_memory_map_gives_the_same_bits(make, method, task, fitted, tmp_path):
    """The arrays of the task are read-only, too, but torch would write into them nevertheless."""
    np.save(tmp_path / "X.npy", task.X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    same_answers(make(method).fit(mapped, task.y, task.domain), fitted, mapped)
    for name in ("X", "y", "domain"):
        np.testing.assert_array_equal(getattr(task, name), getattr(make_task(), name))


@pytest.mark.no_cover
def test_identical_targets_get_identical_answers(make, method, task):
    twice = np.concatenate([task.X, task.target[:20]])
    y = np.concatenate([task.y, [""] * 20])
    one = make(method).fit(twice, y, np.concatenate([task.domain, [-1] * 20]))
    last = slice(-20, None)
    np.testing.assert_array_equal(one.transduction_scores_[:20], one.transduction_scores_[last])
    np.testing.assert_array_equal(one.transduction_[:20], one.transduction_[last])


# Saved and exported -----------------------------------------------------------------------


@every_scorer
def test_a_saved_classifier_gives_the_same_bits(fitted, task):
    state, arrays = fitted.get_state()
    state = json.loads(json.dumps(state, allow_nan=False))
    assert not any(array.dtype == object for array in arrays.values())
    restored = type(fitted).from_state(state, {name: a.copy() for name, a in arrays.items()})
    for name in ("predict", "predict_proba", "decision_function"):
        mine, theirs = (getattr(one, name)(task.X) for one in (restored, fitted))
        np.testing.assert_array_equal(mine, theirs)


@every_scorer
def test_a_state_that_lacks_something_is_refused(fitted):
    state, arrays = fitted.get_state()
    counters = "num_batches_tracked"  # of batch normalisation in PGL, which nothing reads
    needed = [name for name in arrays if name[:7] == "scorer." and counters not in name]
    for name in needed:
        rest = {key: array for key, array in arrays.items() if key != name}
        with pytest.raises(InputError, match=r"saved model: .*; fit again"):
            type(fitted).from_state(state, rest)
    with pytest.raises(InputError, match="version"):
        type(fitted).from_state({**state, "state_version": 99}, arrays)
    with pytest.raises(InputError, match="it is a Other"):
        type(fitted).from_state({**state, "class": "Other"}, arrays)
    with pytest.raises(NotFittedError):
        clone(fitted).get_state()


# In other people's machinery: code of the base class, so two methods are enough ------------


@pytest.mark.no_cover
def test_a_clone_is_unfitted_and_learns_the_same(fitted, task):
    copy = clone(fitted)
    assert not hasattr(copy, "classes_")
    assert copy.get_params() == fitted.get_params()
    same_answers(copy.fit(task.X, task.y, task.domain), fitted, task.X)


@pytest.mark.parametrize("method", ["pgl", "class-means"])
def test_in_a_pipeline(make, method, task):
    pipeline = make_pipeline(StandardScaler(), make(method))
    name = pipeline.steps[-1][0]
    pipeline.fit(task.X, task.y, **{f"{name}__sample_domain": task.domain})
    by_hand = make(method).fit(StandardScaler().fit_transform(task.X), task.y, task.domain)
    np.testing.assert_array_equal(pipeline[-1].transduction_, by_hand.transduction_)
    assert pipeline.predict(task.X).shape == (len(task.X),)


@pytest.fixture
def skada():
    """Import skada, which switches metadata routing on for the whole process, and switch back."""
    with sklearn.config_context(enable_metadata_routing=True):
        yield pytest.importorskip("skada", reason="the extra 'skada' is not installed")


@pytest.mark.parametrize("own_labels", [True, False])
def test_in_a_skada_pipeline(skada, make, task, own_labels):
    y = numbers(task)
    if not own_labels:  # skada masks the targets' labels by itself
        y[task.domain < 0] = np.random.default_rng(0).integers(0, 4, len(task.target))
    pipeline = skada.make_da_pipeline(StandardScaler(), make("class-means", unknown_label=99))
    pipeline.fit(task.X, y, sample_domain=task.domain)
    inner, scaler = pipeline[-1].base_estimator_, StandardScaler().fit(task.X)
    expected = make("class-means", unknown_label=99)
    expected.fit(scaler.transform(task.X), numbers(task), task.domain)
    np.testing.assert_array_equal(inner.transduction_, expected.transduction_)
    later = expected.predict(scaler.transform(task.target))
    np.testing.assert_array_equal(pipeline.predict(task.target), later)
    assert 99 in inner.transduction_
