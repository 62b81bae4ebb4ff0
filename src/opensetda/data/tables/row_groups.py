"""Rows of a table that can be read on their own: a row group of a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opensetda.data.tables.formats import ColumnTable, parquet_file, part_files


class RowRange(NamedTuple):
    """A row group: the rows of a file after `before` others, `start` in all files."""

    path: Path
    before: int
    rows: int
    start: int
    group: int

    def __str__(self) -> str:
        return f"{self.path}, rows {self.before + 1:,} to {self.before + self.rows:,}"

    def open(self) -> ColumnTable:
        """Return the row group as a table."""
        with parquet_file(self.path) as parquet:
            schema = parquet.schema_arrow
        return ColumnTable(self.path, schema, self.rows, self._batches, None, True, self.before)

    def _batches(self, names: Sequence[str], rows: int) -> Iterator[tuple[Path, Any]]:
        with parquet_file(self.path) as parquet:
            for some in parquet.iter_batches(rows, row_groups=[self.group], columns=[*names]):
                yield self.path, some


def row_groups(path: Path) -> Iterator[RowRange]:
    """Yield the row groups of a Parquet file, or of a folder of them, in order."""
    start = 0
    for file in part_files(path):
        with parquet_file(file) as parquet:
            sizes = [parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups)]
        before = 0
        for number, rows in enumerate(sizes):
            yield RowRange(file, before, rows, start, number)
            before = before + rows
            start = start + rows
