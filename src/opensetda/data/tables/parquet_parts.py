"""Parquet files larger than memory, and folders of them, read a batch at a time.

Features and ids that are too large for memory are first written to a scratch file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
from pyarrow import types

from opensetda.data.limits import LONGEST_ID
from opensetda.data.names import shown
from opensetda.data.reading import broken, reading
from opensetda.data.tables import mapped
from opensetda.data.tables.interface import Fill, Matrix, TableFile
from opensetda.data.tables.mapped import OnRead, StoredText, TextColumn, ignore
from opensetda.data.tables.scratch import remove_with, rows_of_columns, scratch_file
from opensetda.errors import InputError
from opensetda.system.files import open_regular

_BATCH_VALUES = 1 << 20
_BATCH_ROWS = 1 << 16
# Read buffer per column; without it a whole row group would be read at once.
_BUFFER_BYTES = 1 << 14
# Row groups of more values are read some columns at a time: a reader of all columns holds a page
# and a dictionary of each, which take more memory than the numbers.
_GROUP_VALUES = 1 << 22
# Bytes of a column of text beside its cells.
_SPARE = 1 << 20
_KIND = "a Parquet file"

_TEXT = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
_NUMERIC = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)


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
    names = [entry.name for entry in path.iterdir() if not entry.name.startswith(("_", "."))]
    return [path / name for name in sorted(names)]


def table_bytes(path: str | Path) -> int:
    """Return the size of a table's files in bytes."""
    return sum(file.stat().st_size for file in table_files(path))


