"""What the tests of large tables share: small tables that are treated as large ones."""

from __future__ import annotations

import numpy as np

from opensetda.data.tables import mapped, scratch
from opensetda.data.tables import parquet_parts as parts
from opensetda.data.tables.loading import TableColumns

IDS = TableColumns(id="id")


def make_all_large(monkeypatch):
    """Let every table be large, and be read in pieces of a few rows."""
    monkeypatch.setattr(mapped, "LARGE_BYTES", 0)
    monkeypatch.setattr(mapped, "_CHUNK_BYTES", 48)
    monkeypatch.setattr(parts, "_BATCH_VALUES", 12)
    monkeypatch.setattr(parts, "_BATCH_ROWS", 4)
    monkeypatch.setattr(scratch, "_BLOCK_BYTES", 48)


def a_matrix(n_rows=11, dtype=np.float32):
    return np.arange(3 * n_rows).reshape(n_rows, 3).astype(dtype)


def names(n_rows):
    return [f"é{row}" * (row % 3 + 1) for row in range(n_rows)]


def is_in_file(X):
    return isinstance(X, np.memmap) and X.mode == "r" and not X.flags.writeable
