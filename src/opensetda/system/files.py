"""Files: regular ones to read, and files and folders that appear whole or not at all.

What is being written has a name of its own beside its place, and is locked. The system releases
the lock when the writer dies, so the next writer to that place knows what it may remove.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shlex
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.errors import InputError, one_line

_ASIDE = r"\.[0-9a-f]{8}\.(partial|replaced)"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_WRITE_ERRORS = (*_FULL, errno.EIO, errno.EFBIG, errno.EROFS)


def open_regular(path: str | Path, *, follow_links: bool = True) -> BufferedReader:
    """Open a file to read; a pipe or a device, which may never end, is an `InputError`."""
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    flags = 0 if follow_links else getattr(os, "O_NOFOLLOW", 0)
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | flags)
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
        what = kinds.get(stat.S_IFMT(mode), "a device")
        raise InputError(f"{os.fspath(path)}: {what}, not a file; copy its content to a file")
    return open(number, "rb")  # noqa: PTH123 - of a number


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which becomes `path` on success and is removed on any error."""
    if path.is_dir():
        raise InputError(f"{path}: a folder is in the way of the file; move it away")
    with _writing(path), claimed(path, Path.touch) as aside:
        try:
            yield aside
            _flush(aside)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder, which replaces `path` on success; on any error nothing has changed."""
    path = path.resolve()
    made, earlier = make_parents(path), aside_of(path, "replaced")
    with _writing(path), claimed(path, Path.mkdir) as aside:
        try:
            yield aside
            for written in filter(Path.is_file, aside.iterdir()):
                _flush(written)
            if path.exists():
                path.rename(earlier)
            aside.rename(path)
        finally:
            if earlier.exists() and not path.exists():
                earlier.rename(path)
            for left in (aside, earlier):
                shutil.rmtree(left, ignore_errors=True)
            remove_empty(made)


@contextmanager
def temporary_folder(beside: Path | None = None) -> Iterator[Path]:
    """Yield a new folder beside `beside`, or in the system's own place, removed at the end."""
    place = beside or Path(tempfile.gettempdir()) / "opensetda"
    with claimed(place, lambda aside: aside.mkdir(mode=0o700)) as aside:
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def claimed(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """Make what will become `path` under a name beside it, and lock it while it is written."""
    remove_abandoned(path)
    while True:
        aside = aside_of(path)
        make(aside)
        with _held(aside):
            # Another process may have taken it for abandoned before it was locked.
            if aside.exists():
                yield aside
                return


def remove_abandoned(path: Path) -> None:
    """Remove what writers of `path` left behind when they died; put back what they replaced."""
    for replaced in path.parent.glob(".*.replaced*"):
        if not path.exists() and re.fullmatch(_names_aside(path), replaced.name):
            replaced.rename(path)
    sweep(path.parent, _names_aside(path))


def sweep(folder: Path, names: str = r"\..*\.[0-9a-f]{8}\.partial(\..*)?") -> None:
    """Remove all that writers left behind in a folder when they died."""
    with suppress(OSError):
        for entry in [entry for entry in folder.iterdir() if re.fullmatch(names, entry.name)]:
            with _held(entry) as is_abandoned, suppress(OSError):
                if is_abandoned:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Lock a file or folder; yield False if another process has, or the system cannot."""
    number, is_held = None, False
    with suppress(ImportError, OSError):
        import fcntl

        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held = True
    try:
        yield is_held
    finally:
        if number is not None:
            os.close(number)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Name the file in an error of its disk; the system and the libraries mostly do not."""
    try:
        yield
    except OSError as error:
        # numpy has no number for a file that it could write in part only.
        number = error.errno or (errno.ENOSPC if " written" in str(error) else 0)
        if number not in _WRITE_ERRORS:
            raise
        advice = "; make room there, then run the command again" if number in _FULL else ""
        reason = f"cannot be written, {os.strerror(number).lower()}{advice}"
        raise OSError(number, reason, str(path)) from error


def check_writable(path: Path) -> None:
    """Raise an `InputError` if nothing can be written at `path`, before the work is done."""
    try:
        whole = path.resolve()
        str(whole).encode()
    except (OSError, RuntimeError, UnicodeEncodeError) as error:
        raise InputError(f"{path}: no path ({one_line(error)}); choose another place") from None
    parent = next((folder for folder in whole.parents if folder.exists()), whole)
    if not whole.name or not parent.is_dir():
        what = "is a file, not a folder" if whole.name else "is the root of the disk"
        raise InputError(f"{path}: {parent} {what}; choose another place")
    try:
        # Tried: what `os.access` allows to root, as in /proc, may be impossible.
        tempfile.TemporaryFile(dir=parent).close()
    except OSError as error:
        reason = f"cannot write in {parent} ({error.strerror})"
        raise InputError(f"{path}: {reason}; choose another place") from error


def new_array_file(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Create an ``.npy`` file, and return it as a writable memory map."""
    path.unlink(missing_ok=True)
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        # Writing to a map on a full disk would kill the process.
        with path.open("r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
    return array


def json_bytes(value: Any) -> bytes:
    """Return strict JSON with indentation; bytes of names that are no text are escaped."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    return f"{text}\n".encode(errors="backslashreplace")


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON with indentation."""
    path.write_bytes(json_bytes(value))


def read_json(path: Path) -> Any:
    """Read JSON, or raise an `InputError` that names the file."""
    try:
        with open_regular(path) as stream:
            return json.load(stream)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: missing; the run is not complete, fit again") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged ({one_line(error)}); fit again") from error


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: Python numbers, None for NaN and infinity."""
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def file_record(path: Path, progress: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Return the path, size and SHA-256 of a file; `progress` gets the bytes of each chunk."""
    digest, size = hashlib.sha256(), 0
    with open_regular(path) as stream:
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
            size += len(chunk)
            if progress is not None:
                progress(len(chunk))
    return {"path": str(path.resolve()), "bytes": size, "sha256": digest.hexdigest()}


def near(path: str | Path) -> Path:
    """Return a path relative to the current folder, if it is below it."""
    path, here = Path(path), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def in_shell(path: str | Path) -> str:
    """Return a path quoted for a shell, and never starting like an option."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def is_partial(name: str) -> bool:
    """Return whether a name is that of a file that is being written, or whose writer died."""
    return re.fullmatch(rf"\..*{_ASIDE}.*", name) is not None


def aside_of(path: Path, kind: str = "partial") -> Path:
    """Return a unique name beside `path`, on the same disk: only there a move is atomic."""
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}.{kind}{path.suffix}")


def _names_aside(path: Path) -> str:
    return rf"\.{re.escape(path.stem)}{_ASIDE}{re.escape(path.suffix)}"


def make_parents(path: Path) -> list[Path]:
    """Create the parent folders of `path`; return those that were created, the deepest first."""
    missing = list(takewhile(lambda folder: not folder.exists(), path.parents))
    path.parent.mkdir(parents=True, exist_ok=True)
    return missing


def remove_empty(folders: list[Path]) -> None:
    """Remove those of the folders that are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _flush(path: Path) -> None:
    # So that it survives a power cut once it is moved into place.
    with path.open("r+b") as stream:
        os.fsync(stream.fileno())
