"""Columns of text that stay in a file: names of samples, of any number."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from opensetda.data.tables.cells import as_text, broken, empty_cell
from opensetda.data.tables.mapped import StoredArray
from opensetda.errors import InputError
from opensetda.rows import release_pages

Labels = npt.NDArray[np.str_]
IntArray = npt.NDArray[np.intp]

_CHUNK_ROWS = 1 << 16


class StoredText(ABC):
    """A column of text in a file.

    ``text[rows]`` takes a slice, an array of row numbers or a mask, and returns an array of
    str in memory. One row number gives one str.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _span(self, start: int, stop: int) -> Labels:
        """Return consecutive rows."""

    @abstractmethod
    def _some(self, rows: IntArray) -> Labels:
        """Return any rows."""

    @overload
    def __getitem__(self, rows: int | np.integer[Any]) -> str: ...

    @overload
    def __getitem__(self, rows: slice | npt.NDArray[Any] | list[int]) -> Labels: ...

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                return self._span(start, max(start, stop))
            return self._some(np.arange(start, stop, step))
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
        return self._some(np.where(wanted < 0, wanted + len(self), wanted))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return all rows, in memory."""
        return np.asarray(self[:], dtype=dtype)

    def tolist(self) -> list[str]:
        """Return all rows, in memory."""
        return [str(name) for name in self[:].tolist()]

    def chunks(self) -> Iterator[tuple[int, Labels]]:
        """Yield some rows at a time, with the number of the first."""
        for start in range(0, len(self), _CHUNK_ROWS):
            yield start, self._span(start, min(start + _CHUNK_ROWS, len(self)))


class ArrayText(StoredText):
    """Text or whole numbers of a one-dimensional array in an ``.npz`` file.

    `advice` says in messages what to do about an empty cell.
    """

    def __init__(self, array: StoredArray, name: str, advice: str) -> None:
        self._values = array.map()
        self._where = f"{array.path}: {array.name}"
        try:
            for start, chunk in array.chunks():
                cells = as_text(np.array(chunk), self._where, start)
                gaps = np.flatnonzero(cells == None)  # noqa: E711 - of each cell
                if len(gaps):
                    raise empty_cell(array.path, name, int(start + gaps[0]), advice)
        except InputError:
            raise
        except ValueError as error:
            # Bytes that are no characters.
            raise broken(array.path, array.name, "the file is damaged") from error

    def __len__(self) -> int:
        return len(self._values)

    def _span(self, start: int, stop: int) -> Labels:
        return self._text(self._values[start:stop])

    def _some(self, rows: IntArray) -> Labels:
        return self._text(self._values[rows])

    def _text(self, values: npt.NDArray[Any]) -> Labels:
        text = as_text(np.array(values), self._where).astype(np.str_)
        release_pages(self._values)
        return text


class ArrowText(StoredText):
    """The only column of an Arrow file, which is mapped into memory."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        # Not Arrow's own map, whose pages cannot be released.
        self._bytes = np.memmap(path, np.uint8, "r")
        self._reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(self._bytes)))
        columns = map(self._batch, range(self._reader.num_record_batches))
        self._starts = np.cumsum([0, *(len(column) for column in columns)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _batch(self, number: int) -> Any:
        return self._reader.get_batch(number).column(0)

    def _span(self, start: int, stop: int) -> Labels:
        found: list[str] = []
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            first = int(self._starts[number])
            column = self._batch(number)[start - first : stop - first]
            found += column.to_pylist()
            start, number = start + len(column), number + 1
        release_pages(self._bytes)
        return np.array(found, dtype=np.str_)

    def _some(self, rows: IntArray) -> Labels:
        found = np.empty(len(rows), dtype=object)
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            column = self._batch(number).take(rows[here] - self._starts[number])
            found[here] = column.to_pylist()
        release_pages(self._bytes)
        return found.astype(np.str_)


def first_repeated(text: StoredText) -> tuple[int, int, str] | None:
    """Return two row numbers of the same text, and the text; None if all differ.

    Needs eight bytes per row in memory, for a hash.
    """
    hashes = np.empty(len(text), dtype=np.int64)
    for start, chunk in text.chunks():
        hashes[start : start + len(chunk)] = _hashes(chunk)
    hashes.sort()
    twice = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    del hashes
    first = _next_suspect(text, twice, 0)
    while first is not None:
        name = text[first]
        for start, chunk in text.chunks():
            again = np.flatnonzero(chunk == name)
            again = again[again + start > first]
            if len(again):
                return first, start + int(again[0]), name
        # Two texts of the same hash, which is very rare.
        first = _next_suspect(text, twice, first + 1)
    return None


def _next_suspect(text: StoredText, twice: npt.NDArray[np.int64], begin: int) -> int | None:
    """Return the first row from `begin` whose hash is in `twice`."""
    if len(twice):
        for start, chunk in text.chunks():
            rows = start + np.flatnonzero(np.isin(_hashes(chunk), twice))
            rows = rows[rows >= begin]
            if len(rows):
                return int(rows[0])
    return None


def _hashes(names: Labels) -> npt.NDArray[np.int64]:
    return np.fromiter(map(hash, names.tolist()), np.int64, len(names))
