"""Names of classes and samples: what is refused, and which look the same."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

LONGEST_LABEL = 200  # characters of a class name
LONGEST_ID = 4096  # characters of a sample's name: the longest path of Linux
# Control characters, which names of files may hold, ends of lines, halves of surrogate pairs.
_NOT_IN_LABELS = "[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
_NOT_IN_IDS = "[\x00\ud800-\udfff]"
_FILLERS = "\u034f\u115f\u1160\u2800\u3164\uffa0"
# Some shape the characters beside them: words in Persian and Hindi need them, and emoji.
_SHAPING = frozenset("\u200c\u200d") | {*map(chr, range(0xFE00, 0xFE10))}


def label_problem(name: str) -> str | None:
    """Return what is wrong with the name of a class; None if nothing is."""
    problem = id_problem(name, LONGEST_LABEL, _NOT_IN_LABELS)
    return problem if problem or is_visible(name) else f"{shown(name)} cannot be seen"


def id_problem(name: str, longest: int = LONGEST_ID, wrong: str = _NOT_IN_IDS) -> str | None:
    """Return what is wrong with the name of a sample; None if nothing is."""
    if len(name) > longest:
        return f"{len(name):,} characters, at most {longest:,} are read"
    found = re.search(wrong, name)
    return found and f"{shown(name)} holds {found[0]!a}, which is no character of a name"


def is_visible(name: str) -> bool:
    """Return whether a name has a character that can be seen, and not only marks for others."""
    return any(unicodedata.category(c)[0] in "LNPS" for c in folded(name))


def _is_hidden(c: str) -> bool:
    return c in _FILLERS or unicodedata.category(c) in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")


def folded(name: str) -> str:
    """Return a name without case, Unicode form, white space at its ends and unseen characters."""
    seen = "".join(c for c in name if not _is_hidden(c) and c not in _SHAPING)
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


def printable(name: str) -> str:
    r"""Return a file's name as valid text: bytes that are not UTF-8 become \xff."""
    raw = re.sub("[\ud800-\udc7f\udd00-\udfff]", lambda half: ascii(half[0])[1:-1], name)
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
