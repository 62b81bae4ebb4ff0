"""Columns as given, standardised or as ranks; and how "auto" chooses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from conftest import make_task
from estimator_helpers import make_classifier, numbers
from opensetda import InputError, PGLClassifier, ProgressiveClassMeans
from opensetda.context import FitContext
from opensetda.nn import scaling
from opensetda.nn.scaling import NONE, RANKS, SCALINGS, STANDARD, Scaling, columns_sentence
from opensetda.rows import Rows

WIDEST = 3.1
"""A normal score of one in a thousand is 3.09."""


def rows_of(X):
    return Rows(np.asarray(X, dtype=np.float32), np.arange(len(X)))


def scaled(name, X, later=None):
    """X as a target of its own, or later samples by the tables of X."""
    fitted = Scaling.fit(name, rows_of(X), np.arange(len(X)) % 2, rows_of(X))
    return fitted.of_target(np.asarray(X if later is None else later))


def matrix(seed=0, n=400, width=4):
    return np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)


# ranks --------------------------------------------------------------------------------------


def test_ranks_are_normal_scores_in_the_order_of_the_values():
    X = matrix()
    ranks = scaled(RANKS, X)
    np.testing.assert_array_equal(np.argsort(ranks[20:30, 0]), np.argsort(X[20:30, 0]))
    np.testing.assert_allclose(ranks.mean(axis=0), 0, atol=0.01)
    np.testing.assert_allclose(ranks.std(axis=0), 1, atol=0.03)
    # Normal columns stay about what they are.
    inner = np.abs(X) < 2
    assert np.abs(ranks - X)[inner].max() < 0.5


@pytest.mark.parametrize("change", [np.exp, np.cbrt, lambda X: 1e4 * X - 7, np.arctan])
def test_ranks_do_not_depend_on_the_units(change):
    X = matrix()
    ranks, others = scaled(RANKS, X), scaled(RANKS, change(X))
    np.testing.assert_array_equal(np.argsort(others, axis=0), np.argsort(ranks, axis=0))
    # Between two levels of the table a value is interpolated, in its own units.
    np.testing.assert_allclose(others, ranks, atol=0.15)
    np.testing.assert_allclose(others[np.abs(ranks) < 2], ranks[np.abs(ranks) < 2], atol=0.02)


def test_with_fewer_values_than_levels_the_units_do_not_matter_at_all():
    X = matrix(n=scaling.LEVELS)
    np.testing.assert_array_equal(scaled(RANKS, np.exp(X)), scaled(RANKS, X))


def test_equal_values_share_the_middle_of_their_ranks():
    # Half of the column is zero, as after a ReLU: ranks 0 to 1/2, whose middle is 1/4.
    X = np.concatenate([np.zeros(500), np.linspace(1, 2, 500)])[:, None]
    ranks = scaled(RANKS, X)[:, 0]
    np.testing.assert_allclose(ranks[:500], -0.6745, atol=0.01)
    assert ranks[500] > -0.05
    assert (np.diff(ranks[500:]) >= 0).all()


@pytest.mark.parametrize("name", [STANDARD, RANKS])
@pytest.mark.parametrize("value", [0.0, 0.1, -1e30])
def test_a_constant_column_is_zero(name, value):
    X = matrix()
    X[:, 1] = value
    np.testing.assert_allclose(scaled(name, X)[:, 1], 0, atol=1e-6)
    assert np.isfinite(scaled(name, X)).all()


def test_values_beyond_the_table_are_finite():
    X = matrix()
    later = np.array([[3e38, -3e38, 1e9, -1e9]], dtype=np.float32)
    np.testing.assert_allclose(scaled(RANKS, X, later), [[3.09, -3.09, 3.09, -3.09]], atol=0.001)
    assert np.isfinite(scaled(STANDARD, X, later)).all()


def test_double_precision_is_scaled_as_the_single_precision_of_fit():
    """0.1 as a double lies below 0.1 as a float: not below all equal values of the table."""
    X = np.full((50, 1), 0.1)
    X[40:, 0] = np.linspace(1, 2, 10)
    for name in (STANDARD, RANKS):
        np.testing.assert_array_equal(scaled(name, X, X), scaled(name, X, X.astype(np.float32)))


finite = st.floats(-(2.0**100), 2.0**100, width=32)


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 40), st.just(1)), elements=finite),
    arrays.arrays(np.float32, st.tuples(st.integers(1, 20), st.just(1)), elements=finite),
)
def test_ranks_are_monotone_and_bounded(X, later):
    later = np.sort(np.concatenate([X, later]), axis=0)
    ranks = scaled(RANKS, X, later)
    assert np.isfinite(ranks).all()
    assert np.abs(ranks).max() <= WIDEST
    assert (np.diff(ranks[:, 0]) >= -1e-5).all()


# standard, none -----------------------------------------------------------------------------


def test_each_domain_is_standardised_by_itself():
    source, target = rows_of(matrix(0)), rows_of(50 + 9 * matrix(1, n=300))
    fitted = Scaling.fit(STANDARD, source, np.arange(400) % 3, target)
    for rows in fitted.domains(source, target):
        [(_, chunk)] = rows.chunks()
        assert chunk.dtype == np.float32
        np.testing.assert_allclose(chunk.mean(axis=0), 0, atol=1e-4)
        np.testing.assert_allclose(chunk.std(axis=0), 1, atol=1e-4)


def test_without_scaling_rows_are_as_given():
    X = rows_of(matrix())
    fitted = Scaling.fit(NONE, X, np.arange(400) % 3, X)
    assert fitted.domains(X, X) == (X, X)
    assert fitted.of_target(X.X) is X.X
    assert fitted.arrays() == {}


def test_parts_of_scaled_rows_are_scaled():
    X = rows_of(matrix())
    twice = X.scaled(lambda rows: 2 * rows)
    [(_, chunk)] = twice.take(np.array([3, 1])).chunks()
    np.testing.assert_array_equal(chunk, 2 * X.X[[3, 1]])
    [(_, chunk)] = twice.first(2).chunks()
    np.testing.assert_array_equal(chunk, 2 * X.X[:2])


# auto ---------------------------------------------------------------------------------------


def classes(n_classes=4, seed=0, per_class=50, width=16):
    """Gaussian classes whose columns all say something."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(n_classes), per_class)
    X = 3 * rng.normal(size=(n_classes, width))[y] + rng.normal(size=(len(y), width))
    return X, y


