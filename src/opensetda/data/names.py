"""Names of classes and samples: what is refused, and which look the same."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable

from opensetda.data.limits import LONGEST_ID, LONGEST_LABEL

# Control characters, separators of lines, and halves of surrogate pairs.
_NOT_IN_LABELS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# A file's name may hold control characters; nothing can be written with these.
_NOT_IN_IDS = re.compile("[\x00\ud800-\udfff]")
# Beside the category Cf: fillers, an empty Braille cell, and what only changes its neighbours.
_UNSEEN = frozenset("\u034f\u115f\u1160\u2800\u3164\uffa0") | {*map(chr, range(0xFE00, 0xFE10))}


# Control, format, private and unassigned characters, and ends of lines.
_HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
# Some shape the characters beside them: words in Persian and Hindi need them, and emoji.
_SHAPING = frozenset("\u200c\u200d") | {*map(chr, range(0xFE00, 0xFE10))}


def label_problem(name: str) -> str | None:
    """Return what is wrong with the name of a class; None if nothing is."""
    if problem := _problem(name, LONGEST_LABEL, _NOT_IN_LABELS):
        return problem
    return None if is_visible(name) else f"{shown(name)} cannot be seen"


def id_problem(name: str) -> str | None:
    """Return what is wrong with the name of a sample; None if nothing is."""
    return _problem(name, LONGEST_ID, _NOT_IN_IDS)


def _problem(name: str, longest: int, wrong: re.Pattern[str]) -> str | None:
    if len(name) > longest:
        return f"{len(name):,} characters, at most {longest:,} are read"
    if not name.isprintable() and (found := wrong.search(name)):
        return f"{shown(name)} holds {found[0]!a}, which is no character of a name"
    return None


def is_visible(name: str) -> bool:
    """Return whether a name has a character that can be seen, and not only marks for others."""
    return any(unicodedata.category(c)[0] in "LNPS" for c in folded(name))


def unseen(name: str) -> str | None:
    """Return the first character that cannot be seen and shapes no other one; None without any."""
    for c in name:
        hidden = c in _UNSEEN or unicodedata.category(c) in _HIDDEN_CATEGORIES
        if hidden and c not in _SHAPING:
            return f"U+{ord(c):04X} {unicodedata.name(c, '')}".rstrip()
    return None


def folded(name: str) -> str:
    """Return a name without what readers overlook; names with the same result look alike.

    That is upper and lower case, Unicode normalisation (NFKC), white space at the ends, and
    characters without width.
    """
    if name.isascii() and name.isprintable():
        return name.strip().casefold()
    seen = (c for c in name if c not in _UNSEEN and unicodedata.category(c) not in ("Cf", "Cc"))
    # Twice: the case of a composed character may be a decomposed one.
    composed = unicodedata.normalize("NFKC", "".join(seen)).casefold()
    return unicodedata.normalize("NFKC", composed).strip()


def twins(names: Iterable[str]) -> tuple[str, ...]:
    """Return a warning, in one line, about classes whose names look alike; empty without any."""
    alike = defaultdict(list)
    for name in names:
        alike[folded(name)].append(name)
    pairs = [sorted(group)[:2] for group in alike.values() if len(group) > 1]
    if not pairs:
        return ()
    first, second = pairs[0]
    how = "white space, case, forms of characters or what cannot be seen"
    quoted: Callable[[str], str] = shown
    if first.casefold() == second.casefold():
        how = "case"
    elif unicodedata.normalize("NFC", first) == unicodedata.normalize("NFC", second):
        # Both would be shown in the same way.
        how, quoted = "Unicode normalisation", ascii
    more = f" (and {len(pairs) - 1:,} more such pairs)" if len(pairs) > 1 else ""
    same = f"classes {quoted(first)} and {quoted(second)} differ only in {how}{more}"
    return (f"{same}: they are two classes; rename one if they are the same",)


def shown(name: str, most: int = 60) -> str:
    """Return a name for a message: quoted, without control characters, and not too long."""
    return repr(name if len(name) <= most else f"{name[:most]}...")


def printable(name: str) -> str:
    r"""Return a file's name as valid text: bytes that are not UTF-8 become \xff."""
    if name.isascii():
        return name
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # halves of pairs, which no file's name has
        return name.encode("utf-8", "backslashreplace").decode()
