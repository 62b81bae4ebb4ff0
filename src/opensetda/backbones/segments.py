"""Files of the feature cache: written once, whole, and read through a memory map.

A segment holds two arrays in numpy's own format, one behind the other: an index (digest
of the image file, checksum of the row) and the matrix of the features.
"""

from __future__ import annotations

import os
import secrets
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.float32]

SUFFIX = ".features"
INDEX = np.dtype([("digest", "u1", 32), ("checksum", "<u4")])

# A writer that died left its file aside; nobody writes for so long.
_ABANDONED_SECONDS = 24 * 3600
_PARTIAL = ".partial"


class DamagedSegmentError(Exception):
    """A file that is no whole segment; the text says why in a few words."""


@dataclass(frozen=True)
class Segment:
    """A segment that is open for reading.

    Attributes
    ----------
    path : Path
        Where it lies.
    index : array of `INDEX` of shape (n,)
        One entry a row.
    matrix : array of float32 of shape (n, width)
        Read from the disk where it is touched.
    """

    path: Path
    index: npt.NDArray[np.void]
    matrix: Features

    def row_is_whole(self, row: int) -> bool:
        """Tell whether a row is what was written."""
        return checksum(self.matrix[row]) == int(self.index["checksum"][row])


def checksum(row: Features) -> int:
    """Return what tells a damaged row from a whole one."""
    return zlib.crc32(np.ascontiguousarray(row).data)


def write_segment(folder: Path, digests: Sequence[str], rows: Sequence[Features]) -> Path:
    """Write a segment aside, make sure that the disk has it, and move it into place."""
    folder.mkdir(parents=True, exist_ok=True)
    matrix = np.stack(rows).astype("<f4", copy=False)
    index = np.zeros(len(digests), dtype=INDEX)
    index["digest"] = [np.frombuffer(bytes.fromhex(digest), np.uint8) for digest in digests]
    index["checksum"] = [checksum(row) for row in matrix]
    path = folder / f"{secrets.token_hex(8)}{SUFFIX}"
    aside = path.with_suffix(_PARTIAL)
    try:
        with aside.open("xb") as stream:
            np.save(stream, index)
            np.save(stream, matrix)
            stream.flush()
            os.fsync(stream.fileno())
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
    _sync_folder(folder)
    return path


def open_segment(path: Path, width: int) -> Segment:
    """Open a segment, or raise a `DamagedSegmentError`."""
    try:
        with warnings.catch_warnings():
            # Python warns of what it finds odd in a damaged header.
            warnings.simplefilter("ignore")
            return _open(path, width)
    except (FileNotFoundError, DamagedSegmentError):
        raise
    except Exception as error:
        # A header is parsed as Python: what a damaged one raises has no common base but this.
        raise DamagedSegmentError("not a segment, or cut short") from error


def _open(path: Path, width: int) -> Segment:
    with path.open("rb") as stream:
        index = np.load(stream, allow_pickle=False)
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise DamagedSegmentError(f"format {version}")
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
        start = stream.tell()
        size = os.fstat(stream.fileno()).st_size
    if index.dtype != INDEX or dtype != np.dtype("<f4") or by_columns:
        raise DamagedSegmentError("another kind of file")
    if shape != (len(index), width):
        raise DamagedSegmentError(f"{shape} features where {(len(index), width)} were expected")
    if size != start + 4 * len(index) * width:
        raise DamagedSegmentError("cut short")
    if not len(index):
        raise DamagedSegmentError("empty")
    matrix = np.memmap(path, dtype="<f4", mode="r", offset=start, shape=shape)
    return Segment(path, index, matrix)


def remove_abandoned(folder: Path, now: float) -> None:
    """Remove what dead writers left."""
    for left in folder.glob(f"*{_PARTIAL}"):
        try:
            if now - left.stat().st_mtime > _ABANDONED_SECONDS:
                left.unlink()
        except OSError:
            continue


def _sync_folder(folder: Path) -> None:
    # Without it the name may be lost in a power cut; not every system can do that.
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
