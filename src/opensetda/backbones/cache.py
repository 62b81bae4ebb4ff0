"""Features on disk, by the content of the image and the recipe that made them.

Any number of processes may read and write at once: each writes segments of its own, which
appear whole or not at all, and nobody changes a segment. Whatever is wrong with the folder
costs time, never a run: a warning, and the features are computed again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opensetda.backbones.segments import (
    INDEX,
    SUFFIX,
    DamagedSegmentError,
    Features,
    Segment,
    open_segment,
    remove_abandoned,
    write_segment,
)

FLUSHED_ROWS = 1024
"""Rows that a crash can lose at most."""

_FLUSHED_SECONDS = 60.0
_MANY_SMALL_SEGMENTS = 32


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
        The cache folder, shared by all recipes; made if need be.
    recipe_key : str
        `Recipe.key`.
    width : int
        Features of an image.

    Attributes
    ----------
    warnings : list of str
        What went wrong, one line each.
    """

    def __init__(self, folder: Path, recipe_key: str, width: int) -> None:
        self.folder = folder
        self.width = width
        self.warnings: list[str] = []
        self._place = folder / "features" / recipe_key
        self._segments: list[Segment] = []
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
            Features of those that are there, in the order given.
        found : array of bool of shape (n,)
            Which are there.
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
        """Keep the features of an image; they are on disk after the next `flush`."""
        if not self._writable:
            return
        self._pending[digest] = np.array(row, dtype=np.float32)
        waited = time.monotonic() - self._flushed
        if len(self._pending) >= FLUSHED_ROWS or waited > _FLUSHED_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is new to the disk as one segment."""
        self._flushed = time.monotonic()
        if not self._pending:
            return
        try:
            path = write_segment(self._place, list(self._pending), list(self._pending.values()))
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
        """Write what is new, and put small segments together."""
        self.flush()
        if self._writable:
            self._merge_small()

    def _open_segments(self) -> None:
        try:
            paths = sorted(self._place.glob(f"*{SUFFIX}"))
            remove_abandoned(self._place, time.time())
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
            self._segments.append(open_segment(path, self.width))
            self._names.add(path.name)
        except FileNotFoundError:
            # Another process has just put it together with others.
            return
        except DamagedSegmentError as error:
            self.warnings.append(f"{path}: ignored: {error}; remove the file")

    def _index(self) -> None:
        """Sort what is known by the first 8 bytes of the digests; found ones are compared whole."""
        none = np.empty(0, dtype=INDEX)
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
        """Put small segments together, so that many small runs do not make many small files."""
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
                write_segment(self._place, list(rows), list(rows.values()))
            for segment in small:
                # Whoever has it open keeps it; whoever has not finds the rows in the new one.
                segment.path.unlink(missing_ok=True)
        except OSError:
            return
