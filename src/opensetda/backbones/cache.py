"""Features on disk, by the content of the image file and the recipe that made them.

One SQLite file per recipe, which any number of processes may read and write at once. Whatever is
wrong with it costs a warning and time, never a run: the features are computed again.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import zlib
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opensetda.errors import one_line

Features = npt.NDArray[np.float32]

FLUSHED_ROWS = 1024  # a crash loses at most this many rows
_FLUSHED_SECONDS = 60.0
_LOCK_SECONDS = 60.0
# Names in a damaged file that are no text are a ValueError.
_FAILURES = (OSError, sqlite3.Error, ValueError)
_TABLE = (
    "CREATE TABLE IF NOT EXISTS images "
    "(digest BLOB PRIMARY KEY, features BLOB NOT NULL, checksum INTEGER NOT NULL)"
)


class FeatureCache(AbstractContextManager["FeatureCache"]):
    """Features of one recipe, for any number of threads. Use it as a context manager.

    Parameters
    ----------
    folder : Path
        The cache folder, shared by all recipes; created if needed, for this user alone.
    recipe_key : str
        `Recipe.key`.
    width : int
        Number of features per image.
    """

    def __init__(self, folder: Path, recipe_key: str, width: int) -> None:
        self.width = width
        self.warnings: list[str] = []  # one line per problem
        self.path = folder / "features" / f"{recipe_key}.sqlite3"
        self._pending: dict[bytes, Features] = {}
        self._flushed = time.monotonic()
        self._turn = threading.Lock()
        self._database: sqlite3.Connection | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.parent.mkdir(exist_ok=True)
            self._database = sqlite3.connect(self.path, _LOCK_SECONDS, check_same_thread=False)
            self._database.execute(_TABLE)
        except _FAILURES as error:
            self._do_without(error)

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
            except _FAILURES as error:
                self._do_without(error)
                return None
        if found is None:
            return None
        content, checksum = found
        is_row = isinstance(content, bytes) and len(content) == 4 * self.width
        if not is_row or _checksum(digest, content) != checksum:
            self._warn("damaged rows are computed again; remove the file")
            return None
        return np.frombuffer(content, dtype="<f4")

    def add(self, digest: bytes, row: Features) -> None:
        """Add the features of an image; the next `flush` writes them to disk."""
        with self._turn:
            self._pending[digest] = row
            is_late = time.monotonic() - self._flushed > _FLUSHED_SECONDS
            is_due = is_late or len(self._pending) >= FLUSHED_ROWS
        if is_due:
            self.flush()

    def flush(self) -> None:
        """Write new features to disk."""
        with self._turn:
            self._flushed = time.monotonic()
            contents = [(key, row.astype("<f4").tobytes()) for key, row in self._pending.items()]
            self._pending.clear()
            if not contents or self._database is None:
                return
            rows = [(key, content, _checksum(key, content)) for key, content in contents]
            try:
                with self._database:
                    self._database.executemany("INSERT OR REPLACE INTO images VALUES (?,?,?)", rows)
            except _FAILURES as error:
                self._do_without(error)

    def close(self) -> None:
        """Write new features, and close the file."""
        self.flush()
        if self._database is not None:
            self._database.close()
            self._database = None

    def _do_without(self, error: Exception) -> None:
        """Go on without the file."""
        self._warn(f"features cannot be kept ({one_line(error)}); the run goes on without")
        if self._database is not None:
            self._database.close()
            self._database = None

    def _warn(self, problem: str) -> None:
        warning = f"{self.path}: {problem}"
        if warning not in self.warnings:
            self.warnings.append(warning)


def _checksum(digest: bytes, content: bytes) -> int:
    # With the digest: a damaged index may lead to the row of another image.
    return zlib.crc32(content, zlib.crc32(digest))
