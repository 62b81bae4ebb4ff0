"""Files: regular ones to read, and files and folders that appear whole or not at all.

What is being written lies in a folder beside its place that only its writer may enter, has a random
name and is made exclusively: nobody can plant a link there, and two writers never share a file. It
is moved into place when it is complete; a link in that place is replaced, never written through.
The next writer of the same place removes what one that was killed left behind.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import math
import os
import secrets
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.errors import InputError, RunPausedError, one_line
from opensetda.system.locks import BusyError, FolderLock, lock_folder

_MARK = "_pieces"
_PARTIAL = ".partial-"
# Where there are no locks: no writer of ours leaves a folder untouched for so long.
_SURELY_DEAD_SECONDS = 86_400
# From fcntl.h and stdio.h of Linux: paths as they are, and the exchange of two.
_HERE = -100
_RENAME_EXCHANGE = 2
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.EACCES)


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
def new_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which becomes `path` on success and is removed on any error."""
    place = final_place(path)
    with _writing(path), private_folder(place) as private:
        aside = private / place.name
        aside.touch()
        yield aside
        _flush(aside)
        aside.replace(place)


@contextmanager
def new_folder(
    path: Path, put_in_place: Callable[[Path, Path], None] | None = None
) -> Iterator[Path]:
    """Yield a new folder, which replaces `path` on success; on any error nothing has changed.

    `put_in_place(new, path)` moves it there; what `path` was may be left at `new`.
    """
    place = final_place(path)
    with _writing(place), private_folder(place) as private:
        aside = private / place.name
        aside.mkdir()
        yield aside
        for written in filter(Path.is_file, aside.iterdir()):
            _flush(written)
        (put_in_place or exchange)(aside, place)


def exchange(new: Path, path: Path) -> None:
    """Move a folder to `path`; what was there is at `new` afterwards, if it was a folder.

    On Linux there is no moment without a folder at `path`.
    """
    if path.is_symlink():
        path.unlink()
    if not path.exists():
        new.rename(path)
    elif not _exchanged_at_once(new, path):
        earlier = new.with_name(f"{new.name}.replaced")
        path.rename(earlier)
        try:
            new.rename(path)
        except BaseException:
            earlier.rename(path)
            raise
        earlier.rename(new)


def _exchanged_at_once(new: Path, path: Path) -> bool:
    """Exchange two folders atomically; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    names = os.fsencode(new), os.fsencode(path)
    return int(rename(_HERE, names[0], _HERE, names[1], _RENAME_EXCHANGE)) == 0


@contextmanager
def unfinished_folder(path: Path, identity: str, overwrite: bool) -> Iterator[Path]:
    """Yield ``PATH.unfinished``, which becomes `path` on success; otherwise ``part-*`` in it stay.

    The next call gets them if it has the same `identity`, which is all that decides their content.
    """
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    check_new_folder("--out", path, [n for n in names if n.startswith((_MARK, "part-"))], overwrite)
    place = final_place(path)
    folder = place.with_name(f"{place.name}.unfinished")
    if not folder.parent.is_dir():
        raise InputError(f"--out {path}: there is no folder {path.parent}; make it first")
    mark = hashlib.sha256(identity.encode(errors="replace")).hexdigest()
    own_folder(folder)
    try:
        lock = lock_folder(folder)
    except BusyError:
        raise InputError(f"{folder}: another process is working on it; wait for it") from None
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
            shutil.rmtree(entry, ignore_errors=True)
        exchange(folder, place)
        shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:
        kept = f"finished parts are kept in {folder}, go on with the same command"
        raise RunPausedError(kept) from None
    finally:
        if [entry.name for entry in folder.glob("*")] in ([], [_MARK]):
            shutil.rmtree(folder, ignore_errors=True)
        lock.release()


@contextmanager
def temporary_folder(beside: Path | None = None) -> Iterator[Path]:
    """Yield a new folder beside `beside`, or in the system's own place, removed at the end."""
    if beside is None:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
    else:
        with private_folder(final_place(beside)) as scratch:
            yield scratch


