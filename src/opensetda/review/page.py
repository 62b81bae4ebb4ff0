"""The page and its parts, from the templates that are installed along."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import jinja2

KEYS = (
    ("Enter, K", "keep the label that was given"),
    ("1 to 9", "take one of the likely classes"),
    ("0", "call it unknown"),
    ("C, /", "choose among all classes: type a few letters"),
    ("N, G", "name a new class; in a group: for all that are selected"),
    ("S, →", "skip to the next sample or group"),
    ("←", "back to the one before"),
    ("U, Ctrl+Z", "undo, any number of times"),
    ("J", "jump to a number"),
    ("[ and ]", "the list before, the next list"),
    ("Arrows", "in a group: move in the grid"),
    ("Space", "in a group: take a sample out, or in again"),
    ("O, Esc", "in a group: look at one sample, and back to the grid"),
    ("?", "show these keys"),
)
"""Every key and what it does, as the page and its test list them."""

_KINDS = {"css": "text/css", "js": "text/javascript"}
_FOLDER = resources.files("opensetda.review") / "templates"
# The report's, so that both look the same.
_COLOURS = resources.files("opensetda.report") / "templates"


class Asset(NamedTuple):
    """A file that the page asks for: what it is, and its bytes."""

    kind: str
    content: bytes


def render(run_name: str) -> bytes:
    """Return the page of a run; all names are escaped."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((_FOLDER / "review.html").read_text(encoding="utf-8"))
    return template.render(run=run_name, keys=KEYS).encode()


def assets() -> dict[str, Asset]:
    """Return style and scripts by the path under which they are served."""
    found = {}
    for file in _FOLDER.iterdir():
        kind = _KINDS.get(file.name.rpartition(".")[2])
        if kind is not None:
            found[f"/{file.name}"] = Asset(f"{kind}; charset=utf-8", file.read_bytes())
    light, dark = (
        (_COLOURS / f"{name}.css").read_text(encoding="utf-8") for name in ("light", "dark")
    )
    colours = f":root {{\n{light}}}\n@media (prefers-color-scheme: dark) {{ :root {{\n{dark}}} }}\n"
    found["/colours.css"] = Asset("text/css; charset=utf-8", colours.encode())
    return found
