"""Sizes that a machine cannot bear are refused in a line, before anything is computed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from opensetda.data.tables.formats import frame_table
from opensetda.data.tables.loading import read_domains
from opensetda.errors import InputError
from opensetda.system import sizes
from opensetda.system.sizes import FitSize
from opensetda.usecases.fit_rows import read_rows_of


def test_a_table_with_too_many_columns_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "MOST_COLUMNS", 7)
    np.savez(tmp_path / "source.npz", X=np.ones((4, 8)), y=[*"aabb"])
    np.savez(tmp_path / "target.npz", X=np.ones((4, 8)))
    with pytest.raises(InputError, match=r"source.npz: array 'X': 8 columns, at most 7 can be"):
        read_domains(tmp_path / "source.npz", tmp_path / "target.npz")
    table = pa.table({f"f{place}": [1.0] for place in range(10)})
    with pytest.raises(InputError, match="at most 7 can be features"):
        frame_table(table, "frame")


@pytest.mark.parametrize("name", ["sources", "targets", "columns", "classes"])
def test_every_size_counts(name):
    size = {"sources": 1000, "targets": 1000, "columns": 5000, "classes": 100}
    assert FitSize(**{**size, name: 10 * size[name]}).bytes() > FitSize(**size).bytes()


def test_ordinary_sizes_are_foreseen_within_a_few_gigabytes():
    assert FitSize(100_000, 65_536, 2000, 50).bytes() < 4e9
    assert FitSize(20_000, 20_000, 512, 1000).bytes() < 2e9
    assert FitSize(20, 20, 50_000, 4).bytes() < 1e9


def test_a_fit_that_needs_more_than_is_free_is_refused_before_it_begins(monkeypatch):
    monkeypatch.setattr("opensetda.system.memory.free_bytes", lambda: 1e4)
    X, labels = np.ones((40, 8), dtype=np.float32), np.repeat(["a", "b"], 20)
    words = r"fitting 40 \+ 40 rows of 8 columns and 2 classes needs about .* GB of memory"
    with pytest.raises(InputError, match=words):
        read_rows_of(X, labels, X)
