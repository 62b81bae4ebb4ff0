"""Tables larger than memory: arrays that stay in their file, and scratch files.

An ``.npy`` file, or an array that ``np.savez`` stored uncompressed, is read through a memory map,
a chunk at a time.
"""

from __future__ import annotations

import atexit
import math
import os
import shutil
import struct
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from opensetda.data.tables.cells import broken, not_finite, one_line, to_float32
from opensetda.errors import InputError
from opensetda.rows import release_pages

# Features that take more than this as float32 stay in a file.
LARGE_BYTES = 1 << 28

_CHUNK_BYTES = 1 << 22
_CHUNK_ROWS = 1 << 16
DAMAGED = "the file is damaged"

MAGIC = np.lib.format.MAGIC_PREFIX
_LOCAL_HEADER = struct.Struct("<4s2xHH16xHH")
_LOCAL_SIGNATURE = b"PK\x03\x04"
_ENCRYPTED = 1 << 0
_UTF_8_NAME = 1 << 11


def ignore(n_bytes: int) -> None:
    """Do nothing with the number of bytes read: the default of `on_read`."""


class StoredArray(NamedTuple):
    """An uncompressed array in a file.

    Attributes
    ----------
    path : Path
        The file.
    name : str
        Name of the array in messages.
    dtype : dtype
        Type of its values.
    shape : tuple of int
        Its shape, in C order.
    offset : int
        Position of its first value.
    crc : tuple of (int, int) or None
        CRC-32 of the array's header, and of header and values; None if the file has none.
    """

    path: Path
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    crc: tuple[int, int] | None = None

    def map(self) -> npt.NDArray[Any]:
        """Return the array as a read-only memory map."""
        if not math.prod(self.shape) or not self.dtype.itemsize:
            return np.zeros(self.shape, self.dtype)
        try:
            return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
        except (OSError, ValueError) as error:
            # Some network disks cannot map; or the file has become shorter.
            raise InputError(
                f"{self.path}: cannot be mapped into memory ({one_line(error)}); "
                "copy it to a local disk"
            ) from error

    def chunks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield some rows at a time with the number of the first, and check their CRC-32."""
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
            raise broken(self.path, self.name, DAMAGED)


def is_large(shape: Sequence[int]) -> bool:
    """Return whether a feature matrix is too large for memory."""
    return math.prod(shape) * np.dtype(np.float32).itemsize > LARGE_BYTES


def is_mapped(X: npt.NDArray[Any]) -> bool:
    """Return whether a feature matrix is a memory map."""
    return isinstance(X, np.memmap)


def stored_array(path: Path, member: zipfile.ZipInfo, name: str) -> StoredArray | None:
    """Find an array of an ``.npz`` file.

    Returns None if it cannot be mapped: compressed, in Fortran order, Python objects, no array.
    """
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ENCRYPTED:
        return None
    damaged = broken(path, name, DAMAGED)
    with path.open("rb") as stream:
        start = _data_start(stream, member)
        if start is None or member.file_size != member.compress_size:
            raise damaged
        end = start + member.file_size
        if end > stream.seek(0, 2):
            raise damaged
        stream.seek(start)
        if stream.read(len(MAGIC)) != MAGIC:
            return None
        stream.seek(start)
        found = read_header(stream, path, name)
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
            "features need numbers in two dimensions, one row per sample"
        )


def checked_map(array: StoredArray, on_read: Callable[[int], None] = ignore) -> npt.NDArray[Any]:
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
    narrow = chunk if chunk.dtype.itemsize <= 4 else to_float32(chunk)
    finite = np.isfinite(narrow)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise not_finite(path, int(start + row), f"column {column}", chunk[row, column])


def _data_start(stream: BinaryIO, member: zipfile.ZipInfo) -> int | None:
    """Return the position of a stored file's bytes; None if its header is damaged."""
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


def read_header(
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
        # A header is parsed as Python, and a damaged one may raise anything.
        raise broken(path, name, DAMAGED) from error
    if any(length < 0 for length in shape):
        raise broken(path, name, DAMAGED)
    return bool(fortran), shape, dtype


@contextmanager
def scratch_file(
    folder: Path | None, of: Path, suffix: str, n_bytes: int | None = None
) -> Iterator[Path]:
    """Yield a new file to write to, which is removed if something goes wrong.

    Parameters
    ----------
    folder : Path or None
        Its folder, which the caller removes. None: a temporary folder that is removed when the
        program ends.
    of : Path
        The table that is unpacked there, for messages.
    suffix : str
        Ending of its name.
    n_bytes : int, optional
        Its final size, for which there must be room on the disk.
    """
    advice = "make room there" if folder is not None else "make room there, or set TMPDIR"
    try:
        if folder is None:
            folder = _own_folder()
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if n_bytes is not None and n_bytes > free:
            raise InputError(
                f"{of}: unpacked it takes {n_bytes / 1e9:.1f} GB, but {folder} has "
                f"{free / 1e9:.1f} GB left; {advice}"
            )
        number, name = tempfile.mkstemp(suffix, f"{of.stem[:40]}-", folder)
        os.close(number)
    except OSError as error:
        raise _cannot_write(of, folder, error, advice) from error
    path = Path(name)
    try:
        yield path
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _cannot_write(of, folder, error, advice) from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def remove_with(user: Any, file: Path) -> None:
    """Remove a file once the object that uses it is deleted."""
    # Not at exit, which removes the whole folder: a forked process would do it, too.
    weakref.finalize(user, file.unlink, missing_ok=True).atexit = False


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


def _cannot_write(of: Path, folder: Path | None, error: OSError, advice: str) -> InputError:
    place = folder or tempfile.gettempdir()
    reason = error.strerror or " ".join(str(error).split())
    return InputError(f"{of}: cannot be unpacked in {place} ({reason}); {advice}")
