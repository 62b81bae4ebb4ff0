"""Errors of files that cannot be read: one line that names the file, whatever its reader raises."""

from __future__ import annotations

import csv
import difflib
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from xml.etree.ElementTree import ParseError

import pyarrow as pa

from opensetda.data.names import printable
from opensetda.errors import InputError, one_line

# Not every exception: stopping a run is one, too.
_FOREIGN = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, RuntimeError, TypeError, ValueError),
    *(pa.ArrowException, csv.Error, struct.error, zipfile.BadZipFile, zlib.error, ParseError),
)


@contextmanager
def reading(path: str | Path, what: str, why: str | None = None) -> Iterator[None]:
    """Turn every error of a reader into an `InputError` that names the file.

    `what` is read of it, `why` it fails; None takes the words of the error.
    """
    try:
        yield
    except (InputError, MemoryError):
        raise
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeError as error:
        raise broken(path, what, "it is not UTF-8 text; save it as UTF-8") from error
    except _FOREIGN as error:
        raise broken(path, what, why or one_line(error, 160)) from error


def broken(path: str | Path, what: str, why: str = "the file is damaged") -> InputError:
    """Return the error for a file, or a part of it, that cannot be read."""
    return InputError(f"{printable(str(path))}: cannot read {what}: {why}")


def unreadable(path: str | Path, error: OSError) -> InputError:
    """Return the error for a file that the system cannot read."""
    reason = error.strerror or one_line(error)
    return InputError(f"{printable(str(path))}: cannot be read ({reason}); check it")


def check_path(path: Path) -> None:
    """Raise an `InputError` for a path that leads nowhere, and cannot; a missing file may be."""
    try:
        os.stat(path)  # noqa: PTH116 - Path.exists swallows some errors
    except (FileNotFoundError, NotADirectoryError):
        return
    except ValueError:
        raise InputError(f"{str(path)!a}: no file can have this name; give another") from None
    except OSError as error:
        raise unreadable(path, error) from error


def no_such(path: Path, is_like: Callable[[str], bool]) -> InputError:
    """Return the error for a missing file, with a name that `is_like` it if there is one."""
    problem = f"{printable(str(path))}: no such {'file' if path.suffix else 'folder'}"
    if path.is_symlink():
        return InputError(f"{problem}: a link to what does not exist")
    if {*"*?"} & {*path.name}:
        folder = printable(str(path.parent))
        return InputError(
            f"{problem}; a pattern in quotes stays as it is: give the folder {folder}"
        )
    if path.parts[0].startswith("~"):
        return InputError(f"{problem}; ~ in quotes stays as it is: write $HOME")
    if "\\" in path.name and os.sep == "/":
        return InputError(f"{problem}; write / between folders, not \\")
    if not path.parent.is_dir():
        return InputError(f"{problem} (nor a folder {printable(str(path.parent))}); check the path")
    # Of many files, the first: a folder may hold a million.
    there = [entry.name for entry in islice(path.parent.iterdir(), 10_000) if is_like(entry.name)]
    close = difflib.get_close_matches(path.name, sorted(there), n=1)
    hint = (
        f"did you mean {printable(str(path.with_name(close[0])))}?" if close else "check the name"
    )
    return InputError(f"{problem}; {hint}")
