"""All formats of tables behind one interface."""

from __future__ import annotations

import codecs
import csv
import difflib
import os
import re
import warnings
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.json

from opensetda.data.limits import LONGEST_ROW
from opensetda.data.names import shown
from opensetda.data.reading import broken, check_path, no_such, reading
from opensetda.data.tables.column_files import ColumnTable
from opensetda.data.tables.mapped import Arrays, TableFile
from opensetda.data.tables.parquet_parts import is_parts_folder, open_parquet
from opensetda.errors import InputError
from opensetda.system.files import open_regular
from opensetda.system.memory import check_free

SUFFIXES = (".npz", ".npy", ".csv", ".tsv", ".xlsx", ".feather", ".jsonl", ".parquet")
_ANY_SUFFIX = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
_KINDS = {
    ".csv": "a CSV table",
    ".tsv": "a TSV table",
    ".xlsx": "an Excel file",
    ".feather": "a Feather file",
    ".jsonl": "a file of JSON lines",
}
# Bytes in memory per byte of a file; cells of a sheet are Python objects first.
_FACTOR, _SHEET_FACTOR = 3, 8
_BLOCK_BYTES = 1 << 24
_SNIFFED_LINES, _SNIFFED_BYTES = 50, 1 << 16
# The first of those that divide the header into as many cells.
_DELIMITERS = ",;\t|"
_NUMBER = r"\s*[+-]?\d*{}\d+([eE][+-]?\d+)?\s*"
_WITH_COMMA, _WITH_POINT = re.compile(_NUMBER.format(",")), re.compile(_NUMBER.format(r"\."))


def open_table(
    path: Path, text_columns: Iterable[str] = (), scratch: Path | None = None
) -> TableFile:
    """Open a file whose name ends in one of `SUFFIXES`, or a folder of Parquet files.

    Columns of a CSV file in `text_columns` are read as text: the label 007 stays 007. `scratch` is
    as in `read_domains`.
    """
    check_path(path)
    suffix = path.suffix.lower()
    if is_parts_folder(path):
        return open_parquet(path, scratch)
    if path.is_dir():
        advice = f"give a feature table ({_ANY_SUFFIX}), or a folder with .parquet files only"
        raise InputError(f"{path}: this is a folder; {advice}")
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: the name must end in {_ANY_SUFFIX}")
    if not path.exists():
        raise no_such(path, lambda name: name.lower().endswith(SUFFIXES))
    if suffix in (".npz", ".npy"):
        return Arrays(path, scratch)
    if suffix == ".parquet":
        return open_parquet(path, scratch)
    what = _KINDS[suffix]
    with reading(path, what), open_regular(path) as stream:
        if suffix == ".xlsx":
            table = _read_sheet(path, stream)
        else:
            advice = "save it as Parquet, which is read in batches"
            size = os.fstat(stream.fileno()).st_size
            check_free(_FACTOR * size, f"{path}: in memory it", advice)
            if suffix == ".feather":
                table = pyarrow.feather.read_table(stream, memory_map=False)
                table.validate(full=True)
            elif suffix == ".jsonl":
                options = pyarrow.json.ReadOptions(block_size=_BLOCK_BYTES)
                table = pyarrow.json.read_json(stream, options)
            else:
                table = _read_csv(stream, suffix, text_columns)
        return ColumnTable.in_memory(path, table, what)


