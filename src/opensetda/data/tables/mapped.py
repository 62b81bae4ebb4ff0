"""Arrays that stay in their file: ``.npy`` files, and what ``np.savez`` stored without packing.

They are read through a memory map, a chunk at a time.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from opensetda.data.tables.cells import TextColumn, broken, not_finite, one_line, to_float32
from opensetda.errors import InputError
from opensetda.rows import release_pages

# Features that take more than this as float32 stay in a file.
LARGE_BYTES = 1 << 28

_CHUNK_BYTES = 1 << 22
_CHUNK_ROWS = 1 << 16
_DAMAGED = "the file is damaged"

_MAGIC = np.lib.format.MAGIC_PREFIX
_LOCAL_HEADER = struct.Struct("<4s2xHH16xHH")
_LOCAL_SIGNATURE = b"PK\x03\x04"
_ENCRYPTED = 1 << 0
_UTF_8_NAME = 1 << 11


def ignore(n_bytes: int) -> None:
    """Take no notice of how many bytes were read."""


class StoredArray(NamedTuple):
    """Where an array lies in a file, as it is in memory.

    Attributes
    ----------
    path : Path
        The file.
    name : str
        What to call the array in messages.
    dtype : dtype
        Of its values.
    shape : tuple of int
        Its shape, in C order.
    offset : int
        Where its values begin.
    crc : tuple of (int, int) or None
        CRC-32 of the header before the values, and of both; None where the file has none.
    """

    path: Path
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    crc: tuple[int, int] | None = None

    def map(self) -> npt.NDArray[Any]:
        """Return the array, read-only and in its file."""
        if not math.prod(self.shape) or not self.dtype.itemsize:
            return np.zeros(self.shape, self.dtype)
        try:
            return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
        except (OSError, ValueError) as error:
            # Some network disks cannot; or the file has become shorter.
            raise InputError(
                f"{self.path}: cannot be mapped into memory ({one_line(error)}); "
                "copy it to a local disk"
            ) from error

    def chunks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield rows with the number of the first, and look in passing for damaged bytes."""
        values = self.map()
        row_bytes = max(1, math.prod(self.shape[1:]) * self.dtype.itemsize)
        rows = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // row_bytes))
        check = None if self.crc is None else self.crc[0]
        for start in range(0, len(values), rows):
            chunk = values[start : start + rows]
            if check is not None and chunk.nbytes:
                check = zlib.crc32(chunk.reshape(-1).view(np.uint8).data, check)
            yield start, chunk
            release_pages(values)
        if self.crc is not None and check != self.crc[1]:
            raise broken(self.path, self.name, _DAMAGED)


class BareArray:
    """An ``.npy`` file: one matrix of features, and nothing that could name a row."""

    has_columns = False
    names: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:
                raise broken(path, "an .npy file", "it is damaged, cut short or not one")
            stream.seek(0)
            found = _header(stream, path, "an .npy file")
            if found is None:
                raise broken(path, "an .npy file", "its version is not known")
            offset, end = stream.tell(), stream.seek(0, 2)
        self._fortran, shape, dtype = found
        self._array = StoredArray(path, "an .npy file", dtype, shape, offset)
        if dtype.hasobject:
            raise InputError(
                f"{path}: it holds Python objects, which are never unpickled; save numbers"
            )
        if end < offset + math.prod(shape) * dtype.itemsize:
            raise broken(path, "an .npy file", "it is cut short")

    def width(self, names: Sequence[str]) -> int | None:
        """Return the number of features."""
        check_shape(self._array, "the array")
        return self._array.shape[1]

    def features(
        self, names: Sequence[str], tell: Callable[[int], None] = ignore
    ) -> npt.NDArray[Any]:
        """Return the array as it is in the file; there is but one, whatever `names` are."""
        array = self._array
        check_shape(array, "the array")
        if not self._fortran:
            return checked_map(array, tell)
        if is_large(array.shape):
            raise InputError(
                f"{self.path}: the array is stored column by column (Fortran order); "
                "save np.ascontiguousarray(X)"
            )
        # As it is in the file, it is the transposed array in C order.
        values = array._replace(shape=array.shape[::-1]).map().T
        check_finite_values(self.path, 0, values)
        return np.ascontiguousarray(values)

    def text(self, name: str) -> TextColumn:
        """Raise an error: there is no text."""
        raise InputError(f"{self.path}: a bare array has no {name!r} beside it")

    labels = text

    def check_kinds(self, names: Sequence[str]) -> None:
        """Do nothing: there are no columns."""

    def stored_text(self, name: str, advice: str) -> None:
        """Return None: there is no text."""


