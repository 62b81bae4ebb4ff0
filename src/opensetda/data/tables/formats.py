"""All formats of tables, by the suffixes of their names."""

from __future__ import annotations

import codecs
import csv
import difflib
import os
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.json
import pyarrow.parquet

from opensetda.data.names import shown
from opensetda.data.reading import broken, check_path, no_such, reading
from opensetda.data.tables.column_files import ColumnTable
from opensetda.data.tables.mapped import Arrays
from opensetda.errors import InputError
from opensetda.system.files import open_regular
from opensetda.system.memory import check_free

TableFile = ColumnTable | Arrays

SUFFIXES = (".npz", ".npy", ".csv", ".tsv", ".xlsx", ".feather", ".jsonl", ".parquet")
_ANY_SUFFIX = f"{', '.join(SUFFIXES)}, or be a folder of .parquet files only"
LONGEST_ROW = 1 << 28  # bytes of a row in a CSV file
# Bytes in memory per byte of a file; cells of a sheet are Python objects first.
_FACTOR, _SHEET_FACTOR = 3, 8
_BLOCK_BYTES = 1 << 24
# Read buffer per column of Parquet; without it a whole row group would be read at once.
_BUFFER_BYTES = 1 << 14
_SNIFFED_LINES, _SNIFFED_BYTES = 50, 1 << 16
# The first of those that divide the header into as many cells.
_DELIMITERS = ",;\t|"
_NUMBER = r"\s*[+-]?\d*{}\d+([eE][+-]?\d+)?\s*"
_WITH_COMMA, _WITH_POINT = re.compile(_NUMBER.format(",")), re.compile(_NUMBER.format(r"\."))


def open_table(
    path: Path, text_columns: Iterable[str] = (), scratch: Path | None = None
) -> TableFile:
    """Open a file whose name ends in one of `SUFFIXES`, or a folder of Parquet files.

    Columns of a CSV file in `text_columns` are read as text: the label 007 stays 007.
    """
    check_path(path)
    suffix = path.suffix.lower()
    if is_parts_folder(path):
        return _open_parquet(path, scratch)
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: no table, which must end in {_ANY_SUFFIX}")
    if not path.exists():
        raise no_such(path, lambda name: name.lower().endswith(SUFFIXES))
    if suffix in (".npz", ".npy"):
        return Arrays(path, scratch)
    if suffix == ".parquet":
        return _open_parquet(path, scratch)
    with reading(path), open_regular(path) as stream:
        if suffix == ".xlsx":
            return ColumnTable.in_memory(path, _read_sheet(path, stream))
        size = _FACTOR * os.fstat(stream.fileno()).st_size
        check_free(size, f"{path}: in memory it", "save it as Parquet, which is read in batches")
        if suffix == ".feather":
            table = pyarrow.feather.read_table(stream, memory_map=False)
            table.validate(full=True)
        elif suffix == ".jsonl":
            options = pyarrow.json.ReadOptions(block_size=_BLOCK_BYTES)
            table = pyarrow.json.read_json(stream, options)
        else:
            table = _read_csv(stream, suffix, text_columns)
        return ColumnTable.in_memory(path, table)


def find_name(table: TableFile, name: str, option: str) -> str:
    """Return `name` if the table has it; otherwise raise an error that lists what it has."""
    if name in table.names:
        return name
    kind = "column" if isinstance(table, ColumnTable) else "array"
    there = listing(table.names) or "one without a name (np.savez stores several)"
    hint = meant(name, table.names) or f"; choose another with {option}"
    raise InputError(f"{table.path}: no {kind} {name!r}; it has {there}{hint}")


def meant(name: str, names: Iterable[str]) -> str:
    """Return a question with the name that is nearest, whatever its case; empty if none is near."""
    plain = {other.strip().casefold(): other for other in names}
    near = difflib.get_close_matches(name.strip().casefold(), plain, n=1)
    return f"; did you mean {shown(plain[near[0]])}?" if near else ""


def listing(names: Sequence[str], most: int = 8) -> str:
    """Join names for an error message, at most the first few."""
    some = ", ".join(map(shown, names[:most]))
    return some if len(names) <= most else f"{some}, ... ({len(names)} in all)"


def is_parts_folder(path: str | Path) -> bool:
    """Return whether a folder is a table in parts: Parquet files, and perhaps ``_*`` and ``.*``."""
    # Stops at the first other file: a folder may hold a million images.
    with suppress(OSError), os.scandir(path) as entries:
        visible = (entry for entry in entries if not entry.name.startswith(("_", ".")))
        are_parts = (file.name.lower().endswith(".parquet") and file.is_file() for file in visible)
        return next(are_parts, False) and all(are_parts)
    return False


