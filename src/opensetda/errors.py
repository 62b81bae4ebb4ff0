"""Errors that are the caller's to fix, and text from outside as it may be shown."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")

# Control characters, which a terminal obeys; ends of lines; marks that turn the direction of the
# text that follows; and halves of characters, which cannot be printed.
_UNSEEN = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


class InputError(ValueError):
    """Wrong input or use: one line that names file, row or setting, and says what to do."""


class ListedError(InputError):
    """Several things that are wrong at once: a summary, a line for each, and what to do."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


class RunPausedError(Exception):
    """Ctrl-C, but nothing is lost; typer would lose the text of a `KeyboardInterrupt`."""


def visible(text: str) -> str:
    r"""Return text for a terminal: names from outside may hold ``\x1b`` and other commands."""
    return _UNSEEN.sub(lambda unseen: unseen[0].encode("unicode_escape").decode(), text)


def choice(name: str, names: Iterable[str]) -> str:
    """Return what to choose in place of a name that does not exist, the nearest first."""
    there = list(names)
    near = difflib.get_close_matches(name.lower(), there, n=1)
    hint = f"did you mean {near[0]!r}? There are" if near else "choose one of"
    return f"{hint} {', '.join(there)}"


def checked_settings(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Return a pydantic dataclass; an `InputError` names the setting that is wrong."""
    from pydantic import TypeAdapter, ValidationError

    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise InputError(f"setting {prefix}{name} does not exist; {choice(name, names)}")
    try:
        return TypeAdapter(cls).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        wrong = f"{prefix}{first['loc'][0]}={first['input']}"
        raise InputError(f"setting {wrong}: {first['msg']}") from None


def one_line(error: BaseException, most: int | None = None) -> str:
    """Return the text of an error as one line of at most `most` characters, cut between words."""
    return cut(" ".join(str(error).split()), most) or type(error).__name__


def cut(text: str, most: int | None) -> str:
    """Return a text of at most `most` characters; what is left out is "...", from a space on."""
    if most is None or len(text) <= most:
        return text
    whole, space, _ = text[: most - 3].rpartition(" ")
    return f"{whole if space else text[: most - 4]} ..."
