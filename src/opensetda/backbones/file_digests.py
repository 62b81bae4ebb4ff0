"""SHA-256 digests of files, without reading an unchanged file a second time.

Digests are remembered in a small SQLite file by path, size, times and inode; those of files
inside a tar by the tar's, and by their place in it. It only saves time: if it is missing,
locked, damaged or read-only, files are hashed again.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TypeVar

from opensetda.data.images.decoding import member_status
from opensetda.system.files import open_regular

FILE_NAME = "files.sqlite3"

# A file written twice within one tick of the disk's clock looks unchanged: digests of files
# changed so recently are not remembered.
_SETTLED_NS = 2_000_000_000
_FLUSHED_EVERY = 512
_LOCK_SECONDS = 5.0
_DIGEST = re.compile("[0-9a-f]{64}")
# Text that is none, or in the place of a number, is a ValueError or a TypeError.
_DAMAGED = (sqlite3.Error, TypeError, ValueError)

_TABLE = """
CREATE TABLE IF NOT EXISTS files (
    path BLOB PRIMARY KEY, size INTEGER, mtime INTEGER, ctime INTEGER, inode INTEGER,
    device INTEGER, digest TEXT
) WITHOUT ROWID
"""

Signature = tuple[int, int, int, int, int]
Entry = tuple[Signature, str]
Content = TypeVar("Content")


class FileDigests(AbstractContextManager["FileDigests"]):
    """SHA-256 digests of files, remembered between runs. Use it as a context manager.

    Without a folder for the SQLite file they are remembered for the life of this object only.
    """

    def __init__(self, folder: Path | None) -> None:
        self._new: dict[bytes, Entry] = {}
        self._database = None if folder is None else _open(folder)

    def __exit__(self, *error: object) -> None:
        self.close()

    def recall(self, paths: Iterable[str | Path]) -> list[str | None]:
        """Return the remembered digest of each file; None if unknown or changed since."""
        keys = [_key(path) for path in paths]
        known = self._stored([key for key in keys if key not in self._new])
        entries = [self._new.get(key) or known.get(key) for key in keys]
        return [
            entry[1] if entry and entry[0] == _signature(key) else None
            for key, entry in zip(keys, entries, strict=True)
        ]

    def digest(self, path: str | Path) -> str:
        """Return the digest of a file, remembered or computed; an `OSError` if it is gone."""
        (known,) = self.recall([path])
        if known is not None:
            return known
        content, signature = read_digest(path)
        self.remember(path, signature, content)
        return content

    def remember(self, path: str | Path, signature: Signature | None, digest: str) -> None:
        """Remember a digest; `signature` is that of `read_signed`."""
        if signature is not None:
            self._new[_key(path)] = (signature, digest)
            if len(self._new) >= _FLUSHED_EVERY:
                self.flush()

    def flush(self) -> None:
        """Write new digests to disk."""
        if self._database is None or not self._new:
            return
        rows = [(key, *signature, digest) for key, (signature, digest) in self._new.items()]
        command = "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)"
        try:
            with self._database:
                self._database.executemany(command, rows)
            self._new.clear()
        except sqlite3.Error:
            self._forget_database()

    def close(self) -> None:
        """Write new digests and close the database."""
        self.flush()
        self._forget_database()

    def _stored(self, keys: list[bytes]) -> dict[bytes, Entry]:
        found: dict[bytes, Entry] = {}
        if self._database is None:
            return found
        try:
            for start in range(0, len(keys), _FLUSHED_EVERY):
                some = keys[start : start + _FLUSHED_EVERY]
                marks = ",".join("?" * len(some))
                rows = self._database.execute(f"SELECT * FROM files WHERE path IN ({marks})", some)
                for path, size, mtime, ctime, inode, device, digest in rows:
                    if _DIGEST.fullmatch(digest):
                        found[bytes(path)] = ((size, mtime, ctime, inode, device), digest)
        except _DAMAGED:
            self._forget_database()
        return found

    def _forget_database(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def read_digest(path: str | Path) -> tuple[str, Signature | None]:
    """Return the digest of a file and its signature, as `read_signed` does."""

    def read(name: str) -> str:
        with open_regular(name) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    return read_signed(path, read)


def read_signed(
    path: str | Path, read: Callable[[str], Content]
) -> tuple[Content, Signature | None]:
    """Read a file with `read`; also return its signature, which shows later changes.

    The signature is None if the file changed while it was read, or so shortly before that a
    later change might not show.
    """
    started, key = time.time_ns(), _key(path)
    before = _signature(key)
    content = read(os.fspath(path))
    is_safe = before is not None and before == _signature(key) and not _is_young(before, started)
    return content, before if is_safe else None


def _key(path: str | Path) -> bytes:
    # Bytes, because file names need not be text.
    return os.fsencode(os.path.abspath(path))  # noqa: PTH100 - links are not followed


def _signature(path: bytes) -> Signature | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - bytes
        size = status.st_size
    except ValueError:  # a NUL in the path
        return None
    except OSError:
        found = member_status(os.fsdecode(path))
        if found is None:
            return None
        # One number for the archive's size and the place in it; SQLite's integers have 63 bits.
        status, member = found.archive, found.member
        place = f"{status.st_size} {member.offset} {member.size}"
        size = int.from_bytes(hashlib.sha256(place.encode()).digest()[:7], "big")
    return size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


def _is_young(signature: Signature, read_at: int) -> bool:
    """Return whether a file changed shortly before `read_at`, or since."""
    now = time.time_ns()
    # Times in the future come from wrong clocks, and say nothing.
    return any(read_at - _SETTLED_NS < moment <= now for moment in signature[1:3])


def _open(folder: Path) -> sqlite3.Connection | None:
    database = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / FILE_NAME
        database = sqlite3.connect(place, timeout=_LOCK_SECONDS, check_same_thread=False)
        with suppress(sqlite3.Error):
            # A database on a read-only disk can still be read.
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(_TABLE)
        database.execute("SELECT * FROM files LIMIT 1")
    except (OSError, *_DAMAGED):
        if database is not None:
            database.close()
        return None
    return database
