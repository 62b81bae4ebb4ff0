"""Parquet files larger than memory, and folders of them, read a batch at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from opensetda.data.tables import mapped
from opensetda.data.tables.cells import (
    TextColumn,
    broken,
    check_numeric,
    column_numbers,
    column_text,
    empty_cell,
    one_line,
)
from opensetda.data.tables.mapped import remove_with, scratch_file
from opensetda.data.tables.stored_text import ArrowText, StoredText
from opensetda.errors import InputError

_SUFFIX = ".parquet"
_BATCH_VALUES = 1 << 20
_BATCH_ROWS = 1 << 16
# Read buffer per column; without it a whole row group would be read at once.
_BUFFER_BYTES = 1 << 14
# Row groups of more values are read some columns at a time: a reader of all columns holds a page
# and a dictionary of each, which take more memory than the numbers.
_GROUP_VALUES = 1 << 22


def is_parts_folder(path: str | Path) -> bool:
    """Return whether a folder is a table in parts: Parquet files and nothing else.

    Names that begin with ``_`` or ``.`` (``_SUCCESS``) are ignored.
    """
    path = Path(path)
    found = False
    try:
        # Stops at the first other file: a folder may hold a million images.
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith(("_", ".")):
                    continue
                if not entry.name.lower().endswith(_SUFFIX) or not entry.is_file():
                    return False
                found = True
    except OSError:
        return False
    return found


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
    """A Parquet file, or a folder of parts with the same columns; a `TableFile`.

    `scratch` is the folder for features and ids that are too large for memory.
    """

    has_columns = True

    def __init__(self, path: Path, scratch: Path | None = None) -> None:
        self.path = path
        self._scratch = scratch
        self._files = table_files(path)
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
        for name in self.names:
            if name not in here:
                what = f"no column {name!r}, which {first} has"
            elif here[name] != there[name]:
                what = f"column {name!r} holds {here[name]}, in {first} {there[name]}"
            if what:
                break
        else:
            check_once(file, schema.names)
            extra = [name for name in schema.names if name not in there]
            what = f"column {extra[0]!r} is not in {first}" if extra else None
        if what:
            raise InputError(f"{file}: {what}; all parts of a table need the same columns")

    def text(self, name: str) -> TextColumn:
        """Return a column as text."""
        found = [cells for _, _, cells in self._text_batches(name)]
        return np.concatenate([np.empty(0, dtype=object), *found])

    def labels(self, name: str) -> TextColumn:
        """Return a column of labels as text."""
        return self.text(name)

    def check_kinds(self, names: Sequence[str]) -> None:
        """Raise an error for the first column that is not numeric."""
        import pyarrow as pa

        for name in names:
            kind = self._schema.field(name).type
            example = pa.array([], kind)
            if pa.types.is_string(kind):
                batches = (b for group in self._groups() for b in _batches(group, [name], 100))
                example = next((batch.column(name) for _, batch in batches), example)
            check_numeric(example, f"{self._files[0]}: column {name!r}")

    def width(self, names: Sequence[str]) -> int | None:
        """Return the number of features."""
        return len(names)

    def features(
        self, names: Sequence[str], on_read: Callable[[int], None] = mapped.ignore
    ) -> npt.NDArray[Any]:
        """Return columns as a matrix: in memory, or in a file if it is large."""
        import pyarrow as pa

        self.check_kinds(names)
        shape = (len(self), len(names))
        if not mapped.is_large(shape):
            matrix = np.empty(shape, dtype=np.float32)
            row = 0
            for block in self._blocks(names, np.dtype(np.float32), on_read):
                matrix[row : row + len(block)] = block
                row += len(block)
            return matrix
        halves = all(pa.types.is_float16(self._schema.field(name).type) for name in names)
        dtype = np.dtype(np.float16 if halves else np.float32)
        n_bytes = len(self) * len(names) * dtype.itemsize
        with scratch_file(self._scratch, self.path, ".npy", n_bytes) as file:
            # Written, not mapped: writing to a map on a full disk kills the process.
            with file.open("wb") as stream, closing(self._blocks(names, dtype, on_read)) as blocks:
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
        import pyarrow as pa

        schema = pa.schema([("text", pa.string())])
        with scratch_file(self._scratch, self.path, ".arrow") as file:
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for part, first, cells in self._text_batches(name):
                    gaps = np.flatnonzero(cells == None)  # noqa: E711 - of each cell
                    if len(gaps):
                        raise empty_cell(part, name, int(first + gaps[0]), advice)
                    writer.write_batch(pa.record_batch([pa.array(cells, pa.string())], schema))
            text = ArrowText(file)
        if self._scratch is None:
            remove_with(text, file)
        return text

    def _blocks(
        self, names: Sequence[str], dtype: np.dtype[Any], on_read: Callable[[int], None]
    ) -> Generator[npt.NDArray[Any], None, None]:
        """Yield some rows at a time, of finite numbers."""
        for group in self._groups(on_read):
            if group.length * len(names) > _GROUP_VALUES:
                yield from self._transposed(group, names, dtype)
                continue
            for _, columns in _numbers(group, names, _rows_at_once(names)):
                yield np.stack(columns, axis=1).astype(dtype, copy=False)

    def _transposed(
        self, group: _RowGroup, names: Sequence[str], dtype: np.dtype[Any]
    ) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows of a large group, whose columns are first written to a scratch file."""
        length, size = group.length, dtype.itemsize
        n_bytes = length * len(names) * size
        with scratch_file(self._scratch, self.path, ".columns", n_bytes) as file:
            with file.open("w+b") as stream:
                at_once = max(1, _GROUP_VALUES // length)
                for first in range(0, len(names), at_once):
                    some = names[first : first + at_once]
                    for row, columns in _numbers(group, some, _BATCH_ROWS):
                        for place, values in enumerate(columns, start=first):
                            stream.seek((place * length + row) * size)
                            stream.write(values.astype(dtype, copy=False).data)
                step = _rows_at_once(names)
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

    def _groups(self, on_read: Callable[[int], None] = mapped.ignore) -> Iterator[_RowGroup]:
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
        first = group.first + row
        columns = [column_numbers(batch.column(name), group.path, name, first) for name in names]
        yield row, columns


def _batches(group: _RowGroup, names: Sequence[str], rows: int) -> Iterator[tuple[int, Any]]:
    """Yield the number of a row in the group, and the record batch from there."""
    row = 0
    with _reading(group.path):
        for batch in group.parquet.iter_batches(rows, [group.number], columns=list(names)):
            yield row, batch
            row += batch.num_rows
    if row != group.length:
        raise broken(group.path, "a Parquet file", "it is damaged: rows are missing")


def _rows_at_once(names: Sequence[str]) -> int:
    return max(1, min(_BATCH_ROWS, _BATCH_VALUES // len(names)))


def is_large_parquet(path: Path) -> bool:
    """Return whether a Parquet file is too large for memory."""
    with _opened(path) as parquet:
        return mapped.is_large((parquet.metadata.num_rows, len(parquet.schema_arrow.names)))


def check_once(path: Path, names: Sequence[str]) -> None:
    """Raise an `InputError` if two columns have the same name."""
    if len(set(names)) < len(names):
        repeated = [name for name in names if names.count(name) > 1]
        raise InputError(f"{path}: column {repeated[0]!r} appears twice; rename one of them")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import pyarrow.parquet

    with (
        _reading(path),
        pyarrow.parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file,
    ):
        yield file


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors of a reader into an `InputError` that names the file."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        raise broken(path, "a Parquet file", one_line(error)) from error
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise InputError(f"{path}: cannot be read ({reason}); check the file") from error
