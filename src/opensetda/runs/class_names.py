"""Which names a person may give to a new class."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from opensetda.errors import InputError

LONGEST_NAME = 200

# Controls, halves of characters, and the ends of lines and paragraphs that are no controls.
_REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})
# They turn the direction of what follows: a name could look like another one.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def check_name(name: str, in_use: Iterable[str], unknown_label: str) -> str:
    """Return a label as it is to be kept, or raise an `InputError` that says what is wrong.

    A name in use is taken as it is. A new one is trimmed and composed (NFC), so that the same
    word typed on two machines is the same class.

    Parameters
    ----------
    name : str
        What was typed or chosen.
    in_use : iterable of str
        The known classes, and the new ones so far.
    unknown_label : str
        What unknowns are called.
    """
    in_use = [*in_use, unknown_label]
    if name in in_use:
        return name
    name = unicodedata.normalize("NFC", name).strip()
    if not name:
        raise InputError("the name is empty; type one")
    if len(name) > LONGEST_NAME:
        raise InputError(f"the name has {len(name)} characters; {LONGEST_NAME} are allowed")
    if any(unicodedata.category(c) in _REFUSED or c in _TURNING for c in name):
        raise InputError("the name has control characters in it; type it by hand")
    if name in in_use:
        return name
    alike = next((other for other in in_use if other.casefold() == name.casefold()), None)
    if alike == unknown_label:
        # Files that say "unknown" and "Unknown" and mean two things would be read wrongly.
        raise InputError(f"{name!r} is too like {alike!r}, which means no class; choose another")
    if alike is not None:
        raise InputError(f"{name!r} is too like the class {alike!r}; take that or choose another")
    return name
