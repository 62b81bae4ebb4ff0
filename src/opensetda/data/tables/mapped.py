"""Values of features and cells of text; arrays of files, mapped if large and never unpickled."""

from __future__ import annotations

import io
import math
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from opensetda.data.names import broken, id_problem, reading
from opensetda.errors import InputError, one_line
from opensetda.rows import release_pages
from opensetda.system.files import open_regular
from opensetda.system.memory import check_free
from opensetda.system.sizes import check_columns

Matrix = npt.NDArray[Any]
Labels = npt.NDArray[np.str_]
TextColumn = npt.NDArray[np.object_]

# Features that take more than this as float32 stay in a file.
LARGE_BYTES = 1 << 28
_CHUNK_VALUES = 1 << 20


def is_large(shape: Sequence[int]) -> bool:
    """Return whether a feature matrix is too large for memory."""
    return math.prod(shape) * np.dtype(np.float32).itemsize > LARGE_BYTES


def to_float32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return numbers as float32; infinity for those beyond its range."""
    with np.errstate(all="ignore"):
        return values.astype(np.float32, copy=False)


def check_finite_values(
    path: Path, start: int, chunk: npt.NDArray[Any], name: str | None = None, gaps: bool = False
) -> None:
    """Raise an `InputError` for the first number, from row `start` on, that is no finite float32.

    `name` is that of the only column; `gaps` may be NaN.
    """
    narrow = to_float32(chunk)
    wrong = np.isinf(narrow) if gaps else ~np.isfinite(narrow)
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        value = chunk[row, column]
        place = column if name is None else repr(name)
        problem = "NaN or empty" if np.isnan(value) else f"{value:g} is too large for 32-bit floats"
        raise InputError(f"{path}: row {start + row + 1}, column {place}: {problem}; repair it")


def as_text(values: npt.NDArray[Any], where: str, first: int = 0) -> TextColumn:
    """Turn names or whole numbers, from row `first` on, into text; empty text and NaN become None.

    Whole numbers stored as 3.0, as in tables with gaps, become "3".
    """
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8")
    if values.dtype.kind == "U" and values.dtype.isnative:
        codes = np.ascontiguousarray(values).view(np.uint32)
        if codes.max(initial=0) > sys.maxunicode:
            raise InputError(f"{where} holds characters that do not exist; save the file again")
    if values.dtype.kind not in "UiubfO":
        raise InputError(f"{where} holds {values.dtype}; labels and ids are text or numbers")
    cells: list[str | None] = []
    for row, value in enumerate(values.tolist(), start=first + 1):
        is_empty = value is None or value != value or value == ""
        if isinstance(value, float) and not is_empty:
            if not value.is_integer():
                raise InputError(f"{where}, row {row}: {value} is neither text nor a whole number")
            value = int(value)
        cells.append(None if is_empty else str(value))
    return np.array(cells, dtype=object)


def check_cells(
    cells: TextColumn,
    path: Path,
    column: str,
    advice: str | None,
    problem_of: Callable[[str], str | None] = id_problem,
) -> None:
    """Raise an `InputError` for the first cell that has a problem, or is empty if with `advice`."""
    # Each text once: labels are repeated.
    wrong: dict[str | None, str] = {None: f"empty; {advice}"} if advice is not None else {}
    for name in {*cells.tolist()} - {None}:
        if problem := problem_of(name):
            wrong[name] = f"{problem}; rename it"
    for row, name in enumerate(cells.tolist() if wrong else (), start=1):
        if name in wrong:
            raise InputError(f"{path}: {column!r}, row {row}: {wrong[name]}")


def fixed_width(cells: Sequence[str] | TextColumn, path: Path, column: str) -> Labels:
    """Return text as an array, in which each cell takes as much memory as the longest."""
    longest = max(map(len, cells))
    what = f"{path}: {column!r}, whose longest has {longest:,} characters,"
    check_free(4.0 * len(cells) * longest, what, "shorten the longest")
    return np.array(cells, dtype=np.str_)


@contextmanager
def scratch_file(folder: Path | None, of: Path, n_bytes: int) -> Iterator[IO[bytes]]:
    """Yield a file without a name for a table, which the system removes with its last map."""
    place = folder or Path(tempfile.gettempdir())
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as stream:
            if hasattr(os, "posix_fallocate"):
                # Writing to a map on a full disk would kill the process.
                os.posix_fallocate(stream.fileno(), 0, n_bytes)
            yield stream
    except OSError as error:
        reason = f"{error.strerror or one_line(error)}, {n_bytes / 1e9:.1f} GB"
        raise InputError(f"{of}: cannot be unpacked in {place} ({reason}); make room") from error


class Arrays:
    """The arrays of an ``.npz`` file by name, or that of an ``.npy`` file, which has none."""

    def __init__(self, path: Path, scratch: Path | None = None) -> None:
        self.path = path
        self._scratch = scratch
        self.names: tuple[str, ...] = ()
        if path.suffix.lower() == ".npz":
            with self._archive() as archive:
                self.names = tuple(name.removesuffix(".npy") for name in archive.namelist())
            if not self.names:
                raise broken(path, "there is no array in it")
        else:
            self._array("")

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        with (
            reading(self.path),
            open_regular(self.path) as stream,
            zipfile.ZipFile(stream) as archive,
        ):
            yield archive

    def _array(self, name: str) -> tuple[npt.NDArray[Any], str]:
        """Return an array, mapped if it is large or in a file of its own, and its name in words."""
        if not self.names:
            with reading(self.path, "the array"), open_regular(self.path) as stream:
                return _array_in(stream, self.path, "the array"), "the array"
        called = f"array {name!r}"
        with self._archive() as archive, reading(self.path, called):
            member = archive.getinfo(name if name in archive.NameToInfo else f"{name}.npy")
            with archive.open(member) as packed:
                if member.file_size <= LARGE_BYTES:
                    return _array_in(io.BytesIO(packed.read()), self.path, called), called
                with scratch_file(self._scratch, self.path, member.file_size) as stream:
                    shutil.copyfileobj(packed, stream, _CHUNK_VALUES)
                    stream.seek(0)
                    return _array_in(stream, self.path, called), called

    def text(self, name: str) -> TextColumn:
        """Return a one-dimensional array as text; None where the text is empty, or NaN."""
        array, called = self._array(name)
        if array.ndim != 1:
            needed = "labels and ids need one dimension"
            raise InputError(f"{self.path}: {called} has shape {array.shape}; {needed}")
        with reading(self.path, called):
            return as_text(array, f"{self.path}: {called}")

    def labels(self, name: str) -> TextColumn:
        """Return labels; numbers become names if the file has an array `classes`."""
        numbers, called = self._array(name)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or "classes" not in self.names:
            return self.text(name)
        class_names = self.text("classes")
        if outside := {*numbers.tolist()} - {*range(len(class_names))}:
            problem = f"{min(outside)} is not a number of the {len(class_names)} names in 'classes'"
            raise InputError(f"{self.path}: {called}: {problem}")
        return np.asarray(class_names[numbers], dtype=object)

    def features(self, name: str) -> Matrix:
        """Return an array of finite numbers: float32 in memory, or mapped, of any number type."""
        array, called = self._array(name)
        if array.ndim != 2 or array.dtype.kind not in "biuf" or 0 in array.shape:
            needed = "features need numbers in two dimensions, at least one row and one column"
            shape = f"shape {array.shape} of {array.dtype}"
            raise InputError(f"{self.path}: {called} has {shape}; {needed}")
        check_columns(array.shape[1], f"{self.path}: {called}")
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
    version = np.lib.format.read_magic(stream)
    old = np.lib.format.read_array_header_1_0
    new = np.lib.format.read_array_header_2_0
    shape, fortran, dtype = (old if version == (1, 0) else new)(stream)
    if dtype.hasobject:
        objects = f"{called} holds Python objects, which are never unpickled"
        raise InputError(f"{path}: {objects}; save it as text or numbers, e.g. values.astype(str)")
    order: Literal["C", "F"] = "F" if fortran else "C"
    if isinstance(stream, io.BytesIO):
        return np.ndarray(shape, dtype, stream.getbuffer(), stream.tell(), order=order)
    return np.memmap(stream, dtype, "r", stream.tell(), shape, order)
