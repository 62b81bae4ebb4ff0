"""Locks between processes: of a folder that one works on, and of a file that one changes.

On POSIX systems the folder or file itself is locked (`flock`), so that no lock file lies about, and
the lock follows it when it is renamed. Elsewhere a lock file in the cache folder stands for it. A
lock ends with its process at the latest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opensetda.system import default_cache_folder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class BusyError(Exception):
    """Another process holds the lock."""


@dataclass
class FolderLock:
    """A lock that is held; not `is_certain` where the file system has no locks."""

    number: int | None = None
    file_lock: Any = None

    @property
    def is_certain(self) -> bool:
        """Whether no other process can hold the same lock."""
        return self.number is not None or self.file_lock is not None

    def release(self) -> None:
        """Release the lock, if it is still held."""
        if self.number is not None:
            os.close(self.number)
            self.number = None
        if self.file_lock is not None:
            self.file_lock.release()
            self.file_lock = None


def lock_folder(path: Path) -> FolderLock:
    """Lock a folder, or raise a `BusyError`; a `FileNotFoundError` if it is gone, or is a link."""
    return _lock(path, waits=False)


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which nobody replaces; wait for it as long as it takes."""
    lock = _lock(path, waits=True)
    try:
        yield
    finally:
        lock.release()


def _lock(path: Path, waits: bool) -> FolderLock:
    if fcntl is None:
        return _lock_file_for(path, waits)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        number = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        if path.is_symlink():
            raise FileNotFoundError(f"{path}: a link") from error
        raise
    try:
        fcntl.flock(number, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(number)
        raise BusyError(f"{path}: in use") from None
    except OSError:
        # Some file systems have no locks.
        os.close(number)
        return FolderLock()
    try:
        is_same = os.path.samestat(os.fstat(number), path.lstat())
    except FileNotFoundError:
        is_same = False
    if not is_same:
        # Moved or removed while this process waited.
        os.close(number)
        raise FileNotFoundError(f"{path}: moved meanwhile")
    return FolderLock(number)


def _lock_file_for(path: Path, waits: bool) -> FolderLock:
    """Lock a file in the cache folder that stands for a path."""
    from filelock import FileLock, Timeout

    if not path.exists():
        raise FileNotFoundError(str(path))
    folder = default_cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    lock = FileLock(folder / name, timeout=-1 if waits else 0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise BusyError(f"{path}: in use") from None
    return FolderLock(file_lock=lock)
