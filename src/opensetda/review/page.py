"""The page, its styles and scripts, and pictures that every browser can show."""

from __future__ import annotations

import io
from importlib import resources
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import jinja2

from opensetda.data.images.decoding import BrokenImageError, decode_image

KEYS = (
    ("Enter, K", "keep the label"),
    ("1 to 9", "take one of the likely classes"),
    ("0", "call it unknown"),
    ("C, /", "choose among all classes; type to search"),
    ("N, G", "name a new class; in a group: for all selected samples"),
    ("S, →", "skip to the next sample or group"),
    ("←", "back to the previous one"),
    ("U, Ctrl+Z", "undo, any number of times"),
    ("J", "jump to a number"),
    ("[ and ]", "previous list, next list"),
    ("Arrows", "in a group: move in the grid"),
    ("Space", "in a group: deselect a sample, or select it again"),
    ("O, Esc", "in a group: look at one sample, and back to the grid"),
    ("?", "show these keys"),
)
"""Every key and what it does; shown on the page."""

_KINDS = {"css": "text/css", "js": "text/javascript"}
_FOLDER = resources.files("opensetda.review") / "templates"
# The report's, so that both look the same.
_COLOURS = resources.files("opensetda.report") / "templates"


class Asset(NamedTuple):
    """A file of the page: its media type and its bytes."""

    kind: str
    content: bytes


def render(run_name: str) -> bytes:
    """Return the page of a run; all names are escaped."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((_FOLDER / "review.html").read_text(encoding="utf-8"))
    return template.render(run=run_name, keys=KEYS).encode()


def assets() -> dict[str, Asset]:
    """Return styles and scripts by their paths on the server."""
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


LONGEST_SIDE = 1200

# Small pictures are stored without loss.
_LOSSLESS_SIDE = 256

_PLACEHOLDER = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 320 240">
<rect x="8" y="8" width="304" height="224" rx="10" fill="none" stroke="#8a8f98" \
stroke-dasharray="6 6"/>
<text x="160" y="112" text-anchor="middle" font-family="system-ui, sans-serif" font-size="17" \
fill="#8a8f98">{title}</text>
<text x="160" y="138" text-anchor="middle" font-family="system-ui, sans-serif" font-size="13" \
fill="#8a8f98">{reason}</text>
</svg>
"""


class Picture(NamedTuple):
    """A picture: its media type and its bytes."""

    kind: str
    content: bytes
    is_placeholder: bool = False


def showable(path: Path) -> Picture:
    """Return an image in a form and size for browsers; a placeholder if it is broken."""
    from PIL import Image

    try:
        image = Image.fromarray(decode_image(path, at_least=LONGEST_SIDE))
    except BrokenImageError as error:
        return placeholder(str(error))
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    if max(image.size) <= _LOSSLESS_SIDE:
        image.save(stream, "PNG")
        return Picture("image/png", stream.getvalue())
    image.save(stream, "JPEG", quality=88)
    return Picture("image/jpeg", stream.getvalue())


def placeholder(reason: str) -> Picture:
    """Return a picture that says why there is none."""
    words = escape(reason if len(reason) <= 44 else f"{reason[:43]}…")
    text = _PLACEHOLDER.format(title="No picture", reason=words)
    return Picture("image/svg+xml", text.encode(), is_placeholder=True)
