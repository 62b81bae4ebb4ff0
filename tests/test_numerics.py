"""Extreme numbers, sizes and widths: the right answer, or a warning that says what is wrong."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest

import numerics_helpers as numerics
from opensetda import MovingMeans
from opensetda.errors import InputError
from opensetda.features import alignment as alignments
from opensetda.features.alignment import Alignment
from opensetda.features.scaling import Scaling
from opensetda.nn.parts import Adapter
from opensetda.rows import Rows, check_finite, moderated, unit_rows
from opensetda.runs.methods import method_class


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("scale 1e30", "pgl"),
        ("subnormal", "smoothed-means"),
        ("rows of 1e-20 to 1e20", "source-only"),
        ("offset 1e4", "source-only"),
        ("target plus 1e3", "source-only"),
        ("constant source", "pgl"),
        ("constant target", "class-means"),
        ("units 1e-6 to 1e6", "class-means"),
        ("2 targets", "dann"),
        ("3 columns, only unknowns", "class-means"),
    ],
)
def test_right_or_warned(name, method):
    assert numerics.answer(name, method) in ("right", "warned")


def fitted(data, **parameters):
    classifier = MovingMeans(steps=2, **parameters)
    X = np.concatenate([data.source, data.target])
    y = np.concatenate([data.y, np.full(len(data.target), "")])
    return classifier.fit(X, y, np.repeat([1, -1], [len(data.y), len(data.target)]))


def test_a_power_of_two_changes_no_answer_and_is_saved():
    """2^80 is far beyond what squares in single precision can hold."""
    data = numerics.made().mapped(lambda X: X.astype(np.float32))
    large = data.mapped(lambda X: X * np.float32(2.0**80))
    one, other = fitted(data), fitted(large)
    # Not to the bit: the order of the rows, by their content, is another.
    np.testing.assert_array_equal(one.transduction_, other.transduction_)
    np.testing.assert_allclose(one.transduction_proba_, other.transduction_proba_, atol=0.01)
    later = other.predict_proba(large.target)
    np.testing.assert_allclose(one.predict_proba(data.target), later, atol=0.01)
    restored = MovingMeans.from_state(*other.get_state())
    np.testing.assert_array_equal(later, restored.predict_proba(large.target))


def test_the_offset_of_columns_is_saved():
    data = numerics.made().mapped(lambda X: X + 1e12)
    classifier = fitted(data)
    restored = MovingMeans.from_state(*classifier.get_state())
    later = classifier.predict(data.target)
    assert (later == data.truth).mean() > 0.9
    np.testing.assert_array_equal(later, restored.predict(data.target))


def test_the_order_of_tiny_rows_carries_nothing():
    """As single precision they would all be zero, and keep the caller's order."""
    data = numerics.made().mapped(lambda X: X * 1e-300)
    order = np.random.default_rng(0).permutation(len(data.target))
    one, other = fitted(data), fitted(data._replace(target=data.target[order]))
    np.testing.assert_array_equal(one.transduction_proba_[order], other.transduction_proba_)


def test_ordinary_numbers_are_left_alone():
    for size in (1e-5, 1.0, 1e11):
        X = size * np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
        assert moderated(X, *check_finite(X)) is X
        source = Rows(X, np.arange(9)).in_canonical_order()
        scaling = Scaling.fit("none", source, source)
        assert scaling.scale_rows(X) is X
        assert scaling.tables == {}


def test_extreme_rows_have_unit_length_without_a_word():
    X = np.array([[3, 4], [3e30, 4e30], [3e-30, 4e-30], [0, 0]], dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unit = unit_rows(X)
    np.testing.assert_allclose(unit, [[0.6, 0.8]] * 3 + [[0, 0]], rtol=1e-6)


def test_products_of_rows_give_the_components_of_products_of_columns(monkeypatch):
    data = numerics.made(200, per_class=(6, 5))
    X = np.concatenate([data.source, data.target]).astype(np.float32)
    n = len(data.source)
    source, target = Rows(X, np.arange(n)), Rows(X, np.arange(n, len(X)))
    expected = Alignment.fit(source, target, 10)
    monkeypatch.setattr(alignments, "WIDE", 100)
    found = Alignment.fit(source, target, 10)
    np.testing.assert_allclose(found.projection, expected.projection, atol=1e-4)
    np.testing.assert_allclose(found.target(target), expected.target(target), atol=1e-4)


@pytest.mark.parametrize("method", ["class-means", "oslpp", "ati", "daod"])
def test_many_columns_need_no_square_of_them(method):
    """12,000 columns: one square of them would be 576 MB."""
    data = numerics.made(12_000, 3, (6, 5), 1)
    tracemalloc.start()
    try:
        cls = method_class(method)
        X = np.concatenate([data.source, data.target]).astype(np.float32)
        y = np.concatenate([data.y, np.full(len(data.target), "")])
        cls().fit(X, y, np.repeat([1, -1], [len(data.y), len(data.target)]))
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


def test_a_network_that_needs_a_square_of_the_columns_is_refused():
    with pytest.raises(InputError, match="a network for 1000000 columns needs about 24000"):
        Adapter(1_000_000, unit=True)
