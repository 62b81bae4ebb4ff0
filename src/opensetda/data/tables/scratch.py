"""Files that are needed while the program runs: tables that do not fit into memory."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from opensetda.errors import InputError


@contextmanager
def scratch_file(
    folder: Path | None, of: Path, suffix: str, n_bytes: int | None = None
) -> Iterator[Path]:
    """Yield a new file to write to, which is gone if something goes wrong.

    Parameters
    ----------
    folder : Path or None
        Where it is made; who gives the folder removes it. None: a folder of its own where the
        system keeps such files, which is removed when the program ends.
    of : Path
        What is written there in another form, for messages.
    suffix : str
        What the name ends in.
    n_bytes : int, optional
        How large it becomes: that there is room for it is looked at first.
    """
    advice = "make room there" if folder is not None else "make room there, or set TMPDIR"
    try:
        if folder is None:
            folder = _own_folder()
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if n_bytes is not None and n_bytes > free:
            raise InputError(
                f"{of}: unpacked it takes {n_bytes / 1e9:.1f} GB, but {folder} has "
                f"{free / 1e9:.1f} GB left; {advice}"
            )
        number, name = tempfile.mkstemp(suffix, f"{of.stem[:40]}-", folder)
        os.close(number)
    except OSError as error:
        raise _cannot_write(of, folder, error, advice) from error
    path = Path(name)
    try:
        yield path
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _cannot_write(of, folder, error, advice) from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def remove_with(user: Any, file: Path) -> None:
    """Remove a file once its user is gone."""
    # Not at exit, where the whole folder goes: a forked process would do it, too.
    weakref.finalize(user, file.unlink, missing_ok=True).atexit = False


@cache
def _own_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="opensetda-"))
    owner = os.getpid()

    def remove() -> None:
        # Not by a process that was forked from this one, and ends before it.
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _cannot_write(of: Path, folder: Path | None, error: OSError, advice: str) -> InputError:
    place = folder or tempfile.gettempdir()
    reason = error.strerror or " ".join(str(error).split())
    return InputError(f"{of}: cannot be unpacked in {place} ({reason}); {advice}")
