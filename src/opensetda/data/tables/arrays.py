"""Arrays in ``.npy`` and ``.npz`` files. Nothing is ever unpickled.

A header may declare anything, and a few bytes may unpack to terabytes: sizes are compared before
memory is taken, and a large compressed array is unpacked to a file.
"""

from __future__ import annotations

import io
import math
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from opensetda.data.limits import MOST_UNPACKED
from opensetda.data.reading import broken, reading
from opensetda.data.tables import mapped
from opensetda.data.tables.mapped import StoredArray
from opensetda.data.tables.scratch import remove_with, rows_of_columns, scratch_file
from opensetda.errors import InputError
from opensetda.system.files import open_regular

MAGIC = np.lib.format.MAGIC_PREFIX
_LONGEST_HEADER = 10_000
_COPIED_BYTES = 1 << 24
_LOCAL_HEADER = struct.Struct("<26xHH")
_ENCRYPTED = 1 << 0
# One read of any other may unpack to gigabytes; numpy writes no other.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Header(NamedTuple):
    """What stands before the values of an array; `size` is its own length in bytes."""

    fortran: bool
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int

    @property
    def order(self) -> Literal["C", "F"]:
        """The order of the values, in numpy's words."""
        return "F" if self.fortran else "C"

    @property
    def n_bytes(self) -> int:
        """Bytes of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


def array_names(path: Path) -> tuple[str, ...]:
    """Return the names of the arrays in an ``.npz`` file."""
    with _archive(path) as archive:
        names = tuple(name.removesuffix(".npy") for name in archive.namelist())
    if not names:
        raise broken(path, "an .npz file", "there is no array in it")
    return names


def find_array(path: Path, name: str, scratch: Path | None = None) -> StoredArray:
    """Return an array of an ``.npz`` file: where it is, or unpacked in memory or in a file."""
    called = f"array {name!r}"
    with _archive(path) as archive, reading(path, called, "the file is damaged"):
        member = archive.getinfo(name if name in archive.NameToInfo else f"{name}.npy")
        if member.compress_type not in _METHODS:
            raise broken(path, called, "its compression is not known; use np.savez_compressed")
        with archive.open(member) as stream:
            header = read_header(stream, path, called)
            if header.size + header.n_bytes != member.file_size:
                raise broken(path, called)
            is_plain = member.compress_type == zipfile.ZIP_STORED
            if is_plain and not header.fortran and not member.flag_bits & _ENCRYPTED:
                return _in_place(path, member, called, header)
            if header.n_bytes > mapped.LARGE_BYTES:
                times = header.n_bytes // max(1, member.compress_size)
                if times > MOST_UNPACKED and header.dtype.kind not in "SU":
                    what = f"{called} unpacks to {times:,} times its size, as only a zip bomb does"
                    raise InputError(f"{path}: {what}; if it is none, save it with np.savez")
                values = _unpacked(path, header, stream, scratch)
            else:
                content = stream.read()
                values = np.ndarray(header.shape, header.dtype, content, order=header.order)
    return StoredArray(path, called, header.dtype, header.shape, 0, values=values)


def read_header(stream: IO[bytes], path: Path, called: str) -> Header:
    """Read the header of an array of text or numbers."""
    start = stream.read(len(MAGIC) + 2)
    if start[: len(MAGIC)] != MAGIC or len(start) < len(MAGIC) + 2:
        raise broken(path, called, "it is damaged, cut short or not an array")
    if start[-2] not in (1, 2, 3):
        raise broken(path, called, "its version is not known")
    length = stream.read(2 if start[-2] == 1 else 4)
    size = int.from_bytes(length, "little")
    if size > _LONGEST_HEADER:
        raise broken(path, called)
    text = io.BytesIO(length + stream.read(size))
    try:
        # Version 3 is version 2 with field names in UTF-8.
        old, new = np.lib.format.read_array_header_1_0, np.lib.format.read_array_header_2_0
        shape, fortran, dtype = (old if start[-2] == 1 else new)(text)
        header = Header(bool(fortran), shape, dtype, len(start) + len(length) + size)
    except Exception as error:
        # A header is parsed as Python, and a damaged one may raise anything.
        raise broken(path, called) from error
    if any(type(length) is not int or not 0 <= length < 1 << 63 for length in shape):
        raise broken(path, called)
    if dtype.hasobject:
        objects = "holds Python objects, which are never unpickled"
        advice = "save it as text or numbers, e.g. values.astype(str)"
        raise InputError(f"{path}: {called} {objects}; {advice}")
    if dtype.kind == "V":
        raise InputError(f"{path}: {called} holds records ({dtype}); save text or numbers")
    return header


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    what = "an .npz file"
    with reading(path, what, "it is damaged, cut short or not one"), open_regular(path) as stream:
        if stream.read(len(MAGIC)) == MAGIC:
            raise broken(path, what, "it holds one bare array; save it with np.savez")
        with zipfile.ZipFile(stream) as archive:
            yield archive


def _in_place(path: Path, member: zipfile.ZipInfo, called: str, header: Header) -> StoredArray:
    """Return an array that is stored as it is; zipfile has compared names and signatures."""
    with open_regular(path) as stream:
        stream.seek(member.header_offset)
        name_length, extra_length = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
        start = stream.tell() + name_length + extra_length
        stream.seek(start)
        content = stream.read(header.size)
        if start + member.file_size > stream.seek(0, 2):
            raise broken(path, called)
    crc = zlib.crc32(content), member.CRC
    return StoredArray(path, called, header.dtype, header.shape, start + header.size, crc)


def _unpacked(
    path: Path, header: Header, stream: IO[bytes], scratch: Path | None
) -> npt.NDArray[Any]:
    """Return a map of an array's values in a new file, row by row."""
    with scratch_file(scratch, path, ".bin", header.n_bytes) as file:
        with file.open("wb") as target:
            shutil.copyfileobj(stream, target, _COPIED_BYTES)
        if header.fortran:
            mapped.check_shape(path, "a large array", header)
            with (
                scratch_file(scratch, path, ".bin", header.n_bytes) as by_row,
                file.open("rb") as source,
                by_row.open("wb") as target,
            ):
                for rows in rows_of_columns(source, header.shape, header.dtype):
                    target.write(rows.data)
            file.unlink()
            file = by_row
        values = np.memmap(file, header.dtype, "r", 0, header.shape)
    if scratch is None:
        remove_with(values, file)
    return values
