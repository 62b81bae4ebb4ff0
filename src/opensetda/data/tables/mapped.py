"""Values of features, labels and ids, and arrays of ``.npy`` and ``.npz`` files.

Large arrays are mapped into memory. Nothing is ever unpickled.
"""

from __future__ import annotations

import io
import math
import os
import shutil
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from opensetda.data.names import id_problem
from opensetda.data.reading import broken, reading
from opensetda.errors import InputError, one_line
from opensetda.rows import release_pages
from opensetda.system.files import open_regular
from opensetda.system.memory import check_free

Matrix = npt.NDArray[Any]
Labels = npt.NDArray[np.str_]
TextColumn = npt.NDArray[np.object_]

# Features that take more than this as float32 stay in a file.
LARGE_BYTES = 1 << 28
_CHUNK_VALUES = 1 << 20
# Empty cells of a column get its number, NaN if there is none; None: they are an error.
Fill = Mapping[str, float] | None


class TableFile(ABC):
    """An open table, whose features may be columns with names.

    `names` are its columns, or the arrays of an ``.npz`` file; empty for an ``.npy`` file.
    """

    path: Path
    names: tuple[str, ...]
    has_columns: bool

    @abstractmethod
    def text(self, name: str) -> TextColumn:
        """Return a column as text; None where the cell is empty."""

    def labels(self, name: str) -> TextColumn:
        """Return a column of labels as text; None where the cell is empty."""
        return self.text(name)

    @abstractmethod
    def features(self, names: Sequence[str], fill: Fill = None) -> Matrix:
        """Return columns, or one array, as a matrix of finite numbers.

        In memory it is float32; a large one is a read-only `numpy.memmap` of any number type.
        """


def is_large(shape: Sequence[int]) -> bool:
    """Return whether a feature matrix is too large for memory."""
    return math.prod(shape) * np.dtype(np.float32).itemsize > LARGE_BYTES