def find_name(table: TableFile, name: str, option: str) -> str:
    """Return `name` if the table has it; otherwise raise an error that lists what it has."""
    if name in table.names:
        return name
    if not table.names:
        advice = f"save X and {name} with np.savez"
        raise InputError(f"{table.path}: a bare array has no {name!r} beside it; {advice}")
    kind = "column" if table.has_columns else "array"
    close = difflib.get_close_matches(name, table.names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; choose another with {option}"
    raise InputError(f"{table.path}: no {kind} {name!r}; it has {listing(table.names)}{hint}")


def listing(names: Sequence[str], most: int = 8) -> str:
    """Join names for an error message, at most the first few."""
    some = ", ".join(map(shown, names[:most]))
    return some if len(names) <= most else f"{some}, ... ({len(names)} in all)"


def _read_csv(stream: Any, suffix: str, text_columns: Iterable[str]) -> Any:
    lines = [stream.readline(_SNIFFED_BYTES) for _ in range(_SNIFFED_LINES)]
    if lines[0].startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UnicodeError
    delimiter, decimal = _dialect(lines, suffix)
    parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    kinds = dict.fromkeys(text_columns, pa.string())
    convert = pyarrow.csv.ConvertOptions(column_types=kinds, decimal_point=decimal)

    def table(**options: Any) -> Any:
        stream.seek(0)
        return pyarrow.csv.read_csv(stream, pyarrow.csv.ReadOptions(**options), parse, convert)

    try:
        return table(block_size=_BLOCK_BYTES)
    except pa.ArrowInvalid:
        # On one thread the reader names the row.
        try:
            return table(block_size=LONGEST_ROW, use_threads=False)
        except pa.ArrowInvalid as error:
            if "UTF8" in str(error):
                raise UnicodeError from error
            raise


def _dialect(lines: Sequence[bytes], suffix: str) -> tuple[str, str]:
    """Return what separates the cells of a text table, and the whole of a number from its rest."""
    text = [line.decode("utf-8-sig", "replace").strip("\r\n") for line in lines if line.strip()]
    if suffix == ".tsv" or not text:
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
    commas = sum(_WITH_COMMA.fullmatch(cell) is not None for cell in cells)
    points = sum(_WITH_POINT.fullmatch(cell) is not None for cell in cells)
    return delimiter, "," if commas > points else "."


def _cells(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter), [])


def _read_sheet(path: Path, stream: Any) -> Any:
    """Return the first sheet of an Excel file; its first row names the columns."""
    try:
        import openpyxl
    except ImportError:
        advice = "install it with: pip install 'opensetda[excel]', or save the sheet as CSV"
        missing = "openpyxl, which reads Excel files, is missing"
        raise InputError(f"{path}: {missing}; {advice}") from None
    damaged = "it is damaged, protected or not an .xlsx file"
    with reading(path, _KINDS[".xlsx"], damaged), warnings.catch_warnings(action="ignore"):
        with zipfile.ZipFile(stream) as archive:
            size = sum(member.file_size for member in archive.infolist())
        check_free(_SHEET_FACTOR * size, f"{path}: in memory it", "save the sheet as Parquet")
        stream.seek(0)
        # Values as Excel last computed them; formulas are never evaluated.
        book = openpyxl.load_workbook(stream, read_only=True, data_only=True, keep_links=False)
        try:
            header, *rows = _rows(book.worksheets[0]) or [()]
        finally:
            book.close()
        if not header:
            raise broken(path, _KINDS[".xlsx"], "its first sheet is empty")
        names = ["" if name is None else str(name) for name in header]
        columns = [
            _column([row[place] if place < len(row) else None for row in rows])
            for place in range(len(names))
        ]
        return pa.table(columns, names=names)


def _rows(sheet: Any) -> list[tuple[Any, ...]]:
    """Return the rows that hold something, without empty cells at the end."""
    rows = []
    for row in sheet.iter_rows(values_only=True):
        filled = [place for place, value in enumerate(row) if value not in (None, "")]
        if filled:
            rows.append(row[: filled[-1] + 1])
    return rows


def _column(values: list[Any]) -> Any:
    cells = [None if value == "" else value for value in values]
    if all(value is None or isinstance(value, int | float) for value in cells):
        return pa.array([None if v is None else float(v) for v in cells], pa.float64())
    try:
        return pa.array(cells)
    except (pa.ArrowException, TypeError):
        # Of several kinds: numbers among text.
        return pa.array([None if v is None else str(v) for v in cells], pa.string())
