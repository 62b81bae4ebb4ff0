"""Features on disk, by the content of the image file and the recipe that made them.

One SQLite file per recipe, which any number of processes may read and write at once. Whatever is
wrong with it costs a warning and time, never a run: the features are computed again.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
import zlib
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError

Features = npt.NDArray[np.float32]

FLUSHED_ROWS = 1024  # a crash loses at most this many rows
_FLUSHED_SECONDS = 60.0
_LOCK_SECONDS = 60.0
# Names in a damaged file that are no text are a ValueError.
_DAMAGED = (sqlite3.Error, ValueError)

_TABLE = (
    "CREATE TABLE IF NOT EXISTS images "
    "(digest BLOB PRIMARY KEY, features BLOB NOT NULL, checksum INTEGER NOT NULL)"
)


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
    """Features of one recipe, for any number of threads. Use it as a context manager.

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
        self.folder, self.width = folder, width
        self.warnings: list[str] = []  # one line per problem
        self.path = folder / "features" / f"{recipe_key}.sqlite3"
        self._pending: dict[bytes, Features] = {}
        self._flushed = time.monotonic()
        self._turn = threading.Lock()
        self._writable = True
        self._database: sqlite3.Connection | None = None
        check_private(folder)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self.path, _LOCK_SECONDS, check_same_thread=False)
            self._database.execute(_TABLE)
        except (OSError, *_DAMAGED) as error:
            self._do_without(f"{folder}: features cannot be kept ({_reason(error)})")

    def __exit__(self, *error: object) -> None:
        self.close()

    def get(self, digest: bytes) -> Features | None:
        """Return the features of an image by the SHA-256 of its file; None if there are none."""
        with self._turn:
            if self._database is None:
                return None
            query = "SELECT features, checksum FROM images WHERE digest = ?"
            try:
                found = self._database.execute(query, (digest,)).fetchone()
            except _DAMAGED as error:
                self._do_without(f"{self.path}: cannot be read ({error}); remove the file")
                return None
        if found is None:
            return None
        content, checksum = found
        is_row = isinstance(content, bytes) and len(content) == 4 * self.width
        if not is_row or _checksum(digest, content) != checksum:
            self._warn(f"{self.path}: damaged rows are computed again; remove the file")
            return None
        return np.frombuffer(content, dtype="<f4")

    def add(self, digest: bytes, row: Features) -> None:
        """Add the features of an image; the next `flush` writes them to disk."""
        with self._turn:
            self._pending[digest] = row
            is_late = time.monotonic() - self._flushed > _FLUSHED_SECONDS
            if is_late or len(self._pending) >= FLUSHED_ROWS:
                self._flush()

    def flush(self) -> None:
        """Write new features to disk."""
        with self._turn:
            self._flush()

    def close(self) -> None:
        """Write new features, and close the file."""
        self.flush()
        if self._database is not None:
            self._database.close()
            self._database = None

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        rows, self._pending = self._pending, {}
        if not rows or self._database is None or not self._writable:
            return
        contents = [(digest, row.astype("<f4").tobytes()) for digest, row in rows.items()]
        try:
            with self._database:
                self._database.executemany(
                    "INSERT OR REPLACE INTO images VALUES (?, ?, ?)",
                    [(digest, content, _checksum(digest, content)) for digest, content in contents],
                )
        except _DAMAGED as error:
            self._writable = False
            self._warn(f"{self.folder}: features cannot be kept ({error}); the run goes on without")

    def _do_without(self, problem: str) -> None:
        self._warn(f"{problem}; the run goes on without")
        if self._database is not None:
            self._database.close()
            self._database = None

    def _warn(self, warning: str) -> None:
        if warning not in self.warnings:
            self.warnings.append(warning)


def _checksum(digest: bytes, content: bytes) -> int:
    # With the digest: a damaged index may lead to the row of another image.
    return zlib.crc32(content, zlib.crc32(digest))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