def to_float32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return numbers as float32; infinity for those beyond its range."""
    with np.errstate(all="ignore"):
        return values.astype(np.float32, copy=False)


def check_finite_values(path: Path, start: int, chunk: npt.NDArray[Any]) -> None:
    """Raise an `InputError` for the first number that is not finite as float32."""
    if chunk.dtype.kind == "f" and not (finite := np.isfinite(to_float32(chunk))).all():
        row, column = np.argwhere(~finite)[0]
        raise not_finite(path, int(start + row), f"column {column}", chunk[row, column])


def not_finite(path: Path, row: int, column: str, value: Any) -> InputError:
    """Return the error for a feature that is not finite; `row` counts from 0."""
    place = f"{path}: row {row + 1}, {column}"
    if np.isnan(value):
        return InputError(f"{place}: NaN or empty; remove the row or fill in the value")
    if np.isinf(value):
        return InputError(f"{place}: infinite; remove the row or put a finite number there")
    return InputError(f"{place}: {value:g} is too large for 32-bit floats; rescale the column")


def as_text(values: npt.NDArray[Any], where: str, first: int = 0) -> TextColumn:
    """Turn names or whole numbers, from row `first` on, into text; empty text and NaN become None.

    Whole numbers stored as 3.0, as in tables with gaps, become "3".
    """
    if values.dtype.kind == "S":
        try:
            values = np.char.decode(values, "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{where} is not UTF-8 text; save it as text") from error
    if values.dtype.kind not in "UiubfO":
        raise InputError(f"{where} holds {values.dtype}; labels and ids are text or numbers")
    cells: list[str | None] = []
    for row, value in enumerate(values.tolist(), start=first + 1):
        if value is None or value != value or value == "":
            cells.append(None)
            continue
        if isinstance(value, float):
            if not value.is_integer():
                raise InputError(f"{where}, row {row}: {value} is neither text nor a whole number")
            value = int(value)
        cells.append(str(value))
    return np.array(cells, dtype=object)


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
    # Each text once: labels are repeated.
    wrong: dict[str | None, str] = {None: f"empty; {advice}"} if advice is not None else {}
    for name in {*cells.tolist()} - {None}:
        if problem := problem_of(name):
            wrong[name] = f"{problem}; rename it"
    for row, name in enumerate(cells.tolist(), start=first + 1):
        if name in wrong:
            raise InputError(f"{path}: {column!r}, row {row}: {wrong[name]}")


def fixed_width(cells: Sequence[str] | TextColumn, path: Path, column: str) -> Labels:
    """Return text as an array, in which each cell takes as much memory as the longest."""
    longest = max(map(len, cells))
    what = f"{path}: {column!r}, whose longest has {longest:,} characters,"
    check_free(4.0 * len(cells) * longest, what, "shorten the longest")
    return np.array(cells, dtype=np.str_)


@contextmanager
def scratch_file(folder: Path | None, of: Path, n_bytes: int = 0) -> Iterator[IO[bytes]]:
    """Yield a file of `n_bytes` without a name, which the system removes with its last map.

    `folder` None is the system's temporary folder; `of` is the table, for messages.
    """
    place = folder or Path(tempfile.gettempdir())
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as stream:
            if n_bytes and hasattr(os, "posix_fallocate"):
                # Writing to a map on a full disk would kill the process.
                os.posix_fallocate(stream.fileno(), 0, n_bytes)
            yield stream
    except OSError as error:
        reason = f"{error.strerror or one_line(error)}, {n_bytes / 1e9:.1f} GB"
        advice = "make room there" if folder else "make room there, or set TMPDIR"
        raise InputError(f"{of}: cannot be unpacked in {place} ({reason}); {advice}") from error


class Arrays(TableFile):
    """The arrays of an ``.npz`` file by name, or that of an ``.npy`` file, which has none."""

    has_columns = False

    def __init__(self, path: Path, scratch: Path | None = None) -> None:
        self.path, self._scratch = path, scratch
        self.names: tuple[str, ...] = ()
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        if path.suffix.lower() == ".npz":
            with self._archive() as archive:
                self.names = tuple(name.removesuffix(".npy") for name in archive.namelist())
            if not self.names:
                raise broken(path, "an .npz file", "there is no array in it")
        else:
            self._array("")

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        with (
            reading(self.path, "an .npz file", "it is damaged, cut short or not one of np.savez"),
            open_regular(self.path) as stream,
            zipfile.ZipFile(stream) as archive,
        ):
            yield archive

    def _called(self, name: str) -> str:
        return f"array {name!r}" if self.names else "the array"

    def _array(self, name: str) -> npt.NDArray[Any]:
        if name not in self._arrays:
            called = self._called(name)
            with reading(self.path, called, "the file is damaged or cut short"):
                if self.names:
                    self._arrays[name] = self._unpacked(name, called)
                else:
                    with open_regular(self.path) as stream:
                        self._arrays[name] = _array_in(stream, self.path, called)
        return self._arrays[name]

    def _unpacked(self, name: str, called: str) -> npt.NDArray[Any]:
        """Return an array of an archive: in memory, or mapped after it was unpacked to a file."""
        with self._archive() as archive, reading(self.path, called, "the file is damaged"):
            member = archive.getinfo(name if name in archive.NameToInfo else f"{name}.npy")
            with archive.open(member) as packed:
                if member.file_size <= LARGE_BYTES:
                    return _array_in(io.BytesIO(packed.read()), self.path, called)
                with scratch_file(self._scratch, self.path, member.file_size) as stream:
                    shutil.copyfileobj(packed, stream, _CHUNK_VALUES)
                    stream.seek(0)
                    return _array_in(stream, self.path, called)

    def text(self, name: str) -> TextColumn:
        """Return a one-dimensional array as text."""
        array, called = self._array(name), self._called(name)
        if array.ndim != 1:
            needed = "labels and ids need one dimension"
            raise InputError(f"{self.path}: {called} has shape {array.shape}; {needed}")
        with reading(self.path, called, "the file is damaged"):
            return as_text(array, f"{self.path}: {called}")

    def labels(self, name: str) -> TextColumn:
        """Return labels; numbers become names if the file has an array `classes`."""
        numbers = self._array(name)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or "classes" not in self.names:
            return self.text(name)
        class_names = self.text("classes")
        outside = (numbers < 0) | (numbers >= len(class_names))
        if outside.any():
            row = int(outside.argmax())
            raise InputError(
                f"{self.path}: array {name!r}, row {row + 1}: {numbers[row]} is not a number of "
                f"the {len(class_names)} names in 'classes' (0 to {len(class_names) - 1})"
            )
        return np.asarray(class_names[numbers], dtype=object)

    def features(self, names: Sequence[str], fill: Fill = None) -> Matrix:
        """Return the array `names[0]`, or the only one; it has no empty cells to `fill`."""
        name = names[0] if names else ""
        array, called = self._array(name), self._called(name)
        if array.ndim != 2 or array.dtype.kind not in "biuf":
            kind = f"{called} has shape {array.shape} of {array.dtype}"
            needed = "features need numbers in two dimensions, one row per sample"
            raise InputError(f"{self.path}: {kind}; {needed}")
        if 0 in array.shape:
            problem = f"{called} has no feature" if len(array) else "the table is empty"
            raise InputError(f"{self.path}: {problem}; give at least one row and one feature")
        if not array.flags.c_contiguous and is_large(array.shape):
            problem = f"{called} is stored column by column (Fortran order)"
            raise InputError(f"{self.path}: {problem}; save np.ascontiguousarray(X)")
        rows = max(1, _CHUNK_VALUES // array.shape[1])
        for start in range(0, len(array), rows):
            check_finite_values(self.path, start, array[start : start + rows])
            release_pages(array)
        if isinstance(array, np.memmap) and array.flags.c_contiguous:
            return array.view(np.uint8) if array.dtype.kind == "b" else array
        return np.ascontiguousarray(to_float32(array))


def _array_in(stream: IO[bytes], path: Path, called: str) -> npt.NDArray[Any]:
    """Return the array in an open file, mapped, or in the bytes of an `io.BytesIO`."""
    try:
        version = np.lib.format.read_magic(stream)
        old, new = np.lib.format.read_array_header_1_0, np.lib.format.read_array_header_2_0
        shape, fortran, dtype = (old if version == (1, 0) else new)(stream)
    except Exception as error:
        # A header is parsed as Python, and a damaged one may raise anything.
        raise broken(path, called, "it is damaged, cut short or not an array") from error
    if dtype.hasobject:
        objects = f"{called} holds Python objects, which are never unpickled"
        raise InputError(f"{path}: {objects}; save it as text or numbers, e.g. values.astype(str)")
    order: Literal["C", "F"] = "F" if fortran else "C"
    if isinstance(stream, io.BytesIO):
        return np.ndarray(shape, dtype, stream.getbuffer(), stream.tell(), order=order)
    return np.memmap(stream, dtype, "r", stream.tell(), shape, order)
