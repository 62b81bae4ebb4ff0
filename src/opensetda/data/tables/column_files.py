"""Tables whose columns are read into memory: CSV, TSV, JSON lines, Feather and DataFrames."""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.json

from opensetda.data.limits import LONGEST_ROW
from opensetda.data.reading import broken, reading
from opensetda.data.tables import mapped, parquet_parts
from opensetda.data.tables.interface import Fill, Matrix, TableFile
from opensetda.data.tables.mapped import OnRead, TextColumn, ignore
from opensetda.system.files import open_regular
from opensetda.system.memory import check_free

_MANY_COLUMNS = 1000
_BLOCK_BYTES = 1 << 20
_SNIFFED_LINES, _SNIFFED_BYTES = 50, 1 << 16
# The first of those that divide the header into as many cells.
_DELIMITERS = ",;\t|"
_NUMBER = r"\s*[+-]?\d*{}\d+([eE][+-]?\d+)?\s*"
_WITH_COMMA, _WITH_POINT = re.compile(_NUMBER.format(",")), re.compile(_NUMBER.format(r"\."))
_AS_PARQUET = "save it as Parquet, which is read in parts"


class ColumnTable(TableFile):
    """Columns by name, in memory."""

    has_columns = True

    def __init__(self, path: Path, table: Any, what: str = "a table") -> None:
        self.path, self._table, self._what = path, table, what
        self.names: tuple[str, ...] = tuple(table.column_names)
        self.kinds: Mapping[str, Any] = dict(zip(self.names, table.schema.types, strict=True))
        parquet_parts.check_once(path, self.names)
        # By name, Arrow looks through all columns.
        self._columns = dict(zip(self.names, table.columns, strict=True))

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def text(self, name: str) -> TextColumn:
        """Return a column as text."""
        mapped.check_rows(self.path, name, len(self))
        with reading(self.path, f"column {name!r}"):
            return parquet_parts.column_text(self._columns[name], f"{self.path}: column {name!r}")

    def features(self, names: Sequence[str], on_read: OnRead = ignore, fill: Fill = None) -> Matrix:
        """Return columns side by side."""
        matrix = np.empty((len(self), len(names)), dtype=np.float32)
        with reading(self.path, self._what):
            for place, name in enumerate(names):
                missing = None if fill is None else fill.get(name, np.nan)
                column = self._columns[name]
                values = parquet_parts.column_numbers(column, self.path, name, missing=missing)
                matrix[:, place] = values
        return matrix

    def check_kinds(self, names: Sequence[str]) -> None:
        """Raise an error for the first column that is not numeric."""
        for name in names:
            parquet_parts.check_numeric(self._columns[name], f"{self.path}: column {name!r}")

    def example(self, name: str) -> str:
        """Return what a column that is not numeric holds, in words."""
        return parquet_parts.example_of(self._columns[name])


def is_frame(value: Any) -> bool:
    """Return whether a value is a DataFrame: of pandas, polars, or any other that Arrow reads."""
    return hasattr(value, "columns") and hasattr(value, "__arrow_c_stream__")


def frame_table(frame: Any, name: str, labels: tuple[str, Any] | None = None) -> ColumnTable:
    """Return a DataFrame as a table; `labels`, with their column, take the place of its own."""
    with reading(name, "a DataFrame"):
        if type(frame).__module__.partition(".")[0] == "pandas":
            # An index, which Arrow would append, is no feature.
            table = pa.Table.from_pandas(frame, preserve_index=False)
        else:
            table = pa.table(frame)
        if labels is not None:
            column, values = labels
            if column in table.column_names:
                table = table.drop_columns([column])
            table = table.append_column(column, pa.array(list(values), pa.string()))
    return ColumnTable(Path(name), table, "a DataFrame")


def read_column_file(path: Path, text_columns: Iterable[str] = ()) -> ColumnTable:
    """Read a ``.csv``, ``.tsv``, ``.jsonl``, ``.feather`` or ``.xlsx`` file.

    Columns of a text file in `text_columns` are read as text: the label 007 stays 007.
    """
    suffix = path.suffix.lower()
    if suffix == ".xlsx":
        from opensetda.data.tables.sheets import read_sheet

        return ColumnTable(path, read_sheet(path), "an Excel sheet")
    kinds = {".feather": "a Feather file", ".jsonl": "a file of JSON lines"}
    what = kinds.get(suffix, f"a {suffix[1:].upper()} table")
    with reading(path, what), open_regular(path) as stream:
        if suffix == ".feather":
            table = _read_feather(path, stream)
        elif suffix == ".jsonl":
            table = _read_lines(path, stream)
        else:
            table = _read_csv(path, stream, text_columns)
        return ColumnTable(path, table, what)