@contextmanager
def private_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path` that only this user may enter; remove it at the end."""
    _remove_what_dead_writers_left(path)
    folder, lock = _locked_folder(path)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def is_being_written(path: Path) -> bool:
    """Return whether something is being written that will be moved to `path`."""
    place = final_place(path)
    prefix = f".{place.name}{_PARTIAL}"
    parent = place.parent
    return parent.is_dir() and any(entry.name.startswith(prefix) for entry in os.scandir(parent))


def _locked_folder(path: Path) -> tuple[Path, FolderLock]:
    """Make a folder of a random name beside `path`, and hold its lock while it is in use."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        folder = path.with_name(f".{path.name}{_PARTIAL}{secrets.token_hex(8)}")
        # Exclusive: an existing name, also of a link, is an error.
        folder.mkdir(mode=0o700)
        try:
            return folder, lock_folder(folder)
        except (BusyError, FileNotFoundError):
            # Another writer took it for one that a dead one left, before it had its lock.
            continue


def _remove_what_dead_writers_left(path: Path) -> None:
    """Remove folders that writers of `path` left behind: those that nobody holds the lock of."""
    prefix = f".{path.name}{_PARTIAL}"
    if not path.parent.is_dir():
        return
    for entry in os.scandir(path.parent):
        if not entry.name.startswith(prefix) or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            lock = lock_folder(Path(entry.path))
        except (BusyError, OSError):
            continue
        if lock.is_certain or time.time() - entry.stat().st_mtime > _SURELY_DEAD_SECONDS:
            shutil.rmtree(entry.path, ignore_errors=True)
        lock.release()


def own_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder if it is missing; a link in its place is an `InputError`, not followed."""
    if path.is_symlink():
        raise InputError(f"{path}: a link, where a folder of ours should be; remove the link")
    path.mkdir(parents=True, exist_ok=True, mode=mode)


def final_place(path: Path) -> Path:
    """Return an absolute path whose last part is not followed if it is a link."""
    if path.name in ("", ".."):
        return path.resolve()
    return path.parent.resolve() / path.name


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
        whole = path.resolve() if path.exists() else final_place(path)
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
    if os.path.lexists(path) and not overwrite:
        raise InputError(f"{option} {path}: exists already; choose another name or add --overwrite")
    if not final_place(path).parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}; make it first")
    check_writable(path)


def check_new_folder(option: str, path: Path, names: Collection[str], overwrite: bool) -> None:
    """Raise an `InputError` unless a folder of files of these names can be made at `path`."""
    if path.is_file():
        raise InputError(f"{path}: a file is in the way; choose another {option}")
    if os.path.lexists(path) and not overwrite:
        add = "--overwrite" if option.startswith("-") else "overwrite=True"
        raise InputError(f"{path}: exists already; choose another {option} or add {add}")
    there = sorted(entry.name for entry in path.iterdir()) if path.exists() else []
    if strangers := [name for name in there if name not in names and not is_partial(name)]:
        advice = f"move it away or choose another {option}"
        raise InputError(f"{path}: holds {strangers[0]!r}, so it is not overwritten; {advice}")
    check_writable(path)


def new_array_file(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Create an ``.npy`` file, and return it as a writable memory map."""
    path.unlink(missing_ok=True)
    path.touch(exist_ok=False)
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
    path = Path(path)
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def in_shell(path: str | Path) -> str:
    """Return a path quoted for a shell, and never starting like an option."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def is_partial(name: str) -> bool:
    """Return whether a name is that of something being written, or whose writer died."""
    return name.startswith(".") and _PARTIAL in name


def _flush(path: Path) -> None:
    # So that it survives a power cut once it is moved into place.
    with path.open("r+b") as stream:
        os.fsync(stream.fileno())
