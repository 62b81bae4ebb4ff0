"""Parquet files larger than memory, and folders of them, read a batch at a time.

Features and ids that are too large for memory are first written to a scratch file.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
from pyarrow import types

from opensetda.data.tables import mapped
from opensetda.data.tables.mapped import OnRead, StoredText, TextColumn, broken, ignore, one_line
from opensetda.errors import InputError

_BATCH_VALUES = 1 << 20
_BATCH_ROWS = 1 << 16
# Read buffer per column; without it a whole row group would be read at once.
_BUFFER_BYTES = 1 << 14
# Row groups of more values are read some columns at a time: a reader of all columns holds a page
# and a dictionary of each, which take more memory than the numbers.
_GROUP_VALUES = 1 << 22

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


class ParquetParts:
    """A Parquet file, or a folder of parts with the same columns; a `TableFile`."""

    has_columns = True

    def __init__(self, path: Path, scratch: Path | None = None) -> None:
        self.path, self._scratch, self._files = path, scratch, table_files(path)
        self._lengths: list[int] = []
        for file in self._files:
            with _opened(file) as parquet:
                schema = parquet.schema_arrow
                self._lengths.append(parquet.metadata.num_rows)
            if file is self._files[0]:
                self._schema = schema
                self.names = tuple(schema.names)
                check_once(file, self.names)
            else:
                self._check_same(file, schema)

    def __len__(self) -> int:
        return sum(self._lengths)

    def _check_same(self, file: Path, schema: Any) -> None:
        first = self._files[0].name
        here, there = (dict(zip(s.names, s.types, strict=True)) for s in (schema, self._schema))
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
        found = [cells for _, _, cells in self._text_batches(name)]
        return np.concatenate([np.empty(0, dtype=object), *found])

    labels = text

    def check_kinds(self, names: Sequence[str]) -> None:
        """Raise an error for the first column that is not numeric."""
        for name in names:
            kind = self._schema.field(name).type
            example = pa.array([], kind)
            if types.is_string(kind):
                batches = (b for group in self._groups() for b in _batches(group, [name], 100))
                example = next((batch.column(name) for _, batch in batches), example)
            check_numeric(example, f"{self._files[0]}: column {name!r}")

    def width(self, names: Sequence[str]) -> int | None:
        """Return the number of features."""
        return len(names)

    def features(self, names: Sequence[str], on_read: OnRead = ignore) -> npt.NDArray[Any]:
        """Return columns as a matrix: in memory, or in a file if it is large."""
        self.check_kinds(names)
        shape = (len(self), len(names))
        if not mapped.is_large(shape):
            matrix, row = np.empty(shape, dtype=np.float32), 0
            for block in self._blocks(names, matrix.dtype, on_read):
                matrix[row : row + len(block)] = block
                row += len(block)
            return matrix
        halves = all(types.is_float16(self._schema.field(name).type) for name in names)
        dtype = np.dtype(np.float16 if halves else np.float32)
        n_bytes = len(self) * len(names) * dtype.itemsize
        with _scratch_file(self._scratch, self.path, ".npy", n_bytes) as file:
            # Written, not mapped: writing to a map on a full disk kills the process.
            with file.open("wb") as stream, closing(self._blocks(names, dtype, on_read)) as blocks:
                heading = {"descr": dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(stream, heading)
                for block in blocks:
                    stream.write(block.data)
                offset = stream.tell() - n_bytes
            X = mapped.StoredArray(file, self.path.name, dtype, shape, offset).map()
        self._remove_with(X, file)
        return X

    def stored_text(self, name: str, advice: str) -> StoredText:
        """Return a column of text that stays in a file; an empty cell is an error."""
        schema = pa.schema([("text", pa.string())])
        with _scratch_file(self._scratch, self.path, ".arrow") as file:
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for part, first, cells in self._text_batches(name):
                    mapped.check_filled(cells, part, name, advice, first)
                    writer.write_batch(pa.record_batch([pa.array(cells, pa.string())], schema))
            text = mapped.ArrowText(file)
        self._remove_with(text, file)
        return text

    def _remove_with(self, user: Any, file: Path) -> None:
        """Remove a file of our own once the object that uses it is deleted."""
        if self._scratch is None:
            # Not at exit, which removes the whole folder: a forked process would do it, too.
            weakref.finalize(user, file.unlink, missing_ok=True).atexit = False

    def _blocks(
        self, names: Sequence[str], dtype: np.dtype[Any], on_read: OnRead
    ) -> Generator[npt.NDArray[Any], None, None]:
        """Yield some rows at a time, of finite numbers."""
        at_once = max(1, min(_BATCH_ROWS, _BATCH_VALUES // len(names)))
        for group in self._groups(on_read):
            if group.length * len(names) > _GROUP_VALUES:
                yield from self._transposed(group, names, dtype, at_once)
                continue
            for _, columns in _numbers(group, names, at_once):
                yield np.stack(columns, axis=1).astype(dtype, copy=False)

    def _transposed(
        self, group: _RowGroup, names: Sequence[str], dtype: np.dtype[Any], step: int
    ) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows of a large group, whose columns are first written to a scratch file."""
        length, size = group.length, dtype.itemsize
        needed = length * len(names) * size
        with _scratch_file(self._scratch, self.path, ".columns", needed) as file:
            with file.open("w+b") as stream:
                at_once = max(1, _GROUP_VALUES // length)
                for first in range(0, len(names), at_once):
                    some = names[first : first + at_once]
                    for row, columns in _numbers(group, some, _BATCH_ROWS):
                        for place, values in enumerate(columns, start=first):
                            stream.seek((place * length + row) * size)
                            stream.write(values.astype(dtype, copy=False).data)
                for row in range(0, length, step):
                    part = np.empty((len(names), min(step, length - row)), dtype=dtype)
                    for place in range(len(names)):
                        stream.seek((place * length + row) * size)
                        stream.readinto(part[place].data)
                    yield np.ascontiguousarray(part.T)
            file.unlink()

    def _text_batches(self, name: str) -> Iterator[tuple[Path, int, TextColumn]]:
        for group in self._groups():
            where = f"{group.path}: column {name!r}"
            for row, batch in _batches(group, [name], _BATCH_ROWS):
                first = group.first + row
                yield group.path, first, column_text(batch.column(name), where, first)

    def _groups(self, on_read: OnRead = ignore) -> Iterator[_RowGroup]:
        for file, length in zip(self._files, self._lengths, strict=True):
            first = 0
            with _opened(file) as parquet:
                for number in range(parquet.num_row_groups):
                    rows = parquet.metadata.row_group(number).num_rows
                    yield _RowGroup(file, parquet, number, first, rows)
                    first += rows
                    on_read(file.stat().st_size * rows // max(1, length))
            if first != length:
                raise broken(file, "a Parquet file", "it changed while it was read")


class _RowGroup(NamedTuple):
    """Rows of a Parquet file that are stored together; `first` is the number of the first."""

    path: Path
    parquet: Any
    number: int
    first: int
    length: int


def _numbers(
    group: _RowGroup, names: Sequence[str], rows: int
) -> Iterator[tuple[int, list[npt.NDArray[np.float32]]]]:
    """Yield the number of a row in the group, and batches of all columns from there."""
    for row, batch in _batches(group, names, rows):
        path, first = group.path, group.first + row
        yield row, [column_numbers(batch.column(name), path, name, first) for name in names]


def _batches(group: _RowGroup, names: Sequence[str], rows: int) -> Iterator[tuple[int, Any]]:
    """Yield the number of a row in the group, and the record batch from there."""
    row = 0
    with _reading(group.path):
        for batch in group.parquet.iter_batches(rows, [group.number], columns=list(names)):
            yield row, batch
            row += batch.num_rows
    if row != group.length:
        raise broken(group.path, "a Parquet file", "it is damaged: rows are missing")


def check_once(path: Path, names: Sequence[str]) -> None:
    """Raise an `InputError` if two columns have the same name."""
    if len(set(names)) < len(names):
        repeated = [name for name in names if names.count(name) > 1]
        raise InputError(f"{path}: column {repeated[0]!r} appears twice; rename one of them")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    options = {"buffer_size": _BUFFER_BYTES, "pre_buffer": False}
    with _reading(path), pyarrow.parquet.ParquetFile(path, **options) as file:
        yield file


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors of a reader into an `InputError` that names the file."""
    try:
        yield
    except pa.ArrowException as error:
        raise broken(path, "a Parquet file", one_line(error)) from error
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> InputError:
    """Return the error for a file that the system cannot read."""
    reason = error.strerror or one_line(error)
    return InputError(f"{path}: cannot be read ({reason}); check the file")


@contextmanager
def _scratch_file(
    folder: Path | None, of: Path, suffix: str, n_bytes: int | None = None
) -> Iterator[Path]:
    """Yield a new file to write to, which is removed if something goes wrong.

    `folder` None is a temporary folder that is removed when the program ends; `of` is the table,
    for messages; `n_bytes` is the final size of the file, for which the disk must have room.
    """
    advice = "make room there" if folder is not None else "make room there, or set TMPDIR"
    path = None
    try:
        folder = folder or _own_folder()
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if n_bytes is not None and n_bytes > free:
            left = f"{folder} has {free / 1e9:.1f} GB left"
            raise InputError(
                f"{of}: unpacked it takes {n_bytes / 1e9:.1f} GB, but {left}; {advice}"
            )
        number, name = tempfile.mkstemp(suffix, f"{of.stem[:40]}-", folder)
        os.close(number)
        path = Path(name)
        yield path
    except BaseException as error:
        if path is not None:
            path.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        place, reason = folder or tempfile.gettempdir(), error.strerror or one_line(error)
        raise InputError(f"{of}: cannot be unpacked in {place} ({reason}); {advice}") from error


@cache
def _own_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="opensetda-"))
    owner = os.getpid()

    def remove() -> None:
        # Not by a forked process, which ends earlier.
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def column_text(column: Any, where: str, first: int = 0) -> TextColumn:
    """Return an Arrow column as text; None where a cell is empty."""
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_floating(column.type) or types.is_boolean(column.type):
        return mapped.as_text(np.asarray(column), where, first)
    if types.is_nested(column.type) or types.is_null(column.type):
        raise InputError(f"{where} holds {column.type}; labels and ids are text or numbers")
    try:
        values = np.array(column.cast(pa.string()).to_pylist(), dtype=object)
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 text; save it as text") from error
    values[values == ""] = None
    return values


def column_numbers(column: Any, path: Path, name: str, first: int = 0) -> npt.NDArray[np.float32]:
    """Return an Arrow column, from row `first` on, as finite float32 or float16 numbers."""
    check_numeric(column, f"{path}: column {name!r}")
    if types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if not types.is_floating(column.type):
        column = column.cast(pa.float64(), safe=False)
    # An empty cell becomes NaN.
    values = np.asarray(column)
    narrow = values if values.dtype == np.float16 else mapped.to_float32(values)
    finite = np.isfinite(narrow)
    if not finite.all():
        row = int(finite.argmin())
        raise mapped.not_finite(path, first + row, f"column {name!r}", values[row])
    return narrow


def check_numeric(column: Any, where: str) -> None:
    """Raise an `InputError` with an example unless an Arrow column is numeric."""
    if not any(is_kind(column.type) for is_kind in _NUMERIC):
        advice = "name it with --label-column or --id-column, or leave it out with --drop"
        raise InputError(f"{where} is not numeric ({_example(column)}); {advice}")


def _example(column: Any) -> str:
    if not types.is_string(column.type):
        return f"it holds {column.type}"
    for row, value in enumerate(column.to_pylist()):
        try:
            float(value or "nan")
        except ValueError:
            shown = value if len(value) <= 40 else f"{value[:40]}..."
            return f"row {row + 1} holds {shown!r}"
    return "it holds text"