def chosen(X, y):
    return Scaling.fit("auto", rows_of(X), y, rows_of(X))


@pytest.mark.parametrize(("n_classes", "measure"), [(4, "AUROC"), (2, "accuracy")])
def test_auto_takes_ranks_if_a_column_in_large_units_says_nothing(n_classes, measure):
    X, y = classes(n_classes)
    X[:, 3] = 1e4 * np.random.default_rng(5).normal(size=len(X))
    found = chosen(X, y)
    assert found.name == RANKS
    assert found.quality[RANKS] > found.quality[NONE] + 0.1
    figures = f"{measure} {found.quality[RANKS]:.3f} against {found.quality[NONE]:.3f}"
    assert found.reason.endswith(f"told apart better: {figures}")
    sentence = columns_sentence(found.name, found.reason)
    assert sentence == f"as ranks within each domain ({found.reason})"


def test_auto_takes_columns_as_given_if_their_spread_matters():
    """Few columns hold the classes; ranks make the many small ones as loud."""
    rng = np.random.default_rng(0)
    X, y = classes(width=4)
    found = chosen(np.column_stack([X, 0.1 * rng.normal(size=(len(X), 200))]), y)
    assert found.name == NONE
    assert found.quality[NONE] > found.quality[RANKS]
    assert columns_sentence(found.name, found.reason).startswith("as given (hidden classes of")


