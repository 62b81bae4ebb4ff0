"""Parquet files, and folders of them, read a batch at a time: they may be larger than memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet

from opensetda.data.reading import broken, reading
from opensetda.data.tables.column_files import Batch, ColumnTable, check_once
from opensetda.errors import InputError
from opensetda.system.files import open_regular

# Read buffer per column; without it a whole row group would be read at once.
_BUFFER_BYTES = 1 << 14
_KIND = "a Parquet file"


def is_parts_folder(path: str | Path) -> bool:
    """Return whether a folder is a table in parts: Parquet files, and perhaps ``_*`` and ``.*``."""
    try:
        # Stops at the first other file: a folder may hold a million images.
        with os.scandir(path) as entries:
            are_parts = (
                entry.name.lower().endswith(".parquet") and entry.is_file()
                for entry in entries
                if not entry.name.startswith(("_", "."))
            )
            return next(are_parts, False) and all(are_parts)
    except OSError:
        return False


def table_files(path: str | Path) -> list[Path]:
    """Return the files of a table in the order of their rows: itself, or its parts."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    return sorted(entry for entry in path.iterdir() if not entry.name.startswith(("_", ".")))


def table_bytes(path: str | Path) -> int:
    """Return the size of a table's files in bytes."""
    return sum(file.stat().st_size for file in table_files(path))


def open_parquet(path: Path, scratch: Path | None = None) -> ColumnTable:
    """Return a Parquet file, or a folder of parts with the same columns, as a table."""
    files, length = table_files(path), 0
    schemas = []
    for file in files:
        with _opened(file) as parquet:
            schemas.append(parquet.schema_arrow)
            length += _rows_in(file, parquet.metadata)
        check_once(file, schemas[-1].names)
        _check_same(file, schemas[-1], files[0], schemas[0])

    def batches(names: Sequence[str], rows: int) -> Iterator[Batch]:
        for file in files:
            first = 0
            with _opened(file) as parquet:
                for batch in parquet.iter_batches(rows, columns=[*names]):
                    yield file, first, batch
                    first += batch.num_rows

    return ColumnTable(path, schemas[0], length, batches, _KIND, scratch, in_file=True)


def _rows_in(path: Path, metadata: Any) -> int:
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    if min(rows, default=0) < 0 or sum(rows) != metadata.num_rows:
        raise broken(path, _KIND, "it is damaged: its numbers of rows do not agree")
    return sum(rows)


def _check_same(file: Path, schema: Any, first: Path, expected: Any) -> None:
    here, there = (dict(zip(s.names, s.types, strict=True)) for s in (schema, expected))
    for name in here.keys() | there.keys():
        if here.get(name) != there.get(name):
            kinds = f"column {name!r} holds {here.get(name, 'nothing')}, in {first.name}"
            needed = "all parts of a table need the same columns"
            raise InputError(f"{file}: {kinds} {there.get(name, 'nothing')}; {needed}")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with (
        reading(path, _KIND),
        open_regular(path) as stream,
        pyarrow.parquet.ParquetFile(stream, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file,
    ):
        yield file