def table_files(path: str | Path) -> list[Path]:
    """Return the files of a table in the order of their rows: itself, or its parts."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    return sorted(entry for entry in path.iterdir() if not entry.name.startswith(("_", ".")))


def _open_parquet(path: Path, scratch: Path | None) -> ColumnTable:
    """Return a Parquet file, or a folder of parts with the same columns, as a table."""
    files, length = table_files(path), 0
    schema: Any = None
    for file in files:
        with _parquet(file) as parquet:
            length += max(0, parquet.metadata.num_rows)
            own = parquet.schema_arrow
        schema = own if schema is None else schema
        if different := {*zip(own.names, own.types, strict=True)} ^ {
            *zip(schema.names, schema.types, strict=True)
        }:
            name = min(name for name, _ in different)
            problem = f"column {shown(name)} is missing or of another type in {files[0].name}"
            raise InputError(f"{file}: {problem}; all parts of a table need the same columns")

    def batches(names: Sequence[str], rows: int) -> Iterator[tuple[Path, Any]]:
        for file in files:
            with _parquet(file) as parquet:
                yield from ((file, some) for some in parquet.iter_batches(rows, columns=[*names]))

    return ColumnTable(path, schema, length, batches, scratch, in_file=True)


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    with (
        reading(path),
        open_regular(path) as stream,
        pyarrow.parquet.ParquetFile(stream, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file,
    ):
        yield file


def _read_csv(stream: Any, suffix: str, text_columns: Iterable[str]) -> Any:
    lines = [stream.readline(_SNIFFED_BYTES) for _ in range(_SNIFFED_LINES)]
    if lines[0].startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UnicodeError
    delimiter, decimal = _dialect(lines, suffix)
    parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    kinds = dict.fromkeys(text_columns, pa.string())
    convert = pyarrow.csv.ConvertOptions(column_types=kinds, decimal_point=decimal)
    # On one thread the reader names the row.
    last = {"block_size": LONGEST_ROW, "use_threads": False}
    for options in ({"block_size": _BLOCK_BYTES}, last):
        stream.seek(0)
        try:
            return pyarrow.csv.read_csv(stream, pyarrow.csv.ReadOptions(**options), parse, convert)
        except pa.ArrowInvalid as error:
            if "UTF8" in str(error):
                raise UnicodeError from error
            if options is last:
                raise
    raise AssertionError


def _dialect(lines: Sequence[bytes], suffix: str) -> tuple[str, str]:
    """Return what separates the cells of a text table, and the whole of a number from its rest."""
    text = [line.decode("utf-8-sig", "replace").strip("\r\n") for line in lines if line.strip()]
    delimiter = "\t"
    if suffix == ".csv" and text:
        counts = {sign: [len(_cells(line, sign)) for line in text[:2]] for sign in _DELIMITERS}
        same = [sign for sign, (n, *rest) in counts.items() if n > 1 and rest in ([], [n])]
        delimiter = max(same or _DELIMITERS, key=lambda sign: counts[sign][0])
    if delimiter == ",":
        return ",", "."
    cells = [cell for line in text[1:] for cell in _cells(line, delimiter)]
    commas, points = (sum(map(bool, map(n.fullmatch, cells))) for n in (_WITH_COMMA, _WITH_POINT))
    return delimiter, "," if commas > points else "."


def _cells(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter), [])


def _read_sheet(path: Path, stream: Any) -> Any:
    """Return the first sheet of an Excel file; its first row names the columns."""
    try:
        import openpyxl
    except ImportError:
        advice = "install it with: pip install 'opensetda[excel]', or save the sheet as CSV"
        raise InputError(f"{path}: Excel files need openpyxl; {advice}") from None
    damaged = "it is damaged, protected or not an .xlsx file"
    with reading(path, why=damaged), warnings.catch_warnings(action="ignore"):
        with zipfile.ZipFile(stream) as archive:
            size = sum(member.file_size for member in archive.infolist())
        check_free(_SHEET_FACTOR * size, f"{path}: in memory it", "save the sheet as Parquet")
        stream.seek(0)
        # Values as Excel last computed them; formulas are never evaluated.
        book = openpyxl.load_workbook(stream, read_only=True, data_only=True, keep_links=False)
        try:
            rows = [
                row for row in book.worksheets[0].iter_rows(values_only=True) if {*row} - {None, ""}
            ]
        finally:
            book.close()
        columns = [[None if v == "" else v for v in column] for column in zip_longest(*rows)]
        while columns and columns[-1][0] is None:
            columns.pop()
        if not columns:
            raise broken(path, "its first sheet is empty")
        names = ["" if name is None else str(name) for name, *_ in columns]
        return pa.table([_column(values) for _, *values in columns], names=names)


def _column(cells: list[Any]) -> Any:
    try:
        return pa.array(cells)
    except (pa.ArrowException, OverflowError, TypeError):
        # Of several kinds: numbers among text.
        return pa.array([None if v is None else str(v) for v in cells], pa.string())
