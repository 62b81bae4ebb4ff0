"""Columns as given, standardised or as ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from conftest import make_task
from opensetda import ClassMeans, InputError, MovingMeans
from opensetda.features.scaling import NONE, RANKS, SENTENCES, STANDARD, Scaling
from opensetda.rows import Domains, Rows

WIDEST = 3.1  # a normal score of one in a thousand is 3.09


def rows_of(X):
    return Rows(np.asarray(X, dtype=np.float32), np.arange(len(X)))


def domains_of(source, target):
    """Rows of both domains, those of the source of one class."""
    return Domains(source, np.zeros(len(source), dtype=np.intp), target, np.array(["a"]))


def scaled(name, X, later=None):
    """X, or later samples, by the tables of X."""
    fitted = Scaling.fit(name, domains_of(rows_of(X), rows_of(X)))
    return fitted.scale_rows(np.asarray(X if later is None else later))


def matrix(seed=0, n=400, width=4):
    return np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)


def test_ranks_are_normal_scores_in_the_order_of_the_values():
    X = matrix()
    ranks = scaled(RANKS, X)
    np.testing.assert_array_equal(np.argsort(ranks[20:30, 0]), np.argsort(X[20:30, 0]))
    np.testing.assert_allclose(ranks.mean(axis=0), 0, atol=0.01)
    np.testing.assert_allclose(ranks.std(axis=0), 1, atol=0.03)
    # Normal columns stay about what they are.
    inner = np.abs(X) < 2
    assert np.abs(ranks - X)[inner].max() < 0.5


def test_equal_values_get_the_middle_between_their_first_and_last_score():
    # Half of the column is zero, as after a ReLU: scores from -3.09 to 0.
    X = np.concatenate([np.zeros(500), np.linspace(1, 2, 500)])[:, None]
    ranks = scaled(RANKS, X)[:, 0]
    np.testing.assert_allclose(ranks[:500], -3.09 / 2, atol=0.01)
    assert ranks[500] > -0.05
    assert (np.diff(ranks[500:]) >= 0).all()


@pytest.mark.parametrize("name", [STANDARD, RANKS])
def test_a_constant_column_is_zero(name):
    X = matrix()
    X[:, 1] = -1e30
    np.testing.assert_allclose(scaled(name, X)[:, 1], 0, atol=1e-6)
    assert np.isfinite(scaled(name, X)).all()


def columns(longest):
    finite = st.floats(-(2.0**100), 2.0**100, width=32)
    return arrays.arrays(
        np.float32, st.tuples(st.integers(1, longest), st.just(1)), elements=finite
    )


@given(columns(40), columns(20))
def test_ranks_are_monotone_and_bounded(X, later):
    later = np.sort(np.concatenate([X, later]), axis=0)
    ranks = scaled(RANKS, X, later)
    assert np.isfinite(ranks).all()
    assert np.abs(ranks).max() <= WIDEST
    assert (np.diff(ranks[:, 0]) >= -1e-5).all()


def test_each_domain_is_standardised_by_itself():
    source, target = rows_of(matrix(0)), rows_of(50 + 9 * matrix(1, n=300))
    domains = domains_of(source, target)
    scaled = Scaling.fit(STANDARD, domains).domains(domains)
    for rows in (scaled.source, scaled.target):
        [(_, chunk)] = rows.chunks()
        assert chunk.dtype == np.float32
        np.testing.assert_allclose(chunk.mean(axis=0), 0, atol=1e-4)
        np.testing.assert_allclose(chunk.std(axis=0), 1, atol=1e-4)


def test_parts_of_scaled_rows_are_scaled():
    X = rows_of(matrix())
    twice = X.scaled(lambda rows: 2 * rows)
    [(_, chunk)] = twice.take(np.array([3, 1])).chunks()
    np.testing.assert_array_equal(chunk, 2 * X.X[[3, 1]])
    [(_, chunk)] = twice.first(2).chunks()
    np.testing.assert_array_equal(chunk, 2 * X.X[:2])


def test_few_targets_are_scaled_as_the_source_is():
    source, few = rows_of(matrix()), rows_of(matrix(1, n=19))
    fitted = Scaling.fit(RANKS, domains_of(source, few))
    np.testing.assert_array_equal(
        fitted.scale_rows(few.X), fitted.scale_rows(few.X, of_source=True)
    )


def test_units_of_columns_cost_less_than_one_point():
    task = make_task(per_class=50)
    units = 10.0 ** np.random.default_rng(3).permutation(np.linspace(-3, 4, task.X.shape[1]))

    def accuracy(X, how):
        classifier = MovingMeans(task.openness, scaling=how).fit(X, task.y, task.domain)
        return np.mean(classifier.transduction_ == task.truth)

    for how in (STANDARD, RANKS):
        assert accuracy(task.X * units, how) > accuracy(task.X, how) - 0.01, how
    assert accuracy(task.X * units, NONE) < accuracy(task.X, NONE) - 0.05


@pytest.mark.parametrize("how", SENTENCES)
def test_a_method_scales_and_is_saved_with_its_tables(task, how):
    fitted = MovingMeans(scaling=how).fit(task.X, task.y, sample_domain=task.domain)
    assert fitted.scaler_.name == how
    state, arrays = fitted.get_state()
    assert ("scaling.target" in arrays) == (how != NONE)
    again = MovingMeans.from_state(state, arrays)
    assert again.scaler_.name == how
    np.testing.assert_array_equal(again.predict_proba(task.X), fitted.predict_proba(task.X))


@pytest.mark.parametrize("how", [STANDARD, RANKS])
def test_later_copies_of_targets_get_the_labels_of_fit(task, how):
    fitted = ClassMeans(openness=task.openness, scaling=how)
    fitted.fit(task.X, task.y, sample_domain=task.domain)
    np.testing.assert_array_equal(fitted.predict(task.target), fitted.transduction_)
    np.testing.assert_allclose(fitted.predict_proba(task.target), fitted.transduction_proba_, 1e-4)
    # Its own scale, not that of the batch.
    np.testing.assert_array_equal(fitted.predict(task.target[:1]), fitted.transduction_[:1])


@pytest.mark.parametrize("wrong", ["rank", ["none"]])
def test_a_wrong_name_is_an_error_that_names_the_setting(task, wrong):
    with pytest.raises(InputError, match=r"^scaling=.*: choose one of none, standard, ranks"):
        MovingMeans(scaling=wrong).fit(task.X, task.y, sample_domain=task.domain)


def test_a_saved_model_without_its_tables_is_refused(task):
    fitted = ClassMeans(scaling=RANKS).fit(task.X, task.y, sample_domain=task.domain)
    state, arrays = fitted.get_state()
    without = {name: table for name, table in arrays.items() if name != "scaling.target"}
    with pytest.raises(InputError, match=r"'target' is missing; fit again"):
        ClassMeans.from_state(state, without)
    with pytest.raises(InputError, match="scaling='magic': choose one of"):
        ClassMeans.from_state({**state, "scaling": "magic"}, arrays)
