"""Errors of files that cannot be read: one line that names the file, whatever its reader raises."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from opensetda.data.names import printable
from opensetda.errors import InputError, one_line


@contextmanager
def reading(path: str | Path, what: str = "the file", why: str | None = None) -> Iterator[None]:
    """Turn any error in reading `what` of a file into an `InputError` that says `why`."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeError as error:
        raise broken(path, "it is not UTF-8 text; save it as UTF-8", what) from error
    except Exception as error:
        raise broken(path, why or one_line(error, 160), what) from error


def broken(path: str | Path, why: str, what: str = "the file") -> InputError:
    """Return the error for a file, or a part of it, that cannot be read."""
    return InputError(f"{printable(str(path))}: cannot read {what}: {why}")


def unreadable(path: str | Path, error: OSError) -> InputError:
    """Return the error for a file that the system cannot read."""
    reason = error.strerror or one_line(error)
    return InputError(f"{printable(str(path))}: cannot be read ({reason}); check it")


def check_path(path: Path) -> None:
    """Raise an `InputError` for a path that leads nowhere, and cannot; a missing file may be."""
    with reading(path, "a file of this name"), suppress(FileNotFoundError, NotADirectoryError):
        path.stat()


def no_such(path: Path, is_like: Callable[[str], bool]) -> InputError:
    """Return the error for a missing file, with a name that `is_like` it if there is one."""
    problem = f"{printable(str(path))}: no such {'file' if path.suffix else 'folder'}"
    if not path.parent.is_dir():
        return InputError(f"{problem} (nor a folder {printable(str(path.parent))}); check the path")
    # Of many files, the first: a folder may hold a million.
    there = [entry.name for entry in islice(path.parent.iterdir(), 10_000) if is_like(entry.name)]
    close = difflib.get_close_matches(path.name, sorted(there), n=1)
    near = printable(str(path.with_name(close[0]))) if close else ""
    return InputError(f"{problem}; {f'did you mean {near}?' if near else 'check the name'}")