def _read_feather(path: Path, stream: Any) -> Any:
    # Every buffer says how large it is unpacked; what says too much cannot be unpacked.
    size = os.fstat(stream.fileno()).st_size
    check_free(2.0 * size, f"{path}: in memory it", _AS_PARQUET)
    try:
        table = pyarrow.feather.read_table(stream, memory_map=False)
    except MemoryError as error:
        why = "it says that it is larger than memory; if it is not damaged, save it as Parquet"
        raise broken(path, "a Feather file", why) from error
    table.validate(full=True)
    return table


def _read_lines(path: Path, stream: Any) -> Any:
    size = os.fstat(stream.fileno()).st_size
    check_free(3.0 * size, f"{path}: in memory it", _AS_PARQUET)
    first = stream.readline(LONGEST_ROW)
    stream.seek(0)
    block = min(max(_BLOCK_BYTES, 4 * len(first)), LONGEST_ROW)
    return pyarrow.json.read_json(stream, pyarrow.json.ReadOptions(block_size=block))


def _read_csv(path: Path, stream: Any, text_columns: Iterable[str]) -> Any:
    header, row = stream.readline(LONGEST_ROW), stream.readline(LONGEST_ROW)
    lines = [header, row, *(stream.readline(_SNIFFED_BYTES) for _ in range(_SNIFFED_LINES))]
    if header.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UnicodeError
    delimiter, decimal = _dialect(path, lines)
    # A number takes eight bytes, and four in the matrix; text as much as in the file.
    cells = (row.count(delimiter.encode()) + 1) / max(1, len(row))
    needed = os.fstat(stream.fileno()).st_size * max(1.0, 12 * cells)
    check_free(needed, f"{path}: in memory it", _AS_PARQUET)
    names = header.decode("utf-8-sig", "replace").strip().replace('"', "").split(delimiter)
    text = dict.fromkeys(text_columns, pa.string())
    kinds, block = text, min(max(_BLOCK_BYTES, 4 * len(header), 4 * len(row)), LONGEST_ROW)
    if len(names) > _MANY_COLUMNS:
        # To guess the kind of each takes long, and so do many blocks.
        kinds, block = dict.fromkeys(names, pa.float64()) | text, LONGEST_ROW

    def table(kinds: Mapping[str, Any], block: int, threads: bool = True) -> Any:
        stream.seek(0)
        return pyarrow.csv.read_csv(
            stream,
            pyarrow.csv.ReadOptions(use_threads=threads, block_size=block),
            pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(column_types=kinds, decimal_point=decimal),
        )

    try:
        return table(kinds, block)
    except pa.ArrowInvalid:
        # On one thread the reader names the line.
        return table(text, LONGEST_ROW, threads=False)


def _dialect(path: Path, lines: Sequence[bytes]) -> tuple[str, str]:
    """Return what separates the cells of a text table, and the whole of a number from its rest."""
    text = [line.decode("utf-8-sig", "replace").strip("\r\n") for line in lines if line.strip()]
    if path.suffix.lower() == ".tsv" or not text:
        delimiter = "\t"
    else:
        counts = {sign: len(_cells(text[0], sign)) for sign in _DELIMITERS}
        same = [
            sign
            for sign, count in counts.items()
            if count > 1 and all(len(_cells(line, sign)) == count for line in text[1:2])
        ]
        delimiter = max(same or _DELIMITERS, key=lambda sign: counts[sign])
    if delimiter == ",":
        return ",", "."
    cells = [cell for line in text[1:] for cell in _cells(line, delimiter)]
    commas, points = (
        sum(number.fullmatch(cell) is not None for cell in cells)
        for number in (_WITH_COMMA, _WITH_POINT)
    )
    return delimiter, "," if commas > points else "."


def _cells(line: str, delimiter: str) -> list[str]:
    # Of a very long header, the start tells what separates it.
    return next(csv.reader([line[:_SNIFFED_BYTES]], delimiter=delimiter), [])
