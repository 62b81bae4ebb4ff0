"""The first sheet of an Excel file, as a table of columns."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree.ElementTree import ParseError

import pyarrow as pa

from opensetda.data.limits import MOST_CELLS, MOST_UNPACKED
from opensetda.data.names import shown
from opensetda.data.reading import broken, reading
from opensetda.errors import InputError
from opensetda.system.files import open_regular
from opensetda.system.memory import check_free

_WHAT = "an Excel file"
# Bytes in memory per byte of XML: cells are Python objects before they are columns.
_BYTES_PER_BYTE = 8
_NUMBERS = (bool, int, float)


def read_sheet(path: Path) -> Any:
    """Return the first sheet as an Arrow table; its first row names the columns."""
    try:
        import openpyxl
    except ImportError:
        advice = "install it with: pip install 'opensetda[excel]', or save the sheet as CSV"
        raise InputError(
            f"{path}: openpyxl, which reads Excel files, is missing; {advice}"
        ) from None
    damaged = "it is damaged, protected or not an .xlsx file"
    with (
        reading(path, _WHAT, damaged),
        warnings.catch_warnings(action="ignore"),
        _parsing(path, damaged),
        open_regular(path) as stream,
    ):
        _check_sizes(path, stream)
        # Values as Excel last computed them; formulas are never evaluated.
        book = openpyxl.load_workbook(stream, read_only=True, data_only=True, keep_links=False)
        try:
            rows = _rows(path, book.worksheets[0])
            header = next(rows, ())
            columns: list[list[Any]] = [[] for _ in header]
            for row in rows:
                for place, column in enumerate(columns):
                    column.append(row[place] if place < len(row) else None)
        finally:
            book.close()
        names = ["" if name is None else str(name) for name in header]
        if not names:
            raise broken(path, _WHAT, "its first sheet is empty")
        pairs = zip(names, columns, strict=True)
        return pa.table([_column(values) for _, values in pairs], names=names)


@contextmanager
def _parsing(path: Path, why: str) -> Iterator[None]:
    try:
        yield
    except ParseError as error:  # a SyntaxError, which no other reader raises
        raise broken(path, _WHAT, why) from error


def _check_sizes(path: Path, stream: BinaryIO) -> None:
    """Raise an `InputError` for a file that unpacks to more than memory, or like a zip bomb."""
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        for member in members:
            if member.file_size > 1 << 20 and member.file_size > MOST_UNPACKED * max(
                1, member.compress_size
            ):
                name = shown(member.filename)
                raise InputError(f"{path}: {name} unpacks like a zip bomb; save the sheet as CSV")
        needed = float(_BYTES_PER_BYTE * sum(member.file_size for member in members))
    check_free(needed, f"{path}: in memory it", "save the sheet as CSV or Parquet")
    stream.seek(0)


def _rows(path: Path, sheet: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that hold something, without empty cells at the end."""
    left = MOST_CELLS
    for row in sheet.iter_rows(values_only=True):
        # Rows and cells that are not in the file, but between those that are, count as well.
        left -= max(1, len(row))
        if left < 0:
            raise InputError(f"{path}: more than {MOST_CELLS:,} cells; save the sheet as CSV")
        length = len(row)
        while length and (row[length - 1] is None or row[length - 1] == ""):
            length -= 1
        if length:
            yield row[:length]


def _column(values: list[Any]) -> Any:
    cells = [None if value == "" else value for value in values]
    if all(value is None or isinstance(value, _NUMBERS) for value in cells):
        return pa.array([None if v is None else float(v) for v in cells], pa.float64())
    try:
        return pa.array(cells)
    except (pa.ArrowException, TypeError):
        # Of several kinds: numbers among text.
        return pa.array([None if v is None else str(v) for v in cells], pa.string())
