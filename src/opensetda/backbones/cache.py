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
import time
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.float32]

FLUSHED_ROWS = 1024
"""A crash loses at most this many rows."""

_FLUSHED_SECONDS = 60.0
_MANY_SMALL_SEGMENTS = 32

_SUFFIX = ".features"
_PARTIAL = ".partial"
_INDEX = np.dtype([("digest", "u1", 32), ("checksum", "<u4")])

# Files of writers that died are removed after this time.
_ABANDONED_SECONDS = 24 * 3600


def default_cache_folder() -> Path:
    """Return ``$OSDA_CACHE``, else ``$XDG_CACHE_HOME/opensetda``, else ``~/.cache/opensetda``."""
    chosen = os.environ.get("OSDA_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "opensetda"


class FeatureCache:
    """Features of one recipe. Use it as a context manager, or call `close`.

    Parameters
    ----------
    folder : Path
        The cache folder, shared by all recipes; created if needed.
    recipe_key : str
        `Recipe.key`.
    width : int
        Number of features per image.

    Attributes
    ----------
    warnings : list of str
        What went wrong, one line per problem.
    """

    def __init__(self, folder: Path, recipe_key: str, width: int) -> None:
        self.folder = folder
        self.width = width
        self.warnings: list[str] = []
        self._place = folder / "features" / recipe_key
        self._segments: list[_Segment] = []
        self._names: set[str] = set()
        self._damaged: set[tuple[int, int]] = set()
        self._pending: dict[str, Features] = {}
        self._flushed = time.monotonic()
        self._writable = True
        self._open_segments()

    def __enter__(self) -> FeatureCache:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._prefixes) + len(self._pending)

    def read(self, digests: Sequence[str]) -> tuple[Features, npt.NDArray[np.bool_]]:
        """Look up images by the SHA-256 of their files, in hex.

        Returns
        -------
        rows : array of float32 of shape (n_found, width)
            Features of the images that were found, in the order given.
        found : array of bool of shape (n,)
            Which images were found.
        """
        places = self._find(digests)
        rows = np.empty((len(digests), self.width), dtype=np.float32)
        found = np.zeros(len(digests), dtype=np.bool_)
        for number, (digest, place) in enumerate(zip(digests, places, strict=True)):
            if digest in self._pending:
                rows[number] = self._pending[digest]
            else:
                while place is not None and not self._copy(place, rows[number]):
                    self._damaged.add(place)
                    (place,) = self._find([digest])
                if place is None:
                    continue
            found[number] = True
        return rows[found], found

    def add(self, digest: str, row: Features) -> None:
        """Add the features of an image; the next `flush` writes them to disk."""
        if not self._writable:
            return
        self._pending[digest] = np.array(row, dtype=np.float32)
        waited = time.monotonic() - self._flushed
        if len(self._pending) >= FLUSHED_ROWS or waited > _FLUSHED_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write new features to disk as one segment."""
        self._flushed = time.monotonic()
        if not self._pending:
            return
        try:
            path = _write_segment(self._place, list(self._pending), list(self._pending.values()))
            self._open(path)
        except OSError as error:
            self._writable = False
            reason = error.strerror or str(error)
            self.warnings.append(
                f"{self.folder}: features cannot be kept ({reason}); the run goes on without"
            )
        else:
            self._index()
        self._pending.clear()

    def close(self) -> None:
        """Write new features, and merge small segments."""
        self.flush()
        if self._writable:
            self._merge_small()

    def _open_segments(self) -> None:
        try:
            paths = sorted(self._place.glob(f"*{_SUFFIX}"))
            _remove_abandoned(self._place, time.time())
        except OSError as error:
            reason = error.strerror or str(error)
            self.warnings.append(f"{self.folder}: the cache cannot be read ({reason})")
            paths = []
        for path in paths:
            self._open(path)
        self._index()

    def _open(self, path: Path) -> None:
        if path.name in self._names:
            return
        try:
            self._segments.append(_open_segment(path, self.width))
            self._names.add(path.name)
        except FileNotFoundError:
            # Another process has just merged it with others.
            return
        except DamagedSegmentError as error:
            self.warnings.append(f"{path}: ignored: {error}; remove the file")

    def _index(self) -> None:
        """Sort all rows by the first 8 bytes of their digests; `_place_of` compares the rest."""
        none = np.empty(0, dtype=_INDEX)
        entries = [segment.index["digest"] for segment in self._segments] or [none["digest"]]
        whole = np.ascontiguousarray(np.concatenate(entries))
        prefixes = np.ascontiguousarray(whole[:, :8]).view(">u8").ravel()
        order = np.argsort(prefixes, kind="stable")
        self._prefixes = prefixes[order]
        self._order = order
        self._starts = np.cumsum([0, *(len(segment.index) for segment in self._segments)])

    def _find(self, digests: Sequence[str]) -> list[tuple[int, int] | None]:
        wanted = np.array([int(digest[:16], 16) for digest in digests], dtype=np.uint64)
        nearest = np.searchsorted(self._prefixes, wanted)
        places: list[tuple[int, int] | None] = []
        for digest, first in zip(digests, nearest.tolist(), strict=True):
            places.append(self._place_of(bytes.fromhex(digest), first))
        return places

    def _place_of(self, digest: bytes, position: int) -> tuple[int, int] | None:
        prefix = int.from_bytes(digest[:8], "big")
        while position < len(self._prefixes) and int(self._prefixes[position]) == prefix:
            entry = int(self._order[position])
            segment = int(np.searchsorted(self._starts, entry, side="right")) - 1
            place = segment, entry - int(self._starts[segment])
            whole = self._segments[segment].index["digest"][place[1]].tobytes()
            if whole == digest and place not in self._damaged:
                return place
            position += 1
        return None

    def _copy(self, place: tuple[int, int], destination: Features) -> bool:
        segment, row = self._segments[place[0]], place[1]
        if not segment.row_is_whole(row):
            warning = f"{segment.path}: damaged rows are computed again; remove the file"
            if warning not in self.warnings:
                self.warnings.append(warning)
            return False
        destination[:] = segment.matrix[row]
        return True

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
        try:
            if rows:
                _write_segment(self._place, list(rows), list(rows.values()))
            for segment in small:
                # Processes that have it open keep it; others find its rows in the new one.
                segment.path.unlink(missing_ok=True)
        except OSError:
            return


class DamagedSegmentError(Exception):
    """A file that is not a complete segment; the text says why in a few words."""


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


def _write_segment(folder: Path, digests: Sequence[str], rows: Sequence[Features]) -> Path:
    """Write a segment under another name, sync it to disk, and move it into place."""
    folder.mkdir(parents=True, exist_ok=True)
    matrix = np.stack(rows).astype("<f4", copy=False)
    index = np.zeros(len(digests), dtype=_INDEX)
    index["digest"] = [np.frombuffer(bytes.fromhex(digest), np.uint8) for digest in digests]
    index["checksum"] = [_checksum(row) for row in matrix]
    path = folder / f"{secrets.token_hex(8)}{_SUFFIX}"
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
    return path


def _open_segment(path: Path, width: int) -> _Segment:
    """Open a segment, or raise a `DamagedSegmentError`."""
    try:
        with warnings.catch_warnings():
            # Python warns of oddities in a damaged header.
            warnings.simplefilter("ignore")
            return _read_segment(path, width)
    except (FileNotFoundError, DamagedSegmentError):
        raise
    except Exception as error:
        # A header is parsed as Python, and a damaged one may raise anything.
        raise DamagedSegmentError("not a segment, or cut short") from error


def _read_segment(path: Path, width: int) -> _Segment:
    with path.open("rb") as stream:
        index = np.load(stream, allow_pickle=False)
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise DamagedSegmentError(f"format {version}")
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
        start = stream.tell()
        size = os.fstat(stream.fileno()).st_size
    if index.dtype != _INDEX or dtype != np.dtype("<f4") or by_columns:
        raise DamagedSegmentError("another kind of file")
    if shape != (len(index), width):
        raise DamagedSegmentError(f"{shape} features where {(len(index), width)} were expected")
    if size != start + 4 * len(index) * width:
        raise DamagedSegmentError("cut short")
    if not len(index):
        raise DamagedSegmentError("empty")
    matrix = np.memmap(path, dtype="<f4", mode="r", offset=start, shape=shape)
    return _Segment(path, index, matrix)


def _remove_abandoned(folder: Path, now: float) -> None:
    """Remove files of writers that died."""
    for left in folder.glob(f"*{_PARTIAL}"):
        try:
            if now - left.stat().st_mtime > _ABANDONED_SECONDS:
                left.unlink()
        except OSError:
            continue