def is_large(shape: Sequence[int]) -> bool:
    """Whether a matrix of features is to stay in its file."""
    return math.prod(shape) * np.dtype(np.float32).itemsize > LARGE_BYTES


def is_mapped(X: npt.NDArray[Any]) -> bool:
    """Whether a matrix of features is in a file, not in memory."""
    return isinstance(X, np.memmap)


def stored_array(path: Path, member: zipfile.ZipInfo, name: str) -> StoredArray | None:
    """Find an array of an ``.npz`` file.

    Returns None if it cannot be mapped: packed, in Fortran order, of Python objects, no array.
    """
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ENCRYPTED:
        return None
    damaged = broken(path, name, _DAMAGED)
    with path.open("rb") as stream:
        start = _data_start(stream, member)
        if start is None or member.file_size != member.compress_size:
            raise damaged
        end = start + member.file_size
        if end > stream.seek(0, 2):
            raise damaged
        stream.seek(start)
        if stream.read(len(_MAGIC)) != _MAGIC:
            return None
        stream.seek(start)
        found = _header(stream, path, name)
        if found is None:
            return None
        fortran, shape, dtype = found
        offset = stream.tell()
        stream.seek(start)
        header_crc = zlib.crc32(stream.read(offset - start))
    if fortran or dtype.hasobject:
        return None
    if offset + math.prod(shape) * dtype.itemsize != end:
        raise damaged
    return StoredArray(path, name, dtype, shape, offset, (header_crc, member.CRC))


def check_shape(array: StoredArray, called: str) -> None:
    """Raise an `InputError` unless an array is a matrix of numbers."""
    if len(array.shape) != 2 or array.dtype.kind not in "biuf":
        raise InputError(
            f"{array.path}: {called} has shape {array.shape} of {array.dtype}; "
            "features need numbers in two dimensions, one row a sample"
        )


def checked_map(array: StoredArray, tell: Callable[[int], None] = ignore) -> npt.NDArray[Any]:
    """Return a matrix of finite numbers, read-only and in its file; `tell` counts its bytes."""
    for start, chunk in array.chunks():
        check_finite_values(array.path, start, chunk)
        tell(chunk.nbytes)
    values = array.map()
    return values.view(np.uint8) if array.dtype.kind == "b" else values


def check_finite_values(path: Path, start: int, chunk: npt.NDArray[Any]) -> None:
    """Raise an `InputError` that names row and column of a number that is none in float32."""
    if chunk.dtype.kind != "f":
        return
    narrow = chunk if chunk.dtype.itemsize <= 4 else to_float32(chunk)
    finite = np.isfinite(narrow)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise not_finite(path, int(start + row), f"column {column}", chunk[row, column])


def _data_start(stream: BinaryIO, member: zipfile.ZipInfo) -> int | None:
    """Return where the bytes of a stored file begin; None if its header is damaged."""
    if member.header_offset < 0:
        return None
    stream.seek(member.header_offset)
    fixed = stream.read(_LOCAL_HEADER.size)
    if len(fixed) < _LOCAL_HEADER.size:
        return None
    signature, flags, method, name_length, extra_length = _LOCAL_HEADER.unpack(fixed)
    name = stream.read(name_length)
    try:
        written = name.decode("utf-8" if flags & _UTF_8_NAME else "cp437")
    except UnicodeDecodeError:
        return None
    if (signature, method, written) != (_LOCAL_SIGNATURE, 0, member.orig_filename):
        return None
    return stream.tell() + int(extra_length)


def _header(
    stream: BinaryIO, path: Path, name: str
) -> tuple[bool, tuple[int, ...], np.dtype[Any]] | None:
    """Read order, shape and dtype; None if the version is not known."""
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            return None
    except OSError:
        raise
    except Exception as error:
        # A damaged header is taken apart as Python, which may fail in any way.
        raise broken(path, name, _DAMAGED) from error
    if any(length < 0 for length in shape):
        raise broken(path, name, _DAMAGED)
    return bool(fortran), shape, dtype