def test_auto_needs_two_classes_among_the_rows_that_choose(monkeypatch):
    monkeypatch.setattr(scaling, "CHOOSING_ROWS", 10)
    X, y = classes()
    found = chosen(X, y)
    assert (found.name, found.quality, found.reason) == (NONE, {}, "")
    assert columns_sentence(found.name, found.reason) == "as given"


def test_candidates_that_are_as_good_leave_the_columns_as_given():
    y = np.arange(90) % 3
    found = chosen(np.eye(3)[y], y)
    assert found.name == NONE
    assert found.reason == (
        "hidden classes of the source are told apart equally well: AUROC 1.000 against 1.000"
    )


def test_the_choice_depends_neither_on_targets_nor_on_the_order_of_rows(task, quick):
    fitted = PGLClassifier(settings=quick, random_state=0).fit(task.X, task.y, task.domain)
    order = np.random.default_rng(1).permutation(len(task.X))
    other = np.where(task.domain[:, None] < 0, 7 * task.X**3, task.X)[order]
    again = PGLClassifier(settings=quick, random_state=0)
    again.fit(other, task.y[order], task.domain[order])
    assert again.scaler_.to_dict() == fitted.scaler_.to_dict()
    assert set(fitted.scaler_.quality) == {NONE, RANKS}


@pytest.mark.parametrize("method", ["class-means", "pgl"])
def test_units_of_columns_cost_less_than_one_point(method, quick):
    task = make_task(per_class=50)
    units = 10.0 ** np.random.default_rng(3).permutation(np.linspace(-3, 4, task.X.shape[1]))
    standard = task.X.astype(float)
    for domain in (task.domain > 0, task.domain < 0):
        standard[domain] -= standard[domain].mean(axis=0)
        standard[domain] /= standard[domain].std(axis=0)
    own = {"openness": task.openness} | ({"settings": quick} if method == "pgl" else {})

    def accuracy(X, how):
        classifier = make_classifier(method, scaling=how, **own)
        classifier.fit(X, task.y, task.domain)
        return np.mean(classifier.transduction_ == task.truth)

    expected = accuracy(standard, NONE)
    assert accuracy(task.X * units, NONE) < expected - 0.1
    for how in ("auto", STANDARD, RANKS):
        assert accuracy(task.X * units, how) > expected - 0.01, how


# the estimators -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", SCALINGS)
def test_every_method_scales_and_is_saved_with_its_tables(make, method, task, how):
    fitted = make(method, scaling=how).fit(task.X, task.y, sample_domain=task.domain)
    assert fitted.scaling_ in ((NONE, RANKS) if how == "auto" else (how,))
    state, arrays = fitted.get_state()
    tables = {name for name in arrays if name.startswith("scaling.")}
    assert tables == (set() if fitted.scaling_ == NONE else {"scaling.source", "scaling.target"})
    again = type(fitted).from_state(state, arrays)
    assert again.scaling_ == fitted.scaling_
    np.testing.assert_array_equal(again.predict_proba(task.X), fitted.predict_proba(task.X))


@pytest.mark.parametrize("how", [STANDARD, RANKS])
def test_later_copies_of_targets_get_the_labels_of_fit(task, how):
    fitted = ProgressiveClassMeans(openness=task.openness, scaling=how)
    fitted.fit(task.X, task.y, sample_domain=task.domain)
    np.testing.assert_array_equal(fitted.predict(task.target), fitted.transduction_)
    np.testing.assert_allclose(fitted.predict_proba(task.target), fitted.transduction_proba_, 1e-4)
    # Its own scale, not that of the batch.
    np.testing.assert_array_equal(fitted.predict(task.target[:1]), fitted.transduction_[:1])


def test_without_a_target_later_samples_are_scaled_as_the_source(task):
    fitted = ProgressiveClassMeans(scaling=RANKS).fit(task.source, task.labels)
    assert np.mean(fitted.predict(task.source) == task.labels) == 1


