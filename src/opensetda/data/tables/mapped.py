"""Arrays and columns of text that stay in their file, for tables larger than memory.

An ``.npy`` file, or an array that ``np.savez`` stored uncompressed, is read through a memory map,
a chunk at a time.
"""

from __future__ import annotations

import math
import operator
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opensetda.data.limits import MOST_NAMES
from opensetda.data.names import id_problem
from opensetda.data.reading import broken, one_line, reading
from opensetda.errors import InputError
from opensetda.rows import release_pages
from opensetda.system.memory import check_free

OnRead = Callable[[int], None]
IntArray = npt.NDArray[np.intp]
Labels = npt.NDArray[np.str_]
TextColumn = npt.NDArray[np.object_]

# Features that take more than this as float32 stay in a file.
LARGE_BYTES = 1 << 28
_CHUNK_BYTES = 1 << 22
_CHUNK_ROWS = 1 << 16


def ignore(n_bytes: int) -> None:
    """Do nothing with the number of bytes read: the default of `on_read`."""


class StoredArray(NamedTuple):
    """An uncompressed array in a file, in C order; `name` is its name in messages.

    `crc` is the CRC-32 of the array's header, and of header and values; None if the file has none.
    `values` are those of an array that had to be unpacked first.
    """

    path: Path
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    crc: tuple[int, int] | None = None
    values: npt.NDArray[Any] | None = None

    def map(self) -> npt.NDArray[Any]:
        """Return the array, as a read-only memory map if it is in a file."""
        if self.values is not None:
            return self.values
        if not math.prod(self.shape) or not self.dtype.itemsize:
            return np.zeros(self.shape, self.dtype)
        try:
            return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
        except (OSError, OverflowError, TypeError, ValueError) as error:
            # Some network disks cannot map; or the file has become shorter.
            problem = f"cannot be mapped into memory ({one_line(error)})"
            raise InputError(f"{self.path}: {problem}; copy it to a local disk") from error

    def chunks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield some rows at a time with the number of the first, and check their CRC-32."""
        values = self.map()
        row_bytes = max(1, math.prod(self.shape[1:]) * self.dtype.itemsize)
        rows = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // row_bytes))
        check = None if self.crc is None else self.crc[0]
        # Of no values there may be any number of rows.
        for start in range(0, len(values) if math.prod(self.shape) else 0, rows):
            chunk = values[start : start + rows]
            if check is not None and chunk.nbytes:
                check = zlib.crc32(chunk.reshape(-1).view(np.uint8).data, check)
            yield start, chunk
            release_pages(values)
        if self.crc is not None and check != self.crc[1]:
            raise broken(self.path, self.name)


def is_large(shape: Sequence[int]) -> bool:
    """Return whether a feature matrix is too large for memory."""
    return math.prod(shape) * np.dtype(np.float32).itemsize > LARGE_BYTES


def check_shape(path: Path, called: str, array: Any) -> None:
    """Raise an `InputError` unless an array is a matrix of numbers."""
    if len(array.shape) != 2 or array.dtype.kind not in "biuf":
        needed = "features need numbers in two dimensions, one row per sample"
        raise InputError(f"{path}: {called} has shape {array.shape} of {array.dtype}; {needed}")


def checked_map(array: StoredArray, on_read: OnRead = ignore) -> npt.NDArray[Any]:
    """Return a matrix as a memory map, all values checked; `on_read` gets the bytes read."""
    for start, chunk in array.chunks():
        check_finite_values(array.path, start, chunk)
        on_read(chunk.nbytes)
    values = array.map()
    return values.view(np.uint8) if array.dtype.kind == "b" else values


def check_finite_values(path: Path, start: int, chunk: npt.NDArray[Any]) -> None:
    """Raise an `InputError` for the first number that is not finite as float32."""
    if chunk.dtype.kind != "f":
        return
    finite = np.isfinite(chunk if chunk.dtype.itemsize <= 4 else to_float32(chunk))
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise not_finite(path, int(start + row), f"column {column}", chunk[row, column])


class StoredText(ABC):
    """A column of text in a file, of which ``text[rows]`` returns some in memory.

    `rows` is a slice, an array of row numbers or a mask; one row number gives one str.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _take(self, rows: IntArray) -> Labels:
        """Return the text of some rows."""

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            return self._take(np.arange(*rows.indices(len(self))))
        if not isinstance(rows, np.ndarray | list):
            return str(self[np.array([operator.index(rows)])][0])
        wanted: npt.NDArray[Any] = np.asarray(rows)
        if wanted.dtype == bool:
            if len(wanted) != len(self):
                raise IndexError(f"a mask of {len(wanted)} for {len(self)} rows")
            wanted = np.flatnonzero(wanted)
        wanted = wanted.astype(np.intp)
        if len(wanted) and not -len(self) <= wanted.min() <= wanted.max() < len(self):
            raise IndexError(f"a row outside of the {len(self)} there are")
        return self._take(np.where(wanted < 0, wanted + len(self), wanted))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return all rows, in memory."""
        return np.asarray(self[:], dtype=dtype)

    def tolist(self) -> list[str]:
        """Return all rows, in memory."""
        return [str(name) for name in self[:].tolist()]


class ArrayText(StoredText):
    """Text or whole numbers of an array in an ``.npz`` file; `advice` is for empty cells."""

    def __init__(self, array: StoredArray, name: str, advice: str) -> None:
        self._values = array.map()
        self._where = f"{array.path}: {array.name}"
        with reading(array.path, array.name, "the file is damaged"):
            for start, chunk in array.chunks():
                cells = as_text(chunk, self._where, start)
                check_cells(cells, array.path, name, advice, first=start)

    def __len__(self) -> int:
        return len(self._values)

    def _take(self, rows: IntArray) -> Labels:
        text = as_text(self._values[rows], self._where).astype(np.str_)
        release_pages(self._values)
        return text


class ArrowText(StoredText):
    """The only column of an Arrow file, which is mapped into memory."""

    def __init__(self, path: Path) -> None:
        # Not Arrow's own map, whose pages cannot be released.
        self._bytes = np.memmap(path, np.uint8, "r")
        self._reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(self._bytes)))
        columns = map(self._batch, range(self._reader.num_record_batches))
        self._starts = np.cumsum([0, *(len(column) for column in columns)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _batch(self, number: int) -> Any:
        return self._reader.get_batch(number).column(0)

    def _take(self, rows: IntArray) -> Labels:
        found = np.empty(len(rows), dtype=object)
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            column = self._batch(number).take(rows[here] - self._starts[number])
            found[here] = column.to_pylist()
        release_pages(self._bytes)
        return found.astype(np.str_)


def first_repeated(text: StoredText | Labels) -> tuple[int, int, str] | None:
    """Return two row numbers of the same text, and the text; None if all differ.

    Memory holds a hash of each row, eight bytes.
    """
    # A column that is no column of ids is known by its first rows.
    places: dict[str, int] = {}
    for row, name in enumerate(text[:_CHUNK_ROWS].tolist()):
        if places.setdefault(name, row) != row:
            return places[name], row, name
    hashes = np.empty(len(text), dtype=np.int64)
    for start, chunk in _text_chunks(text):
        hashes[start : start + len(chunk)] = _hashes(chunk)
    hashes.sort()
    twice = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    del hashes
    for start, chunk in _text_chunks(text) if len(twice) else ():
        for place in np.flatnonzero(np.isin(_hashes(chunk), twice)).tolist():
            first, name = start + place, str(chunk[place])
            for later, names in _text_chunks(text):
                again = later + np.flatnonzero(names == name)
                again = again[again > first]
                if len(again):
                    return first, int(again[0]), name
            # Otherwise two texts of the same hash, which is very rare.
    return None


def _text_chunks(text: StoredText | Labels) -> Iterator[tuple[int, Labels]]:
    for start in range(0, len(text), _CHUNK_ROWS):
        yield start, text[start : start + _CHUNK_ROWS]


def _hashes(names: Labels) -> npt.NDArray[np.int64]:
    return np.fromiter(map(hash, names.tolist()), np.int64, len(names))


def as_text(values: npt.NDArray[Any], where: str, first: int = 0) -> TextColumn:
    """Turn names or whole numbers, from row `first` on, into text; empty text and NaN become None.

    Whole numbers stored as 3.0, as in tables with gaps, become "3".
    """
    if values.dtype.kind == "S":
        try:
            values = np.char.decode(values, "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{where} is not UTF-8 text; save it as text") from error
    plain = values.tolist()
    if values.dtype.kind == "U":
        return np.array([value or None for value in plain], dtype=object)
    if values.dtype.kind in "iub":
        return np.array([str(value) for value in plain], dtype=object)
    if values.dtype.kind not in "fO":
        raise InputError(f"{where} holds {values.dtype}; labels and ids are text or numbers")
    cells: list[str | None] = []
    for row, value in enumerate(plain, start=first + 1):
        if value is None or value != value:
            cells.append(None)
            continue
        if isinstance(value, float):
            if not value.is_integer():
                raise InputError(f"{where}, row {row}: {value} is neither text nor a whole number")
            value = int(value)
        cells.append(str(value))
    return np.array(cells, dtype=object)


def not_finite(path: Path, row: int, column: str, value: Any) -> InputError:
    """Return the error for a feature that is not finite; `row` counts from 0."""
    place = f"{path}: row {row + 1}, {column}"
    if np.isnan(value):
        return InputError(f"{place}: NaN or empty; remove the row or fill in the value")
    if np.isinf(value):
        return InputError(f"{place}: infinite; remove the row or put a finite number there")
    return InputError(f"{place}: {value:g} is too large for 32-bit floats; rescale the column")


def check_cells(
    cells: TextColumn,
    path: Path,
    column: str,
    advice: str | None,
    problem_of: Callable[[str], str | None] = id_problem,
    first: int = 0,
) -> None:
    """Raise an `InputError` for the first cell that is empty or has a problem.

    `first` is the number of the first row; `advice` is for empty cells, None if there may be some.
    """
    for start in range(0, len(cells), _CHUNK_ROWS):
        some = cells[start : start + _CHUNK_ROWS].tolist()
        # Each text once: labels are repeated.
        names = {*some}
        wrong = {None: f"empty; {advice}"} if None in names and advice is not None else {}
        for name in names - {None}:
            if problem := problem_of(name):
                wrong[name] = f"{problem}; rename it"
        for row, name in enumerate(some if wrong else (), start=first + start + 1):
            if name in wrong:
                raise InputError(f"{path}: {column!r}, row {row}: {wrong[name]}")


def check_rows(path: Path, column: str, n_rows: int) -> None:
    """Raise an `InputError` if a column of text has more rows than memory should hold."""
    if n_rows > MOST_NAMES:
        raise InputError(
            f"{path}: {n_rows:,} rows of {column!r}; labels, and ids outside of large Parquet "
            f"tables, are read up to {MOST_NAMES:,} rows; take a part of them"
        )


def fixed_width(cells: Sequence[str] | TextColumn, path: Path, column: str) -> Labels:
    """Return text as an array, in which each cell takes as much memory as the longest."""
    lengths = np.fromiter(map(len, cells), np.intp, len(cells))
    row, longest = int(lengths.argmax()), int(lengths.max())
    what = f"{path}: {column!r}, whose longest is row {row + 1} with {longest:,} characters,"
    check_free(4.0 * len(cells) * longest, what, "shorten the longest")
    return np.array(cells, dtype=np.str_)


def to_float32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return numbers as float32; infinity for those beyond its range."""
    with np.errstate(all="ignore"):
        return values.astype(np.float32, copy=False)
