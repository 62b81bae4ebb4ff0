"""Files for what a table holds unpacked, if it is too large for memory."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError, one_line
from opensetda.system.files import claimed

_BLOCK_BYTES = 1 << 22


@contextmanager
def scratch_file(
    folder: Path | None, of: Path, suffix: str, n_bytes: int | None = None
) -> Iterator[Path]:
    """Yield a new file to write to, which is removed if something goes wrong.

    `folder` None is a temporary folder that is removed when the program ends; `of` is the table,
    for messages; `n_bytes` is the final size of the file, for which the disk must have room.
    """
    advice = "make room there" if folder is not None else "make room there, or set TMPDIR"
    path = None
    try:
        folder = folder or _own_folder()
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if n_bytes is not None and n_bytes > free:
            left = f"{folder} has {free / 1e9:.1f} GB left"
            raise InputError(
                f"{of}: unpacked it takes {n_bytes / 1e9:.1f} GB, but {left}; {advice}"
            )
        number, name = tempfile.mkstemp(suffix, f"{of.stem[:40]}-", folder)
        os.close(number)
        path = Path(name)
        yield path
    except BaseException as error:
        if path is not None:
            path.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        place, reason = folder or tempfile.gettempdir(), error.strerror or one_line(error)
        raise InputError(f"{of}: cannot be unpacked in {place} ({reason}); {advice}") from error


def rows_of_columns(
    stream: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Iterator[npt.NDArray[Any]]:
    """Yield some rows at a time of a matrix that is written column by column."""
    length, width = shape
    step = max(1, _BLOCK_BYTES // (width * dtype.itemsize))
    for row in range(0, length, step):
        part = np.empty((width, min(step, length - row)), dtype=dtype)
        for place in range(width):
            stream.seek((place * length + row) * dtype.itemsize)
            stream.readinto(part[place].data)
        yield np.ascontiguousarray(part.T)


@cache
def _own_folder() -> Path:
    owner, stack = os.getpid(), ExitStack()
    place = Path(tempfile.gettempdir()) / "opensetda"
    # Not `temporary_folder`, which a forked process would remove when it ends.
    folder = stack.enter_context(claimed(place, lambda aside: aside.mkdir(mode=0o700)))

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)
            stack.close()

    atexit.register(remove)
    return folder


def remove_with(user: Any, file: Path) -> None:
    """Remove a file in the temporary folder once the object that uses it is deleted."""
    # Not at exit, which removes the whole folder: a forked process would do it, too.
    weakref.finalize(user, file.unlink, missing_ok=True).atexit = False
