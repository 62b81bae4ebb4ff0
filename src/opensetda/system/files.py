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
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.errors import InputError, one_line

_PARTIAL = ".partial"
_HASHED_BYTES = 1 << 22
_SURROGATES = re.compile("[\ud800-\udfff]")  # bytes of file names that are not UTF-8


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which becomes `path` on success and is removed on any error."""
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
    """Yield a new folder, which replaces `path` on success; on any error nothing has changed."""
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
        aside.rename(path)
        made.clear()
    finally:
        if earlier.exists() and not path.exists():
            earlier.rename(path)
        for left in (aside, earlier):
            shutil.rmtree(left, ignore_errors=True)
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


def check_writable(path: Path) -> None:
    """Raise an `InputError` if nothing can be written at `path`, before the work is done."""
    whole = path.resolve()
    if _SURROGATES.search(str(whole)):
        # Parquet's writer refuses such a name, but only after the training.
        raise InputError(f"{path}: a name with bytes that are no UTF-8; choose another")
    parent = next((folder for folder in whole.parents if folder.exists()), whole)
    if not parent.is_dir():
        raise InputError(f"{path}: {parent} is a file, not a folder; choose another place")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{path}: no permission to write in {parent}; choose another place")


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON with indentation."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    escaped = _SURROGATES.sub(lambda half: f"\\u{ord(half[0]):04x}", text)
    path.write_text(escaped + "\n", encoding="utf-8")


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
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: missing; the run is not complete, fit again") from None
    except (OSError, ValueError) as error:
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
    with path.open("rb") as stream:
        while chunk := stream.read(_HASHED_BYTES):
            digest.update(chunk)
            if progress is not None:
                progress(len(chunk))
    whole = path.resolve()
    return {"path": str(whole), "bytes": whole.stat().st_size, "sha256": digest.hexdigest()}


def is_partial(name: str) -> bool:
    """Return whether a name is that of a file whose writer died."""
    return name.startswith(".") and _PARTIAL in name


def near(path: str | Path) -> Path:
    """Return a path relative to the current folder, if it is below it."""
    path, here = Path(path), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def in_shell(path: str | Path) -> str:
    """Return a path quoted for a shell, and never starting like an option."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def aside_of(path: Path) -> Path:
    """Return a unique name beside `path`, on the same disk: only there a move is atomic."""
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}{_PARTIAL}{path.suffix}")


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