def test_the_features_of_a_network_are_those_of_scaled_rows(make, task):
    fitted = make("dann", scaling=RANKS).fit(task.X, task.y, sample_domain=task.domain)
    by_hand = make("dann", scaling=NONE)
    X = task.X.copy()
    X[task.domain > 0] = fitted.scaler_.of_source(task.source)
    X[task.domain < 0] = fitted.scaler_.of_target(task.target)
    # Rows are drawn in the order of their contents, so the weights differ; not the alignment.
    by_hand.fit(X, task.y, sample_domain=task.domain)
    np.testing.assert_allclose(by_hand._alignment.target_mean, fitted._alignment.target_mean, 1e-4)
    shape = fitted.transform(task.X, sample_domain=task.domain).shape
    assert shape[0] == len(task.X)


@pytest.mark.parametrize("wrong", ["rank", "", None, 3, ["none"]])
def test_a_wrong_name_is_an_error_that_names_the_setting(make, method, task, wrong):
    with pytest.raises(InputError, match=r"^scaling=.*: choose one of auto, none, standard, ranks"):
        make(method, scaling=wrong).fit(task.X, task.y, sample_domain=task.domain)


def test_the_papers_presets_take_columns_as_given(task, quick):
    X = task.X.copy()
    X[:, 3] *= 1e4
    paper = {"preset": "paper-office-home", "random_state": 0, "openness": task.openness}
    small = {"steps": 1, "graph.edge_width": 6, "graph.node_width": 8} | {
        f"optimiser.{name}": 1
        for name in ("first_step_epochs", "epochs_per_step", "iterations_per_epoch")
    }
    auto = PGLClassifier(settings=small, **paper).fit(X, task.y, task.domain)
    assert (auto.scaling_, auto.scaler_.reason) == (NONE, "")
    asked = PGLClassifier(settings=small, scaling=RANKS, **paper).fit(X, task.y, task.domain)
    assert (asked.scaling_, asked.scaler_.reason) == (RANKS, "as asked")


def test_a_wrong_name_is_found_even_if_images_are_trained(task):
    context = FitContext(images=object())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="scaling='rank'"):
        PGLClassifier(scaling="rank").fit(task.X, numbers(task), task.domain, context)


# saved models -------------------------------------------------------------------------------


def test_a_saved_model_without_its_tables_is_refused(task):
    fitted = ProgressiveClassMeans(scaling=RANKS).fit(task.X, task.y, sample_domain=task.domain)
    state, arrays = fitted.get_state()
    without = {name: table for name, table in arrays.items() if name != "scaling.target"}
    with pytest.raises(InputError, match=r"'scaling\.target' is missing; fit again"):
        ProgressiveClassMeans.from_state(state, without)
    with pytest.raises(InputError, match=r"scaling 'magic' does not exist; fit again"):
        ProgressiveClassMeans.from_state({**state, "scaling": "magic"}, arrays)


@pytest.mark.parametrize(
    ("units", "candidates"), [(1e3, {NONE, RANKS, STANDARD}), (5.0, {NONE, RANKS})]
)
def test_columns_in_different_units_may_be_standardised(units, candidates):
    rng = np.random.default_rng(0)
    y = np.arange(120) % 4
    X = 2 * np.eye(4, 6)[y] + rng.normal(0, 1, (120, 6))
    X = (X * np.geomspace(1 / units, units, 6)).astype(np.float32)
    quality = scaling.scaling_quality(Rows(X, np.arange(120)), y)
    assert quality.keys() == candidates
    chosen = Scaling.fit("auto", Rows(X, np.arange(120)), y, Rows(X, np.arange(120)))
    assert chosen.name == max(quality, key=quality.get)
    assert f"against {quality[NONE]:.3f}" in chosen.reason or chosen.name == NONE
