"""Predictions as files: whole or in parts, in two formats, and read back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensetda.runs.integrity import CheckedTable
from opensetda.runs.predictions import PredictionTable, PredictionWriter

CLASSES = ('a "quoted", one', "größe", "日本\n2")
NAMES = st.text(min_size=1).filter(str.isprintable)


def table_of(classes, n=11, prefix="é "):
    rng = np.random.default_rng(0)
    proba = rng.dirichlet(np.ones(len(classes) + 1), size=n)
    names = np.array([*classes, "unknown"])
    return PredictionTable(
        ids=np.array([f'{prefix}"{row}"\\, {row}' for row in range(n)]),
        labels=names[proba.argmax(axis=1)],
        known_scores=rng.normal(size=n) * 1e-9,
        nearest=names[proba[:, :-1].argmax(axis=1)],
        proba=proba,
        classes=tuple(classes),
    )


@pytest.fixture(scope="module")
def table():
    return table_of(CLASSES)


def rows_of(table, rows):
    names = ("ids", "labels", "known_scores", "nearest", "proba")
    return replace(table, **{name: getattr(table, name)[rows] for name in names})


def read(path):
    return PredictionTable.of_table(CheckedTable(path.read_bytes(), path))


def assert_same(found, wanted, atol):
    for name in ("ids", "labels", "nearest", "known_scores", "classes"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    np.testing.assert_allclose(found.proba, wanted.proba, rtol=0, atol=atol)


@pytest.mark.parametrize("suffix", [".CSV", ".parquet"])
def test_parts_add_up_to_the_whole(tmp_path, table, suffix):
    whole, parts = tmp_path / f"whole{suffix}", tmp_path / f"parts{suffix}"
    table.write(whole)
    with PredictionWriter(parts) as writer:
        for start in range(0, 11, 4):
            writer.write(rows_of(table, slice(start, start + 4)).to_arrow())
    assert_same(read(parts), read(whole), 0)


@given(classes=st.lists(NAMES.filter(lambda name: name != "unknown"), min_size=1, unique=True))
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_whatever_classes_are_called_they_come_back(tmp_path_factory, suffix, classes):
    wanted = table_of(classes, prefix=classes[0])
    path = tmp_path_factory.mktemp("predictions") / f"labels{suffix}"
    wanted.write(path)
    assert_same(read(path), wanted, 0 if suffix == ".parquet" else 6e-7)
