"""Features on disk, by the content of the image file and the recipe that made them.

Any number of processes may read and write at once. Each writes segments of its own: files that
appear whole or not at all, are never changed, and are read through a memory map. A segment holds
two arrays in numpy's format, one after the other: an index (digest of the image file, checksum
of the row) and the feature matrix. Whatever is wrong with the folder costs a warning and time,
never a run: the features are computed again.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
import warnings
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.system.files import is_partial, new_file, open_regular, sweep

Features = npt.NDArray[np.float32]

FLUSHED_ROWS = 1024  # a crash loses at most this many rows
_FLUSHED_SECONDS = 60.0
_MANY_SMALL_SEGMENTS = 32

_SUFFIX = ".features"
_INDEX = np.dtype([("digest", "u1", 32), ("checksum", "<u4")])


def check_private(folder: Path) -> None:
    """Raise an `InputError` if another user can put features into a cache folder.

    It is made if it does not exist, for this user alone. A folder that a group shares is fine.
    """
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for place in (folder, folder / "features"):
        with suppress(OSError, AttributeError):  # Windows has no user numbers
            status = place.stat()
            theirs = "belongs to another user" if status.st_uid not in (os.getuid(), 0) else None
            if theirs or status.st_mode & stat.S_IWOTH:
                theirs = theirs or "can be written by every user"
                advice = "use a folder of your own (--cache, OSDA_CACHE), or --no-cache"
                raise InputError(f"{place}: the cache {theirs}, so it is not trusted; {advice}")


class FeatureCache(AbstractContextManager["FeatureCache"]):
    """Features of one recipe. Use it as a context manager, or call `close`.

    Parameters
    ----------
    folder : Path
        The cache folder, shared by all recipes; created if needed.
    recipe_key : str
        `Recipe.key`.
    width : int
        Number of features per image.
    """

    def __init__(self, folder: Path, recipe_key: str, width: int) -> None:
        self.folder = folder
        self.width = width
        self.warnings: list[str] = []  # one line per problem
        self._place = folder / "features" / recipe_key
        check_private(folder)
        self._segments: list[_Segment] = []
        self._pending: dict[str, Features] = {}
        self._flushed = time.monotonic()
        self._writable = True
        self._open_segments()

    def __exit__(self, *error: object) -> None:
        self.close()

    def read(self, digests: Sequence[str]) -> tuple[Features, npt.NDArray[np.bool_]]:
        """Look up images by the SHA-256 of their files, in hex.

        Returns the features of those that were found, (n_found, width), and which these are, (n,).
        """
        rows = np.empty((len(digests), self.width), dtype=np.float32)
        found = np.zeros(len(digests), dtype=np.bool_)
        wanted = np.array([int(digest[:16], 16) for digest in digests], dtype=np.uint64)
        starts = np.searchsorted(self._prefixes, wanted).tolist()
        for number, (digest, start) in enumerate(zip(digests, starts, strict=True)):
            row = self._pending.get(digest)
            if row is None:
                row = self._look_up(bytes.fromhex(digest), start)
            if row is not None:
                rows[number] = row
                found[number] = True
        return rows[found], found

    def add(self, digest: str, row: Features) -> None:
        """Add the features of an image; the next `flush` writes them to disk."""
        if not self._writable:
            return
        self._pending[digest] = np.array(row, dtype=np.float32)
        is_late = time.monotonic() - self._flushed > _FLUSHED_SECONDS
        if is_late or len(self._pending) >= FLUSHED_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write new features to disk as one segment."""
        self._flushed = time.monotonic()
        if not self._pending:
            return
        try:
            self._open(_write_segment(self._place, self._pending))
            self._index()
        except OSError as error:
            self._writable = False
            reason = f"features cannot be kept ({error.strerror or error})"
            self.warnings.append(f"{self.folder}: {reason}; the run goes on without")
        self._pending.clear()

    def close(self) -> None:
        """Write new features, and merge small segments."""
        self.flush()
        if self._writable:
            self._merge_small()

    def _open_segments(self) -> None:
        sweep(self._place)
        try:
            paths = sorted(self._place.glob(f"*{_SUFFIX}"))
        except OSError as error:
            reason = error.strerror or error
            self.warnings.append(f"{self.folder}: the cache cannot be read ({reason})")
            paths = []
        for path in paths:
            if not is_partial(path.name):
                self._open(path)
        self._index()

    def _open(self, path: Path) -> None:
        try:
            with warnings.catch_warnings():
                # Python warns of oddities in a damaged header.
                warnings.simplefilter("ignore")
                self._segments.append(_read_segment(path, self.width))
        except FileNotFoundError:
            return  # another process has just merged it with others
        except Exception as error:
            # A header is parsed as Python, and a damaged one may raise anything.
            is_ours = isinstance(error, _DamagedError)
            reason = error if is_ours else "not a segment, or cut short"
            self.warnings.append(f"{path}: ignored: {reason}; remove the file")

    def _index(self) -> None:
        """Sort all rows by the first 8 bytes of their digests; `_look_up` compares the rest."""
        none = np.empty((0, 32), dtype=np.uint8)
        whole = np.concatenate([none, *(segment.index["digest"] for segment in self._segments)])
        prefixes = np.ascontiguousarray(whole[:, :8]).view(">u8").ravel()
        self._order = np.argsort(prefixes, kind="stable")
        self._prefixes = prefixes[self._order]
        self._starts = np.cumsum([0, *(len(segment.index) for segment in self._segments)])

    def _look_up(self, digest: bytes, position: int) -> Features | None:
        """Return the first undamaged row of a digest whose prefix is at `position`."""
        prefix = int.from_bytes(digest[:8], "big")
        while position < len(self._prefixes) and int(self._prefixes[position]) == prefix:
            entry = int(self._order[position])
            number = int(np.searchsorted(self._starts, entry, side="right")) - 1
            segment, row = self._segments[number], entry - int(self._starts[number])
            if segment.index["digest"][row].tobytes() == digest:
                if segment.row_is_whole(row):
                    return np.asarray(segment.matrix[row])
                warning = f"{segment.path}: damaged rows are computed again; remove the file"
                if warning not in self.warnings:
                    self.warnings.append(warning)
            position += 1
        return None

    def _merge_small(self) -> None:
        """Merge small segments, so that many small runs do not leave many small files."""
        small = [segment for segment in self._segments if len(segment.index) < FLUSHED_ROWS // 2]
        if len(small) < _MANY_SMALL_SEGMENTS:
            return
        rows: dict[str, Features] = {}
        for segment in small:
            for row, digest in enumerate(segment.index["digest"]):
                if segment.row_is_whole(row):
                    rows[digest.tobytes().hex()] = segment.matrix[row]
        with suppress(OSError):
            if rows:
                _write_segment(self._place, rows)
            for segment in small:
                # Processes that have it open keep it; others find its rows in the new one.
                segment.path.unlink(missing_ok=True)


class _DamagedError(Exception):
    pass


@dataclass(frozen=True)
class _Segment:
    """A segment that is open for reading; `matrix` is a memory map."""

    path: Path
    index: npt.NDArray[np.void]
    matrix: Features

    def row_is_whole(self, row: int) -> bool:
        return _checksum(self.matrix[row]) == int(self.index["checksum"][row])


def _checksum(row: Features) -> int:
    return zlib.crc32(np.ascontiguousarray(row).data)


def _write_segment(folder: Path, rows: Mapping[str, Features]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    matrix = np.stack(list(rows.values())).astype("<f4", copy=False)
    index = np.zeros(len(rows), dtype=_INDEX)
    index["digest"] = [np.frombuffer(bytes.fromhex(digest), np.uint8) for digest in rows]
    index["checksum"] = [_checksum(row) for row in matrix]
    path = folder / f"{secrets.token_hex(8)}{_SUFFIX}"
    with new_file(path) as aside, aside.open("wb") as stream:
        np.save(stream, index)
        np.save(stream, matrix)
    return path


def _read_segment(path: Path, width: int) -> _Segment:
    with open_regular(path) as stream:
        index = np.load(stream, allow_pickle=False)
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise _DamagedError(f"format {version}")
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
        start = stream.tell()
        size = os.fstat(stream.fileno()).st_size
    if index.dtype != _INDEX or dtype != np.dtype("<f4") or by_columns:
        raise _DamagedError("another kind of file")
    if shape != (len(index), width):
        raise _DamagedError(f"{shape} features where {(len(index), width)} were expected")
    if size != start + 4 * len(index) * width or not len(index):
        raise _DamagedError("cut short" if len(index) else "empty")
    matrix = np.memmap(path, dtype="<f4", mode="r", offset=start, shape=shape)
    return _Segment(path, index, matrix)
