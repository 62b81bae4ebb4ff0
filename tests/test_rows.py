"""Rows that are read in chunks and in an order of their own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from opensetda import rows
from opensetda.errors import InputError
from opensetda.rows import Rows, check_finite


@pytest.fixture(name="X")
def a_matrix():
    return np.random.default_rng(0).normal(size=(23, 4))


def test_chunks_cover_the_rows_in_order(X, monkeypatch):
    monkeypatch.setattr(rows, "CHUNK_ROWS", 5)
    index = np.random.default_rng(1).permutation(23)[:17]
    parts = list(Rows(X, index).chunks())
    assert all(len(chunk) <= 5 for _, chunk in parts)
    assert all(place.stop - place.start == len(chunk) for place, chunk in parts)
    together = np.concatenate([chunk for _, chunk in parts])
    assert together.dtype == np.float32
    np.testing.assert_array_equal(together, X[index].astype(np.float32))


matrices = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 12), st.integers(1, 3)),
    elements=st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 3e38]),
)


@given(matrices, st.randoms(use_true_random=False))
def test_the_canonical_order_depends_on_the_content_alone(X, random):
    order = list(range(len(X)))
    random.shuffle(order)
    plain = Rows(X, np.arange(len(X))).in_canonical_order()
    shuffled = Rows(X[order], np.arange(len(X))).in_canonical_order()
    np.testing.assert_array_equal(X[plain.index], X[order][shuffled.index])
    assert sorted(plain.index.tolist()) == list(range(len(X)))


@pytest.mark.parametrize("mode", ["r", "c"])
def test_giving_pages_back_does_not_change_the_data(tmp_path, mode, X, monkeypatch):
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode=mode)
    if mode == "c":
        mapped[3, 0] = X[3, 0] = 42.0  # the change lives in memory alone
    monkeypatch.setattr(rows, "CHUNK_ROWS", 5)
    for _ in range(2):
        for place, chunk in Rows(mapped, np.arange(23)).chunks():
            np.testing.assert_array_equal(chunk, X[place].astype(np.float32))
        check_finite(mapped)
    np.testing.assert_array_equal(mapped, X)


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (1e200, "inf")])
def test_the_first_bad_row_is_named(X, value, word, monkeypatch):
    monkeypatch.setattr(rows, "CHUNK_ROWS", 4)
    X[17, 2] = X[20, 0] = value
    with pytest.raises(InputError, match=rf"^target: row 17 contains .*{word}"):
        check_finite(X, "target")
    check_finite(X[:17])


def test_copies_are_found_unless_they_are_few():
    X = np.array([[1, 2], [3, 4], [1, 2], [1, 2]], dtype=np.float32)
    copies = rows.copies_of(X)
    np.testing.assert_array_equal(X[copies.first][copies.place], X)
    assert len(copies.first) == 2
    for few in (X[:3], X[:1]):
        assert rows.copies_of(few) == (slice(None), slice(None))


def test_rows_with_the_same_key_are_not_taken_for_copies(monkeypatch):
    monkeypatch.setattr(rows, "content_keys", lambda X: np.zeros(len(X), dtype=np.uint64))
    assert rows.copies_of(np.arange(8.0).reshape(4, 2)).first == slice(None)
