"""Files: regular ones to read, and files and folders that appear whole or not at all.

What is being written has a name of its own beside its place, always the same: the next writer
overwrites what one that was killed left behind.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.errors import InputError, RunPausedError, one_line

_MARK = "_pieces"
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS)


def open_regular(path: str | Path) -> BufferedReader:
    """Open a file to read; a pipe or a device, which may never end, is an `InputError`."""
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        what = "a folder, a device or a pipe, not a file"
        raise InputError(f"{os.fspath(path)}: {what}; copy its content to a file")
    return open(number, "rb")  # noqa: PTH123 - of a number


@contextmanager
def new_file(path: Path, kind: str = "partial") -> Iterator[Path]:
    """Yield a path to write to, which becomes `path` on success and is removed on any error."""
    aside = _aside_of(path, kind)
    with _writing(path):
        try:
            aside.write_bytes(b"")
            yield aside
            _flush(aside)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder, which replaces `path` on success; on any error nothing has changed."""
    path = path.resolve()
    earlier = _aside_of(path, "replaced")
    with _writing(path), _empty_folder(_aside_of(path)) as aside:
        yield aside
        for written in filter(Path.is_file, aside.iterdir()):
            _flush(written)
        shutil.rmtree(earlier, ignore_errors=True)
        try:
            if path.exists():
                path.rename(earlier)
            aside.rename(path)
        finally:
            if earlier.exists() and not path.exists():
                earlier.rename(path)
            shutil.rmtree(earlier, ignore_errors=True)


@contextmanager
def unfinished_folder(path: Path, identity: str, overwrite: bool) -> Iterator[Path]:
    """Yield ``PATH.unfinished``, which becomes `path` on success; otherwise ``part-*`` in it stay.

    The next call gets them if it has the same `identity`, which is all that decides their content.
    """
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    check_new_folder("--out", path, [n for n in names if n.startswith((_MARK, "part-"))], overwrite)
    folder = path.absolute().with_name(f"{path.name}.unfinished")
    if not folder.parent.is_dir():
        raise InputError(f"--out {path}: there is no folder {path.parent}; make it first")
    mark = hashlib.sha256(identity.encode(errors="replace")).hexdigest()
    folder.mkdir(exist_ok=True)
    lock = lock_folder(folder, "another process is working on it; wait for it")
    try:
        there = [entry for entry in folder.iterdir() if not is_partial(entry.name)]
        earlier = (folder / _MARK).read_text() if (folder / _MARK) in there else None
        if there and earlier != mark and not (earlier and overwrite):
            advice = "choose another --out" + " or add --overwrite" * bool(earlier)
            raise InputError(f"{folder}: holds parts of other data, model or options; {advice}")
        for entry in there if earlier != mark else ():
            entry.unlink()
        with new_file(folder / _MARK) as aside:
            aside.write_text(mark)
        yield folder
        for entry in [entry for entry in folder.iterdir() if is_partial(entry.name)]:
            entry.unlink()
        shutil.rmtree(path, ignore_errors=True)
        folder.rename(path)
    except KeyboardInterrupt:
        kept = f"finished parts are kept in {folder}, go on with the same command"
        raise RunPausedError(kept) from None
    finally:
        if [entry.name for entry in folder.glob("*")] in ([], [_MARK]):
            shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextmanager
def temporary_folder(beside: Path | None = None) -> Iterator[Path]:
    """Yield a new folder beside `beside`, or in the system's own place, removed at the end."""
    if beside is None:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
    else:
        place = beside.with_name(f"{beside.stem}.scratch{beside.suffix}")
        with _empty_folder(_aside_of(place)) as scratch:
            yield scratch


@contextmanager
def _empty_folder(folder: Path) -> Iterator[Path]:
    """Make a folder in the place of one that a killed process left; remove it at the end."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Name the file in an error of its disk; the system and the libraries mostly do not."""
    try:
        yield
    except OSError as error:
        if error.errno not in _WRITE_ERRORS:
            raise
        reason = f"cannot be written, {os.strerror(error.errno).lower()}"
        raise OSError(error.errno, reason, str(path)) from error


def check_writable(path: Path) -> None:
    """Raise an `InputError` if nothing can be written at `path`, before the work is done."""
    try:
        whole = path.resolve()
        str(whole).encode()
        parent = next((folder for folder in whole.parents if folder.exists()), whole)
        # Tried: what `os.access` allows to root, as in /proc, may be impossible.
        tempfile.TemporaryFile(dir=parent).close()
    except (OSError, RuntimeError, UnicodeEncodeError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise InputError(f"{path}: cannot be written ({reason}); choose another place") from None


def check_new_file(option: str, path: Path, suffixes: Sequence[str], overwrite: bool) -> None:
    """Raise an `InputError` that names the `option` unless a file can be made at `path`.

    Its name must end in one of `suffixes` (lower case); an existing file needs `overwrite`.
    """
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{option} {path}: the name must end in {' or '.join(suffixes)}")
    if path.is_dir():
        raise InputError(f"{option} {path}: a folder is in the way; choose another name")
    if path.exists() and not overwrite:
        raise InputError(f"{option} {path}: exists already; choose another name or add --overwrite")
    if not path.resolve().parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}; make it first")
    check_writable(path)


def check_new_folder(option: str, path: Path, names: Collection[str], overwrite: bool) -> None:
    """Raise an `InputError` unless a folder of files of these names can be made at `path`."""
    if path.is_file():
        raise InputError(f"{path}: a file is in the way; choose another {option}")
    if path.exists() and not overwrite:
        add = "--overwrite" if option.startswith("-") else "overwrite=True"
        raise InputError(f"{path}: exists already; choose another {option} or add {add}")
    there = sorted(entry.name for entry in path.iterdir()) if path.exists() else []
    if strangers := [name for name in there if name not in names and not is_partial(name)]:
        advice = f"move it away or choose another {option}"
        raise InputError(f"{path}: holds {strangers[0]!r}, so it is not overwritten; {advice}")
    check_writable(path)


def lock_folder(path: Path, busy: str) -> int | None:
    """Lock a folder until the number is closed or the process dies; an `InputError` if it is busy.

    None where there are no locks (Windows, some file systems): two processes are not prevented.
    """
    with suppress(OSError, ImportError):
        import fcntl

        number = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return number
        except BlockingIOError:
            os.close(number)
            raise InputError(f"{path}: {busy}") from None
    return None


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


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: Python numbers, None for NaN and infinity."""
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def file_record(path: Path) -> dict[str, Any]:
    """Return the path, size and SHA-256 of a file."""
    with open_regular(path) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return {"path": str(path.resolve()), "bytes": stream.tell(), "sha256": digest}


def near(path: str | Path) -> Path:
    """Return a path relative to the current folder, if it is below it."""
    path, here = Path(path), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def in_shell(path: str | Path) -> str:
    """Return a path quoted for a shell, and never starting like an option."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def is_partial(name: str) -> bool:
    """Return whether a name is that of a file that is being written, or whose writer died."""
    return name.startswith(".") and ".partial" in name


def _aside_of(path: Path, kind: str = "partial") -> Path:
    """Return the name of what is being written: on the same disk, where a move is atomic."""
    return path.with_name(f".{path.stem}.{kind}{path.suffix}")


def _flush(path: Path) -> None:
    # So that it survives a power cut once it is moved into place.
    with path.open("r+b") as stream:
        os.fsync(stream.fileno())
