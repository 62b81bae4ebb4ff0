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

_PARTIAL, REPLACED = ".partial", ".replaced"
_HASHED_BYTES = 1 << 22
SURROGATES = re.compile("[\ud800-\udfff]")  # bytes of file names that are not UTF-8
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
_FULL = (errno.ENOSPC, errno.EDQUOT)
_WRITE_ERRORS = (*_FULL, errno.EIO, errno.EFBIG, errno.EROFS)
_LARGEST_JSON = 1 << 28


def open_regular(path: str | Path, *, follow_links: bool = True) -> BufferedReader:
    """Open a file to read; a pipe or a device, which may never end, is an `InputError`.

    What is checked is the open file, and not its name, behind which another may appear.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    # Otherwise opening a pipe waits for a writer.
    flags |= getattr(os, "O_NONBLOCK", 0)
    if not follow_links:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    number = os.open(path, flags)
    kind = stat.S_IFMT(os.fstat(number).st_mode)
    if kind != stat.S_IFREG:
        os.close(number)
        what = _KINDS.get(kind, "a device")
        raise InputError(f"{os.fspath(path)}: {what}, not a file; copy its content to a file")
    return open(number, "rb")  # noqa: PTH123 - of a number


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which becomes `path` on success and is removed on any error."""
    if path.is_dir():
        raise InputError(f"{path}: a folder is in the way of the file; move it away")
    with _writing(path), claimed(path, lambda aside: aside.touch(exist_ok=False)) as aside:
        try:
            yield aside
            _flush(aside)
            os.replace(aside, path)  # noqa: PTH105 - known to be atomic
        finally:
            aside.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder, which replaces `path` on success; on any error nothing has changed."""
    path = path.resolve()
    made = make_parents(path)
    earlier = aside_of(path, REPLACED)
    try:
        with _writing(path), claimed(path, Path.mkdir) as aside:
            try:
                yield aside
                for written in aside.iterdir():
                    _flush(written)
                with _held(path):
                    if path.exists():
                        path.rename(earlier)
                    aside.rename(path)
                made.clear()
            finally:
                if earlier.exists() and not path.exists():
                    earlier.rename(path)
                for left in (aside, earlier):
                    shutil.rmtree(left, ignore_errors=True)
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def temporary_folder(beside: Path | None = None) -> Iterator[Path]:
    """Yield a new folder, removed at the end, as are those of processes that died.

    It is beside `beside`, or in the system's temporary folder.
    """
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
    stem, suffix = re.escape(path.stem), re.escape(path.suffix)
    replaced = _abandoned(path.parent, rf"\.{stem}\.[0-9a-f]{{8}}\{REPLACED}{suffix}")
    for entry in replaced:
        with suppress(OSError):
            if not path.exists():
                entry.rename(path)
    sweep(path.parent, rf"\.{stem}\.[0-9a-f]{{8}}\.(partial|replaced){suffix}")


def sweep(folder: Path, names: str = r"\..*\.[0-9a-f]{8}\.partial(\..*)?") -> None:
    """Remove all that writers left behind in a folder when they died."""
    for entry in _abandoned(folder, names):
        shutil.rmtree(entry, ignore_errors=True)
        with suppress(OSError):
            entry.unlink(missing_ok=True)


def _abandoned(folder: Path, names: str) -> Iterator[Path]:
    """Yield entries of a folder that no process is writing, each of them locked meanwhile."""
    with suppress(OSError):
        for entry in sorted(folder.iterdir()):
            if re.fullmatch(names, entry.name):
                with _held(entry) as is_abandoned:
                    if is_abandoned:
                        yield entry


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
        reason = os.strerror(number).lower()
        if number in _FULL:
            with suppress(OSError):
                reason += f" ({shutil.disk_usage(path.parent).free / 1e6:,.1f} MB left)"
            reason += "; make room there, then run the command again"
        raise OSError(number, f"cannot be written, {reason}", str(path)) from error


def whole_path(path: Path) -> Path:
    """Return the absolute path of something to write, without links."""
    try:
        whole = path.resolve()
    except (OSError, RuntimeError):
        raise InputError(f"{path}: links that lead in a circle; choose another place") from None
    if not whole.name:
        raise InputError(f"{path}: the root of the disk; choose a folder in it")
    return whole


def check_writable(path: Path) -> None:
    """Raise an `InputError` if nothing can be written at `path`, before the work is done."""
    whole = whole_path(path)
    if SURROGATES.search(str(whole)):
        # Parquet's writer refuses such a name, but only after the training.
        raise InputError(f"{path}: a name with bytes that are no UTF-8; choose another")
    parent = next((folder for folder in whole.parents if folder.exists()), whole)
    if not parent.is_dir():
        raise InputError(f"{path}: {parent} is a file, not a folder; choose another place")
    try:
        # Tried: what `os.access` allows to root, as in /proc, may be impossible.
        tempfile.TemporaryFile(dir=parent).close()
    except OSError as error:
        raise InputError(
            f"{path}: cannot write in {parent} ({error.strerror}); choose another place"
        ) from error


def json_bytes(value: Any) -> bytes:
    """Return strict JSON with indentation."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    escaped = SURROGATES.sub(lambda half: f"\\u{ord(half[0]):04x}", text)
    return f"{escaped}\n".encode()


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON with indentation."""
    path.write_bytes(json_bytes(value))


def new_array_file(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Create an ``.npy`` file, and return it as a writable memory map."""
    path.unlink(missing_ok=True)
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        # Writing to a map on a full disk would kill the process.
        with path.open("r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
    return array


def read_json(path: Path) -> Any:
    """Read JSON, or raise an `InputError` that names the file."""
    try:
        with open_regular(path) as stream:
            if os.fstat(stream.fileno()).st_size > _LARGEST_JSON:
                raise ValueError("larger than any file of this kind")
            return json.loads(stream.read())
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
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while chunk := stream.read(_HASHED_BYTES):
            digest.update(chunk)
            if progress is not None:
                progress(len(chunk))
    whole = path.resolve()
    return {"path": str(whole), "bytes": whole.stat().st_size, "sha256": digest.hexdigest()}


def is_partial(name: str) -> bool:
    """Return whether a name is that of a file that is being written, or whose writer died."""
    return name.startswith(".") and (_PARTIAL in name or REPLACED in name)


def near(path: str | Path) -> Path:
    """Return a path relative to the current folder, if it is below it."""
    path, here = Path(path), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def in_shell(path: str | Path) -> str:
    """Return a path quoted for a shell, and never starting like an option."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def aside_of(path: Path, kind: str = _PARTIAL) -> Path:
    """Return a unique name beside `path`, on the same disk: only there a move is atomic."""
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}{kind}{path.suffix}")


def make_parents(path: Path) -> list[Path]:
    """Create the parent folders of `path`; return those that were created, the deepest first."""
    missing = list(takewhile(lambda folder: not folder.exists(), path.parents))
    path.parent.mkdir(parents=True, exist_ok=True)
    return missing


def _flush(path: Path) -> None:
    # So that it survives a power cut once it is moved into place.
    if path.is_file():
        with path.open("r+b") as stream:
            os.fsync(stream.fileno())
