"""The contract of every method, from scikit-learn's own checks to the last bit."""

from __future__ import annotations

import json

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from opensetda import InputError, PGLClassifier, ProgressiveClassMeans, SourceOnly
from opensetda.pgl.episodes import EpisodeSampler
from opensetda.pgl.settings import ABLATIONS, PRESETS, PGLSettings

METHODS = ["pgl", "class-means", "source-only"]
SMALL_PAPER = {
    "steps": 3,
    "graph.edge_width": 6,
    "graph.node_width": 8,
    "optimiser.first_step_epochs": 1,
    "optimiser.epochs_per_step": 1,
    "optimiser.iterations_per_epoch": 3,
    "ranking.draws": 1,
}


@parametrize_with_checks(
    [
        PGLClassifier(settings={"steps": 2, "optimiser.iterations_per_epoch": 2}, random_state=0),
        ProgressiveClassMeans(),
        SourceOnly(),
    ]
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.fixture
def make(quick):
    def make(method, **parameters):
        parameters = {"openness": 1 / 3, **parameters}
        if method == "pgl":
            return PGLClassifier(**{"settings": quick, "random_state": 0, **parameters})
        return {"class-means": ProgressiveClassMeans, "source-only": SourceOnly}[method](
            **parameters
        )

    return make


@pytest.fixture(scope="module")
def fitted_by_name(task, quick):
    """One fitted classifier a method, for tests that only look."""
    classifiers = {
        "pgl": PGLClassifier(openness=task.openness, settings=quick, random_state=0),
        "class-means": ProgressiveClassMeans(openness=task.openness),
        "source-only": SourceOnly(openness=task.openness),
    }
    for classifier in classifiers.values():
        classifier.fit(task.X, task.y, sample_domain=task.domain)
    return classifiers


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


@pytest.fixture
def fitted(fitted_by_name, method):
    return fitted_by_name[method]


# What comes out ---------------------------------------------------------------------------


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
    for method in ("pgl", "class-means"):
        classifier = fitted_by_name[method]
        assert (classifier.transduction_ == task.truth).mean() > 0.9, method
        assert (classifier.predict(task.target) == task.truth).mean() > 0.85, method


def probabilities_agree_with(labels, proba, classes):
    """Unknown is said where its probability is above 1/2; any other label is the likeliest class.

    So unknown may be the likeliest of all where a class is named: below 1/2, but
    ahead of each class by itself.
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
    if name != "source-only":
        assert classifier.step_labels_.shape == (len(classifier.history_), 72)
        names = np.array([*classifier.classes_, "unknown"])
        last = names[classifier.step_labels_[-1]]
        np.testing.assert_array_equal(last, classifier.transduction_)


def test_score_counts_every_other_label_as_unknown(fitted, task):
    labels = fitted.predict(task.target)
    assert fitted.score(task.target, labels) == 1
    renamed = np.where(labels == "unknown", "zebra", labels)
    assert fitted.score(task.target, renamed) == 1
    weights = (labels == "unknown").astype(float)
    assert fitted.score(task.target, np.full(len(labels), "zebra"), sample_weight=weights) == 1
    assert fitted.score(task.target, np.full(len(labels), "zebra")) == weights.mean()


# Labels -----------------------------------------------------------------------------------


def numbers(task):
    """The task with classes 0 to 3, and -1 for targets, as skada has it."""
    _, y = np.unique(task.labels, return_inverse=True)
    return np.concatenate([y, np.full(len(task.target), -1)])


def test_number_labels_stay_numbers_if_unknown_is_one(make, method, task, fitted):
    classifier = make(method, unknown_label=99).fit(task.X, numbers(task), task.domain)
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
def test_an_unknown_label_that_others_misread_is_refused(make, method, task, label):
    with pytest.raises(InputError, match="unknown_label"):
        make(method, unknown_label=label).fit(task.X, task.y, task.domain)


def test_an_unknown_label_that_is_a_class_is_refused(make, method, task):
    with pytest.raises(InputError, match="unknown_label='cat' is a class"):
        make(method, unknown_label="cat").fit(task.X, task.y, task.domain)


# No label of a target, no order of rows, no company ---------------------------------------


def same_answers(one, other, X):
    np.testing.assert_array_equal(one.transduction_, other.transduction_)
    np.testing.assert_array_equal(one.transduction_proba_, other.transduction_proba_)
    np.testing.assert_array_equal(one.transduction_scores_, other.transduction_scores_)
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))


@pytest.mark.parametrize("kind", ["truth", "shuffled", "garbage", "nan"])
def test_labels_of_targets_are_never_looked_at(make, method, task, fitted, kind):
    target = np.flatnonzero(task.domain < 0)
    y = task.y.astype(object)
    rng = np.random.default_rng(0)
    y[target] = {
        "truth": task.truth,
        "shuffled": rng.permutation(task.truth),
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


def alone_and_in_company(classifier, X):
    together = classifier.predict_proba(X)
    alone = np.concatenate([classifier.predict_proba(row[None]) for row in X])
    in_sevens = np.concatenate(
        [classifier.predict_proba(X[start : start + 7]) for start in range(0, len(X), 7)]
    )
    return together, alone, in_sevens


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


# Corners ----------------------------------------------------------------------------------


def test_a_class_of_one_sample_works(make, method, task):
    rows = np.flatnonzero((task.domain < 0) | (task.y != "cat"))
    rows = np.append(rows, np.flatnonzero(task.y == "cat")[0])
    classifier = make(method).fit(task.X[rows], task.y[rows], task.domain[rows])
    assert "cat" in classifier.classes_
    assert len(classifier.transduction_) == len(task.target)
    if method != "source-only":
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


# Wrong input: one line that says what to do -----------------------------------------------


def refused(classifier, *arguments):
    with pytest.raises(InputError) as caught:
        classifier.fit(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
    assert "steps=0" in refused(make("class-means", steps=0), task.X, task.y, task.domain)


# The paper, and what it leaves out in turn --------------------------------------------------


@pytest.mark.parametrize("preset", sorted(set(PRESETS) - {"default", "finetune"}))
def test_the_papers_presets_run(make, task, preset):
    classifier = make("pgl", preset=preset, settings=SMALL_PAPER)
    classifier.fit(task.X, task.y, task.domain)
    assert len(classifier.transduction_) == len(task.target)
    assert set(classifier.history_[-1]["loss"]) == {"node", "edge", "adversary"}
    assert all(np.isfinite(entry["mean_score"]) for entry in classifier.history_)
    assert set(classifier.predict(task.X)) <= {*classifier.classes_, "unknown"}
    together, alone, _ = alone_and_in_company(classifier, task.X[::10])
    np.testing.assert_allclose(together, alone, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("preset", ["default", "paper-office-home"])
@pytest.mark.parametrize("name", sorted(ABLATIONS))
def test_every_ablation_runs(make, task, quick, preset, name):
    settings = {**(quick if preset == "default" else SMALL_PAPER), **ABLATIONS[name]}
    classifier = make("pgl", preset=preset, settings=settings).fit(task.X, task.y, task.domain)
    assert np.isfinite(classifier.predict_proba(task.X)).all()
    losses = {key for entry in classifier.history_ for key in entry["loss"] or ()}
    gone = {"no-edge-loss": "edge", "no-graph": "edge", "no-adversary": "adversary"}
    assert gone.get(name) not in losses
    assert len(classifier._support.network.layers) == (name != "no-graph")
    assert (len(classifier.history_) == 1) == (name == "no-progressive-steps")


@pytest.mark.parametrize(
    "changes",
    [
        {"graph.layers": 2},
        {"graph.neighbours": None},
        {"alignment.components": None},
        {"ranking.confidence": "softmax"},
        {"episodes.labelled_queries": False},
        {"optimiser.warm_start": False},
        {"ranking.support_nodes": 8},
    ],
    ids=str,
)
def test_other_settings_run(make, task, quick, changes):
    classifier = make("pgl", settings={**quick, **changes}).fit(task.X, task.y, task.domain)
    assert (classifier.transduction_ == task.truth).mean() > 0.7
    assert (classifier.predict(task.target) == classifier.transduction_).mean() > 0.7


# In other people's machinery ----------------------------------------------------------------


def test_in_a_pipeline(make, method, task):
    pipeline = make_pipeline(StandardScaler(), make(method))
    name = pipeline.steps[-1][0]
    pipeline.fit(task.X, task.y, **{f"{name}__sample_domain": task.domain})
    by_hand = make(method).fit(StandardScaler().fit_transform(task.X), task.y, task.domain)
    np.testing.assert_array_equal(pipeline[-1].transduction_, by_hand.transduction_)
    assert pipeline.predict(task.X).shape == (len(task.X),)


def test_a_clone_is_unfitted_and_learns_the_same(fitted, task):
    copy = clone(fitted)
    assert not hasattr(copy, "classes_")
    assert copy.get_params() == fitted.get_params()
    same_answers(copy.fit(task.X, task.y, task.domain), fitted, task.X)


def test_in_a_grid_search(task, quick):
    y = np.concatenate([task.labels, task.truth])
    few = {**quick, "steps": 1}
    search = GridSearchCV(
        PGLClassifier(random_state=0),
        {"openness": [0.0, 1 / 3], "settings": [few, {**few, "steps": 2}]},
        cv=KFold(2, shuffle=True, random_state=0),
        error_score="raise",
    )
    search.fit(task.X, y, sample_domain=task.domain)
    # Only a search in which targets arrived as targets can tell the openness.
    assert search.best_params_["openness"] == 1 / 3
    assert len(search.best_estimator_.transduction_) == len(task.target)
    assert "unknown" in search.predict(task.X)


@pytest.fixture
def skada():
    """Import skada, which switches metadata routing on for the whole process, and switch back."""
    with sklearn.config_context(enable_metadata_routing=True):
        yield pytest.importorskip(
            "skada", reason="the extra 'skada' is not installed: pip install opensetda[skada]"
        )


@pytest.mark.parametrize("own_labels", [True, False], ids=["masked", "true-labels"])
def test_in_a_skada_pipeline(skada, make, method, task, own_labels):
    y = numbers(task)
    if not own_labels:  # skada masks the targets' labels by itself
        y[task.domain < 0] = np.random.default_rng(0).integers(0, 4, len(task.target))
    classifier = make(method, unknown_label=99).set_fit_request(sample_domain=True)
    pipeline = skada.make_da_pipeline(StandardScaler(), classifier)
    pipeline.fit(task.X, y, sample_domain=task.domain)
    inner = pipeline[-1].base_estimator_
    assert inner.has_target_
    expected = make(method, unknown_label=99).fit(
        StandardScaler().fit_transform(task.X), numbers(task), task.domain
    )
    np.testing.assert_array_equal(inner.transduction_, expected.transduction_)
    scaled = StandardScaler().fit(task.X).transform(task.target)
    np.testing.assert_array_equal(pipeline.predict(task.target), expected.predict(scaled))
    assert 99 in inner.transduction_


def test_skada_scores_a_pipeline(skada, make, task):
    classifier = make("class-means", unknown_label=99).set_fit_request(sample_domain=True)
    pipeline = skada.make_da_pipeline(classifier)
    pipeline.fit(task.X, numbers(task), sample_domain=task.domain)
    truth = [{"ant": 0, "bee": 1, "cat": 2, "dog": 3, "unknown": 99}[name] for name in task.truth]
    assert pipeline.score(task.target, np.array(truth)) > 0.85


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


def test_fitting_again_without_targets_forgets_them(make, method, task):
    classifier = make(method).fit(task.X, task.y, task.domain)
    labelled = task.domain > 0
    classifier.fit(task.X[labelled], task.y[labelled])
    assert not hasattr(classifier, "transduction_")
    assert not hasattr(classifier, "rejection_threshold_")
    assert classifier.predict_proba(task.X).shape[1] == len(classifier.classes_)


def test_long_target_labels_leave_no_trace(make, method, task):
    y = task.y.astype("U30")
    y[task.domain < 0] = "a very long label of a target"
    one, other = (make(method).fit(task.X, labels, task.domain) for labels in (task.y, y))
    assert one.classes_.dtype == other.classes_.dtype
    assert one.transduction_.dtype == other.transduction_.dtype


def test_openness_zero_keeps_the_order_of_later_samples(make, method, task):
    classifier = make(method, openness=0.0).fit(task.X, task.y, task.domain)
    decision = classifier.decision_function(task.target)
    assert np.isfinite(decision).all()
    assert (decision > 0).all()
    assert len(np.unique(decision)) > 1


def test_the_default_itself_is_good(task):
    classifier = PGLClassifier(openness=task.openness, random_state=0)
    classifier.fit(task.X, task.y, task.domain)
    assert (classifier.transduction_ == task.truth).mean() > 0.9
    assert (classifier.predict(task.target) == classifier.transduction_).mean() > 0.9


def test_the_papers_adversary_sees_no_pseudo_unknown(task):
    settings = PGLSettings.preset("paper-office-home").episodes
    labels = np.r_[np.zeros(5), np.ones(5)].astype(np.intp)
    pseudo = np.r_[np.full(20, 2), np.full(20, -1)].astype(np.intp)
    batch = EpisodeSampler(labels, pseudo, 2, 0.5, settings).draw(np.random.default_rng(0))
    assert (batch.labels < 2).all()
    expected = batch.is_target & (batch.index < 20)
    np.testing.assert_array_equal(batch.pseudo_unknown, expected)