class ParquetParts(TableFile):
    """A Parquet file, or a folder of parts with the same columns."""

    has_columns = True

    def __init__(self, path: Path, scratch: Path | None = None) -> None:
        self.path, self._scratch, self._files = path, scratch, table_files(path)
        self._lengths: list[int] = []
        for file in self._files:
            with _opened(file) as parquet:
                schema = parquet.schema_arrow
                self._lengths.append(_rows_in(file, parquet.metadata))
            if file is self._files[0]:
                self.names = tuple(schema.names)
                self.kinds = dict(zip(schema.names, schema.types, strict=True))
                check_once(file, self.names)
            else:
                self._check_same(file, schema)

    def __len__(self) -> int:
        return sum(self._lengths)

    def _check_same(self, file: Path, schema: Any) -> None:
        first = self._files[0].name
        here, there = dict(zip(schema.names, schema.types, strict=True)), self.kinds
        what = None
        if differing := [name for name in self.names if here.get(name) != there[name]]:
            name = differing[0]
            what = f"column {name!r} holds {here.get(name)}, in {first} {there[name]}"
            if name not in here:
                what = f"no column {name!r}, which {first} has"
        else:
            check_once(file, schema.names)
            if extra := [name for name in schema.names if name not in there]:
                what = f"column {extra[0]!r} is not in {first}"
        if what:
            raise InputError(f"{file}: {what}; all parts of a table need the same columns")

    def text(self, name: str) -> TextColumn:
        """Return a column as text."""
        mapped.check_rows(self.path, name, len(self))
        found = [cells for _, _, cells in self._text_batches(name)]
        return np.concatenate([np.empty(0, dtype=object), *found])

    def check_kinds(self, names: Sequence[str]) -> None:
        """Raise an error for the first column that is not numeric."""
        for name in names:
            if not is_numeric(self.kinds[name]):
                raise not_numeric(f"{self._files[0]}: column {name!r}", self.example(name))

    def example(self, name: str) -> str:
        """Return what a column that is not numeric holds, in words."""
        found = pa.array([], self.kinds[name])
        if types.is_string(found.type):
            batches = (b for group in self._groups() for b in _batches(group, [name], 100))
            found = next((batch.column(name) for _, batch in batches), found)
        with reading(self._files[0], f"column {name!r}"):
            return example_of(found)

    def width(self, names: Sequence[str]) -> int | None:
        """Return the number of features."""
        return len(names)

    def features(self, names: Sequence[str], on_read: OnRead = ignore, fill: Fill = None) -> Matrix:
        """Return columns as a matrix: in memory, or in a file if it is large."""
        self.check_kinds(names)
        shape = (len(self), len(names))
        if not mapped.is_large(shape):
            matrix, start = np.empty(shape, dtype=np.float32), 0
            for group in self._groups(on_read):
                for place, row, values in _columns(group, names, fill):
                    matrix[start + row : start + row + len(values), place] = values
                start += group.length
            return matrix
        halves = all(types.is_float16(self.kinds[name]) for name in names)
        dtype = np.dtype(np.float16 if halves else np.float32)
        n_bytes = len(self) * len(names) * dtype.itemsize
        with scratch_file(self._scratch, self.path, ".npy", n_bytes) as file:
            # Written, not mapped: writing to a map on a full disk kills the process.
            found = self._blocks(names, dtype, on_read, fill)
            with file.open("wb") as stream, closing(found) as blocks:
                heading = {"descr": dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(stream, heading)
                for block in blocks:
                    stream.write(block.data)
                offset = stream.tell() - n_bytes
            X = mapped.StoredArray(file, self.path.name, dtype, shape, offset).map()
        if self._scratch is None:
            remove_with(X, file)
        return X

    def stored_text(self, name: str, advice: str) -> StoredText:
        """Return a column of text that stays in a file; an empty cell is an error."""
        schema = pa.schema([("text", pa.string())])
        with scratch_file(self._scratch, self.path, ".arrow") as file:
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for part, first, cells in self._text_batches(name):
                    mapped.check_cells(cells, part, name, advice, first=first)
                    writer.write_batch(pa.record_batch([pa.array(cells, pa.string())], schema))
            text = mapped.ArrowText(file)
        if self._scratch is None:
            remove_with(text, file)
        return text

    def _blocks(
        self, names: Sequence[str], dtype: np.dtype[Any], on_read: OnRead, fill: Fill
    ) -> Generator[npt.NDArray[Any], None, None]:
        """Yield some rows at a time, of finite numbers."""
        at_once = max(1, min(_BATCH_ROWS, _BATCH_VALUES // len(names)))
        for group in self._groups(on_read):
            if group.length * len(names) > _GROUP_VALUES:
                yield from self._transposed(group, names, dtype, fill)
                continue
            for _, columns in _numbers(group, names, at_once, fill):
                yield np.stack(columns, axis=1).astype(dtype, copy=False)

    def _transposed(
        self, group: _RowGroup, names: Sequence[str], dtype: np.dtype[Any], fill: Fill
    ) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows of a large group, whose columns are first written to a scratch file."""
        length, size = group.length, dtype.itemsize
        needed = length * len(names) * size
        with scratch_file(self._scratch, self.path, ".columns", needed) as file:
            with file.open("w+b") as stream:
                for place, row, values in _columns(group, names, fill):
                    stream.seek((place * length + row) * size)
                    stream.write(values.astype(dtype, copy=False).data)
                yield from rows_of_columns(stream, (length, len(names)), dtype)
            file.unlink()

    def _text_batches(self, name: str) -> Iterator[tuple[Path, int, TextColumn]]:
        for group in self._groups(text=name):
            what = f"column {name!r}"
            for row, batch in _batches(group, [name], _BATCH_ROWS):
                first = group.first + row
                with reading(group.path, what):
                    cells = column_text(batch.column(0), f"{group.path}: {what}", first)
                yield group.path, first, cells

    def _groups(self, on_read: OnRead = ignore, text: str | None = None) -> Iterator[_RowGroup]:
        kind = self.kinds[text] if text is not None else None
        is_text = kind is not None and any(is_kind(kind) for is_kind in _TEXT)
        for file, length in zip(self._files, self._lengths, strict=True):
            first = 0
            with _opened(file, text if is_text else None) as parquet:
                if text is not None and is_text:
                    _check_size(file, parquet.metadata, text)
                for number in range(parquet.num_row_groups):
                    rows = parquet.metadata.row_group(number).num_rows
                    yield _RowGroup(file, parquet, number, first, rows)
                    first += rows
                    on_read(file.stat().st_size * rows // max(1, length))
            if first != length:
                raise broken(file, _KIND, "it changed while it was read")


class _RowGroup(NamedTuple):
    """Rows of a Parquet file that are stored together; `first` is the number of the first."""

    path: Path
    parquet: Any
    number: int
    first: int
    length: int


def _columns(
    group: _RowGroup, names: Sequence[str], fill: Fill
) -> Iterator[tuple[int, int, npt.NDArray[np.float32]]]:
    """Yield the place of a column, the number of a row in the group, and numbers from there."""
    at_once = max(1, _GROUP_VALUES // max(1, group.length))
    for first in range(0, len(names), at_once):
        for row, columns in _numbers(group, names[first : first + at_once], _BATCH_ROWS, fill):
            for place, values in enumerate(columns, start=first):
                yield place, row, values


def _numbers(
    group: _RowGroup, names: Sequence[str], rows: int, fill: Fill
) -> Iterator[tuple[int, list[npt.NDArray[np.float32]]]]:
    """Yield the number of a row in the group, and batches of all columns from there."""
    for row, batch in _batches(group, names, rows):
        path, first = group.path, group.first + row
        with reading(path, "numbers"):
            # The reader keeps the order of the file.
            there = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns = [
                column_numbers(
                    there[name], path, name, first, None if fill is None else fill.get(name, np.nan)
                )
                for name in names
            ]
        yield row, columns


def _batches(group: _RowGroup, names: Sequence[str], rows: int) -> Iterator[tuple[int, Any]]:
    """Yield the number of a row in the group, and the record batch from there."""
    row = 0
    with reading(group.path, _KIND):
        for batch in group.parquet.iter_batches(rows, [group.number], columns=list(names)):
            yield row, batch
            row += batch.num_rows
    if row != group.length:
        raise broken(group.path, _KIND, "it is damaged: rows are missing")


def check_once(path: Path, names: Sequence[str]) -> None:
    """Raise an `InputError` if two columns have the same name."""
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise InputError(f"{path}: column {shown(name)} appears twice; rename one of them")


@contextmanager
def _opened(path: Path, text: str | None = None) -> Iterator[Any]:
    # Text as a dictionary: one that is repeated is in memory once.
    options: dict[str, Any] = {"buffer_size": _BUFFER_BYTES, "pre_buffer": False}
    options |= {"read_dictionary": [text]} if text else {}
    with (
        reading(path, _KIND),
        open_regular(path) as stream,
        pyarrow.parquet.ParquetFile(stream, **options) as file,
    ):
        yield file


def _rows_in(path: Path, metadata: Any) -> int:
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    if min(rows, default=0) < 0 or sum(rows) != metadata.num_rows:
        raise broken(path, _KIND, "it is damaged: its numbers of rows do not agree")
    return sum(rows)


def _check_size(path: Path, metadata: Any, name: str) -> None:
    """Raise an `InputError` if the text of a column is longer than that of names."""
    paths = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
    place = paths.index(name) if name in paths else None
    for number in range(metadata.num_row_groups if place is not None else 0):
        group = metadata.row_group(number)
        if group.column(place).total_uncompressed_size > _SPARE + 4 * LONGEST_ID * group.num_rows:
            most = f"at most {LONGEST_ID:,} characters are read"
            raise InputError(f"{path}: column {name!r}: longer than any name; {most}")


def column_text(column: Any, where: str, first: int = 0) -> TextColumn:
    """Return an Arrow column as text; None where a cell is empty."""
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_floating(kind) or types.is_boolean(kind):
        return mapped.as_text(np.asarray(column.cast(kind)), where, first)
    if types.is_nested(kind) or types.is_null(kind):
        raise InputError(f"{where} holds {kind}; labels and ids are text or numbers")
    cells = [np.empty(0, dtype=object)]
    for chunk in getattr(column, "chunks", [column]):
        # Not a Python string for each row.
        part = chunk if types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        try:
            names = [*part.dictionary.cast(pa.string()).to_pylist(), None]
        except (UnicodeDecodeError, pa.ArrowInvalid) as error:
            raise InputError(f"{where} is not UTF-8 text; save it as text") from error
        values = np.array([name or None for name in names], dtype=object)
        cells.append(values[np.asarray(part.indices.cast(pa.int64()).fill_null(len(names) - 1))])
    return np.concatenate(cells)


def column_numbers(
    column: Any, path: Path, name: str, first: int = 0, missing: float | None = None
) -> npt.NDArray[np.float32]:
    """Return an Arrow column, from row `first` on, as finite float32 or float16 numbers.

    An empty cell gets the value `missing`, which may be NaN; None makes it an error.
    """
    check_numeric(column, f"{path}: column {name!r}")
    if types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if not types.is_floating(column.type):
        column = column.cast(pa.float64(), safe=False)
    # An empty cell becomes NaN.
    values = np.asarray(column)
    narrow = values if values.dtype == np.float16 else mapped.to_float32(values)
    finite = np.isfinite(narrow)
    if missing is not None:
        gaps = np.isnan(narrow)
        narrow, finite = np.where(gaps, narrow.dtype.type(missing), narrow), finite | gaps
    if not finite.all():
        row = int(finite.argmin())
        raise mapped.not_finite(path, first + row, f"column {name!r}", values[row])
    return narrow


def is_numeric(kind: Any) -> bool:
    """Return whether columns of an Arrow type are numbers."""
    return any(is_kind(kind) for is_kind in _NUMERIC)


def not_numeric(where: str, example: str) -> InputError:
    """Return the error for a column that is not numeric."""
    advice = "name it with --label-column or --id-column, or leave it out with --drop"
    return InputError(f"{where} is not numeric ({example}); {advice}")


def check_numeric(column: Any, where: str) -> None:
    """Raise an `InputError` with an example unless an Arrow column is numeric."""
    if not is_numeric(column.type):
        raise not_numeric(where, example_of(column))


def example_of(column: Any) -> str:
    """Return what an Arrow column that is not numeric holds, in words."""
    if types.is_dictionary(column.type):
        return "it holds categories"
    if not types.is_string(column.type):
        return f"it holds {column.type}"
    for row, value in enumerate(column.to_pylist()):
        try:
            float(value or "nan")
        except ValueError:
            return f"row {row + 1} holds {shown(value, 40)}"
    return "it holds text"
