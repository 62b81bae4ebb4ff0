"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.errors import InputError

_PARTIAL = ".partial"
_HASHED_BYTES = 1 << 22


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to, which becomes `path` on success.

    On any error, Ctrl-C included, an earlier `path` is unchanged and nothing half-written
    is left.
    """
    if path.is_dir():
        raise InputError(f"{path}: a folder is in the way of the file; move it away")
    aside = aside_of(path)
    try:
        yield aside
        _flush(aside)
        os.replace(aside, path)  # noqa: PTH105 - known to be atomic
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path`, which becomes `path` on success.

    An earlier folder at `path` is removed after the new one is complete. Parent folders that
    were created are removed again on an error.
    """
    path = path.resolve()
    made = make_parents(path)
    aside, earlier = aside_of(path), aside_of(path)
    try:
        aside.mkdir()
        yield aside
        for written in aside.iterdir():
            _flush(written)
        if path.exists():
            path.rename(earlier)
        try:
            aside.rename(path)
        except BaseException:
            if earlier.exists():
                earlier.rename(path)
            raise
        made.clear()
    finally:
        for left in (aside, earlier):
            shutil.rmtree(left, ignore_errors=True)
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


def check_writable(path: Path) -> None:
    """Raise an `InputError` if nothing can be written at `path`, before the work is done."""
    whole = path.resolve()
    try:
        str(whole).encode("utf-8")
    except UnicodeEncodeError:
        # Parquet's writer refuses such a name, but only after the training.
        raise InputError(f"{path}: a name with bytes that are no UTF-8; choose another") from None
    parent = whole.parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise InputError(f"{path}: {parent} is a file, not a folder; choose another place")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{path}: no permission to write in {parent}; choose another place")


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON with indentation."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    # Bytes of file names that are not UTF-8 are lone surrogates, which JSON can only escape.
    halves = re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)
    path.write_text(halves + "\n", encoding="utf-8")


def new_array_file(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Create an ``.npy`` file, and return it as a writable memory map.

    Space on the disk is allocated now: writing to a map on a full disk would kill the process.
    """
    path.unlink(missing_ok=True)
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
    return array


def read_json(path: Path) -> Any:
    """Read JSON, or raise an `InputError` that names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: missing; the run is not complete, fit again") from None
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: damaged ({reason}); fit again") from error


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: Python numbers, None for NaN and infinity."""
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def file_record(path: Path, progress: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Return the path, size and SHA-256 of a file.

    `progress` is called with the number of bytes of every chunk read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_HASHED_BYTES):
            digest.update(chunk)
            if progress is not None:
                progress(len(chunk))
    size = path.stat().st_size
    return {"path": str(path.resolve()), "bytes": size, "sha256": digest.hexdigest()}


def is_partial(name: str) -> bool:
    """Return whether a name is that of a file whose writer died."""
    return name.startswith(".") and _PARTIAL in name


def near(path: str | Path) -> Path:
    """Return a path relative to the current folder, if it is below it."""
    path, here = Path(path), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def in_shell(path: str | Path) -> str:
    """Return a path quoted for a shell, and never starting like an option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def aside_of(path: Path) -> Path:
    """Return a unique name beside `path`; see `is_partial`."""
    # In the same folder, hence on the same disk: only there a move is atomic.
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}{_PARTIAL}{path.suffix}")


def make_parents(path: Path) -> list[Path]:
    """Create the parent folders of `path`; return those that were created, the deepest first."""
    missing = []
    parent = path.parent
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    path.parent.mkdir(parents=True, exist_ok=True)
    return missing


def _flush(path: Path) -> None:
    """Sync a file to disk, so that it survives a power cut once moved into place."""
    if path.is_file():
        with path.open("r+b") as stream:
            os.fsync(stream.fileno())
