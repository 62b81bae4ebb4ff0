"""Names of classes, samples and files: which are refused, look the same, or cannot be read."""

from __future__ import annotations

import difflib
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from opensetda.errors import InputError, one_line

LONGEST_LABEL = 200  # characters of a class name
LONGEST_ID = 4096  # characters of a sample's name: the longest path of Linux
# Control characters, which names of files may hold, ends of lines, halves of surrogate pairs.
_NOT_IN_LABELS = "[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
_NOT_IN_IDS = "[\x00\ud800-\udfff]"
# Unseen, whatever their category: fillers, and marks that shape the character before them.
_UNSEEN = re.compile("[\u034f\u115f\u1160\u2800\u3164\uffa0\ufe00-\ufe0f]")
_UNSEEN_CATEGORIES = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")

_FORMULA = re.compile(r"(?![-+]?[0-9.]+\Z)[=+\-@\t\r]")


def label_problem(name: str) -> str | None:
    """Return what is wrong with the name of a class; None if nothing is."""
    problem = id_problem(name, LONGEST_LABEL, _NOT_IN_LABELS)
    is_visible = any(unicodedata.category(c)[0] in "LNPS" for c in folded(name))
    return problem if problem or is_visible else f"{shown(name)} cannot be seen"


def id_problem(name: str, longest: int = LONGEST_ID, wrong: str = _NOT_IN_IDS) -> str | None:
    """Return what is wrong with the name of a sample; None if nothing is."""
    if len(name) > longest:
        return f"{len(name):,} characters, at most {longest:,} are read"
    found = re.search(wrong, name)
    return found and f"{shown(name)} holds {found[0]!a}, which is no character of a name"


def folded(name: str) -> str:
    """Return a name without case, Unicode form, white space at its ends and unseen characters."""
    plain = _UNSEEN.sub("", name)
    seen = "".join(c for c in plain if unicodedata.category(c) not in _UNSEEN_CATEGORIES)
    # Twice: the case of a composed character may be a decomposed one.
    composed = unicodedata.normalize("NFKC", seen).casefold()
    return unicodedata.normalize("NFKC", composed).strip()


def twins(names: Iterable[str]) -> tuple[str, ...]:
    """Return a warning, in one line, about classes whose names look alike; empty without any."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(folded(name), []).append(name)
    pairs = [sorted(group)[:2] for group in alike.values() if len(group) > 1]
    same = "differ only in case, white space or Unicode form: rename one if they are the same"
    return tuple(f"classes {one!a} and {other!a} {same}" for one, other in pairs[:1])


def shown(name: str, most: int = 60) -> str:
    """Return a name for a message: quoted, without control characters, and not too long."""
    return repr(name if len(name) <= most else f"{name[:most]}...")


def printable(name: str | Path) -> str:
    r"""Return a file's name as valid text: bytes that are not UTF-8 become \xff."""
    raw = re.sub("[\ud800-\udc7f\udd00-\udfff]", lambda half: ascii(half[0])[1:-1], str(name))
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def formula_warning(path: Path, cells: Iterable[str]) -> list[str]:
    """Return a warning, in one line, if cells of a CSV file start a formula in a spreadsheet.

    They are written as they are, so that names stay the same; negative numbers are no formulas.
    """
    if path.suffix.lower() != ".csv":
        return []
    found = next(filter(_FORMULA.match, cells), None)
    if found is None:
        return []
    problem = f"a cell is {shown(found)}, which a spreadsheet program may run as a formula"
    return [f"{printable(path)}: {problem}; import all columns as text"]


@contextmanager
def reading(path: str | Path, what: str = "the file") -> Iterator[None]:
    """Turn any error in reading `what` of a file into an `InputError` of one line."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeError as error:
        raise broken(path, "it is not UTF-8 text; save it as UTF-8", what) from error
    except MemoryError as error:
        raise broken(path, "it does not fit into memory, or is damaged", what) from error
    except Exception as error:
        raise broken(path, one_line(error, 160), what) from error


def broken(path: str | Path, why: str, what: str = "the file") -> InputError:
    """Return the error for a file, or a part of it, that cannot be read."""
    return InputError(f"{printable(path)}: cannot read {what}: {why}")


def unreadable(path: str | Path, error: OSError) -> InputError:
    """Return the error for a file that the system cannot read."""
    reason = error.strerror or one_line(error)
    return InputError(f"{printable(path)}: cannot be read ({reason}); check it")


def gone(path: str) -> InputError:
    """Return the error for a listed file that does not exist any more; it names what was deleted.

    Of a folder that is gone whole, the folder.
    """
    deleted = Path(path)
    while not os.path.lexists(deleted.parent):
        deleted = deleted.parent
    since = "was there when the command began and is gone"
    return InputError(f"{printable(deleted)}: {since}; restore it, and give the command again")


def check_path(path: Path) -> None:
    """Raise an `InputError` for a path that leads nowhere, and cannot; a missing file may be."""
    with reading(path, "a file of this name"), suppress(FileNotFoundError, NotADirectoryError):
        path.stat()


def check_exists(path: Path) -> None:
    """Raise an `InputError` for a path that leads nowhere, with a name that is like it."""
    check_path(path)
    is_in_archive = any(folder.is_file() for folder in path.parents)
    if not path.exists() and not is_in_archive:
        raise no_such(path, lambda name: True)


def no_such(path: Path, is_like: Callable[[str], bool]) -> InputError:
    """Return the error for a missing file, with a name that `is_like` it if there is one."""
    # As a path, "https://host/a" is "https:/host/a".
    if len(path.parts) > 1 and path.parts[0].endswith(":"):
        # A path has lost one of the two slashes.
        address = re.sub(r"^(\w+):/+", r"\1://", printable(path))
        return InputError(f"{address}: URLs are not read; download it")
    problem = f"{printable(path)}: no such {'file' if path.suffix else 'folder'}"
    if not path.parent.is_dir():
        return InputError(f"{problem} (nor a folder {printable(path.parent)}); check the path")
    # Of many files, the first: a folder may hold a million.
    there = [entry.name for entry in islice(path.parent.iterdir(), 10_000) if is_like(entry.name)]
    close = difflib.get_close_matches(path.name, sorted(there), n=1)
    near = printable(path.with_name(close[0])) if close else ""
    return InputError(f"{problem}; {f'did you mean {near}?' if near else 'check the name'}")
