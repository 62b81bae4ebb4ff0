"""Pictures that every browser can show, of modest size, whatever the originals are."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from opensetda.data.images.decoding import BrokenImageError, decode_image

LONGEST_SIDE = 1200

# Up to so many pixels a side nothing is lost: every pixel of a small picture counts.
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
    """The bytes of a picture, and what they are."""

    kind: str
    content: bytes
    is_placeholder: bool = False


def showable(path: Path) -> Picture:
    """Read an image and make one of it that a browser shows; a placeholder if it is broken."""
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
    """Return a picture that says in words why there is none."""
    words = escape(reason if len(reason) <= 44 else f"{reason[:43]}…")
    text = _PLACEHOLDER.format(title="No picture", reason=words)
    return Picture("image/svg+xml", text.encode(), is_placeholder=True)
