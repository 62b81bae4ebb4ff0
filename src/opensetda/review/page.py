"""The page, its styles and scripts, and pictures that every browser can show."""

from __future__ import annotations

import html
import io
import threading
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from opensetda.data.images.decoding import BrokenImageError, decode_image
from opensetda.errors import visible
from opensetda.runs.folder import RunFolder
from opensetda.runs.pictures import Pictures

_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_FOLDER = resources.files("opensetda.review") / "templates"
# Small pictures are stored without loss.
LONGEST_SIDE = 1200
_LOSSLESS_SIDE = 256
_SVG = "image/svg+xml"
# About 20 MB.
_KEPT_PICTURES = 200
# The largest image takes 400 MB while it is made smaller, and a browser asks for six.
_UNPACKED_AT_ONCE = 2
# The report's, so that both look the same.
_COLOURS = resources.files("opensetda.report") / "templates"


class Content(NamedTuple):
    """A file of the page, or a picture: its media type and its bytes."""

    kind: str
    content: bytes


def assets() -> dict[str, Content]:
    """Return the page, its styles and scripts by their paths on the server."""
    found = {}
    for file in _FOLDER.iterdir():
        if kind := _KINDS.get(file.name.rpartition(".")[2]):
            found[f"/{file.name}"] = Content(f"{kind}; charset=utf-8", file.read_bytes())
    found["/"] = found.pop("/review.html")
    light, dark = ((_COLOURS / name).read_text("utf-8") for name in ("light.css", "dark.css"))
    colours = f":root {{\n{light}}}\n@media (prefers-color-scheme: dark) {{ :root {{\n{dark}}} }}\n"
    found["/colours.css"] = Content(found["/review.css"].kind, colours.encode())
    return found


class ShownPictures:
    """The pictures of a run's targets, the latest kept in memory; `images` is their folder."""

    def __init__(self, run: RunFolder, images: Path | None) -> None:
        self._pictures = Pictures(run, images)
        self._unpacking = threading.Semaphore(_UNPACKED_AT_ONCE)
        self.shown = lru_cache(_KEPT_PICTURES)(self._shown)

    def has(self, row: int) -> bool:
        """Return whether a target has a picture."""
        return self._pictures.file(row) is not None or self._pictures.thumbnail(row) is not None

    def _shown(self, row: int, small: bool) -> Content:
        """Return a picture, or a placeholder."""
        file = self._pictures.file(row)
        thumbnail = self._pictures.thumbnail(row)
        kept = None if thumbnail is None else Content("image/webp", thumbnail)
        if small and kept:
            return kept
        with self._unpacking:
            shown = placeholder("this sample has no image file") if file is None else showable(file)
        # The run may have kept a thumbnail of a file that is gone.
        return kept if kept and shown.kind == _SVG else shown


def showable(path: Path) -> Content:
    """Return an image in a form and size for browsers; a placeholder if it is broken."""
    try:
        image = Image.fromarray(decode_image(path, at_least=LONGEST_SIDE))
    except BrokenImageError as error:
        return placeholder(str(error))
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    form = "png" if max(image.size) <= _LOSSLESS_SIDE else "jpeg"
    image.save(stream, form, quality=88)
    return Content(f"image/{form}", stream.getvalue())


def placeholder(reason: str) -> Content:
    """Return a picture that says why there is none."""
    # Also of what XML does not allow.
    reason = visible(reason)
    words = reason if len(reason) <= 44 else f"{reason[:43]}…"
    text = (_FOLDER / "placeholder.svg").read_text("utf-8")
    return Content(_SVG, text.replace("{{ reason }}", html.escape(words)).encode())
