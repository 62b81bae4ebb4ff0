"""Predictions as files: whole or in parts, in three formats."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from opensetda.runs.predictions import PredictionTable, PredictionWriter

CLASSES = ('a "quoted", one', "größe", "日本\n2")


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    proba = rng.dirichlet(np.ones(4), size=11)
    names = np.array([*CLASSES, "unknown"])
    return PredictionTable(
        ids=np.array([f'é "{row}"\\, {row}' for row in range(11)]),
        labels=names[proba.argmax(axis=1)],
        known_scores=rng.normal(size=11),
        nearest=names[proba[:, :3].argmax(axis=1)],
        proba=proba,
        classes=CLASSES,
    )


def part(table, rows):
    return replace(
        table,
        ids=table.ids[rows],
        labels=table.labels[rows],
        known_scores=table.known_scores[rows],
        nearest=table.nearest[rows],
        proba=table.proba[rows],
    )


def read(path):
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    if path.suffix == ".csv":
        options = pyarrow.csv.ParseOptions(newlines_in_values=True)
        return pyarrow.csv.read_csv(path, parse_options=options).to_pylist()
    return pyarrow.parquet.read_table(path).to_pylist()


@pytest.mark.parametrize("top_k", [None, 1, 3, 99])
@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet", ".JSON"])
def test_parts_add_up_to_the_whole(tmp_path, table, suffix, top_k):
    whole, parts = tmp_path / f"whole{suffix}", tmp_path / f"parts{suffix}"
    with PredictionWriter(whole, top_k) as writer:
        writer.write(table)
    with PredictionWriter(parts, top_k) as writer:
        for start in range(0, 11, 4):
            writer.write(part(table, slice(start, start + 4)))
    if suffix != ".parquet":
        assert parts.read_bytes() == whole.read_bytes()
    else:
        assert read(parts) == read(whole)


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
def test_names_and_numbers_survive(tmp_path, table, suffix):
    path = tmp_path / f"labels{suffix}"
    table.write(path)
    rows = read(path)
    assert [row["id"] for row in rows] == table.ids.tolist()
    assert [row["label"] for row in rows] == table.labels.tolist()
    np.testing.assert_allclose([row["p:größe"] for row in rows], table.proba[:, 1], atol=6e-7)
    np.testing.assert_allclose(
        [row["confidence"] for row in rows], table.proba.max(axis=1), atol=6e-7
    )


def test_the_likeliest_come_first(tmp_path, table):
    rows = table.to_arrow(top_k=99).to_pylist()
    names = [*CLASSES, "unknown"]
    for row, proba in zip(rows, table.proba, strict=True):
        assert [row[f"top_{k}"] for k in range(1, 5)] == [names[c] for c in np.argsort(-proba)]
        assert [row[f"p_top_{k}"] for k in range(1, 5)] == sorted(proba, reverse=True)
        assert "top_5" not in row


def test_confidence_is_that_of_the_label_whatever_unknowns_are_called(table):
    renamed = replace(
        table,
        labels=np.where(table.labels == "unknown", "none", table.labels),
        unknown_label="none",
    )
    np.testing.assert_array_equal(renamed.confidence, table.confidence)
    # A label that is not the likeliest: rejection has its own threshold.
    rejected = replace(table, labels=np.full(11, "unknown"))
    np.testing.assert_array_equal(rejected.confidence, table.proba[:, -1])
