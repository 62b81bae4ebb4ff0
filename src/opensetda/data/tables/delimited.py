"""Tables that people write: text between delimiters, and sheets of Excel."""

from __future__ import annotations

import codecs
import csv
import re
import warnings
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from opensetda.data.names import broken
from opensetda.errors import InputError

LONGEST_ROW = 1 << 28  # bytes of a row in a CSV file
BLOCK_BYTES = 1 << 24
_SNIFFED_LINES = 50
_SNIFFED_BYTES = 1 << 16
# The first of those that divide the header into as many cells.
_DELIMITERS = ",;\t|"
_NUMBER = r"\s*[+-]?\d*{}\d+([eE][+-]?\d+)?\s*"
_WITH_COMMA = re.compile(_NUMBER.format(","))
_WITH_POINT = re.compile(_NUMBER.format(r"\."))


def read_csv(stream: Any, suffix: str, text_columns: Iterable[str], encoding: str = "utf8") -> Any:
    """Return a table of text; a `UnicodeError` if it has another encoding."""
    stream.seek(0)
    lines = [stream.readline(_SNIFFED_BYTES) for _ in range(_SNIFFED_LINES)]
    if lines[0].startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UnicodeError
    delimiter, decimal = _dialect(lines, suffix)
    parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    kinds = dict.fromkeys(text_columns, pa.string())
    convert = pyarrow.csv.ConvertOptions(column_types=kinds, decimal_point=decimal)
    # A second time for rows longer than a block; on one thread the reader names a wrong one.
    for block, fast in ((BLOCK_BYTES, True), (LONGEST_ROW, False)):
        stream.seek(0)
        options = pyarrow.csv.ReadOptions(block_size=block, use_threads=fast, encoding=encoding)
        try:
            return pyarrow.csv.read_csv(stream, options, parse, convert)
        except pa.ArrowInvalid as error:
            if "UTF8" in str(error):
                raise UnicodeError from error
            problem = error
    raise problem


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


def read_sheet(path: Path, stream: Any) -> Any:
    """Return the first sheet of an Excel file; its first row names the columns."""
    try:
        import openpyxl
    except ImportError:
        advice = "install it with: pip install 'opensetda[excel]', or save the sheet as CSV"
        raise InputError(f"{path}: Excel files need openpyxl; {advice}") from None
    with warnings.catch_warnings(action="ignore"):
        # Values as Excel last computed them; formulas are never evaluated.
        book = openpyxl.load_workbook(stream, read_only=True, data_only=True, keep_links=False)
        with closing(book):
            cells = book.worksheets[0].iter_rows(values_only=True)
            rows = [row for row in cells if {*row} - {None, ""}]
    named = [column for column in zip_longest(*rows) if column[0] not in (None, "")]
    if not named:
        raise broken(path, "its first sheet is empty")
    return pa.table([_column(v) for _, *v in named], names=[str(name) for name, *_ in named])


def _column(cells: list[Any]) -> Any:
    values = [None if value == "" else value for value in cells]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError):
        # Of several kinds: numbers among text.
        return pa.array([None if v is None else str(v) for v in values], pa.string())
