"""Image files to arrays of RGB bytes.

A file that cannot be used raises a `BrokenImageError`, so that a run can list it and go on. Sizes
are checked in the header: a decompression bomb is refused before any pixel is decoded.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import warnings
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from opensetda.data.images.tar_members import open_image

MAX_PIXELS = 2**27
"""Images of more pixels are refused: 134 megapixels, 400 MB as RGB."""

IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png"}
    | {".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
"""Endings of image files, in lower case."""

# Here, and not in the first thread that meets a rare format.
Image.init()
# A closed list: Pillow would also hand files to Ghostscript and other programs.
_FORMATS = tuple(
    name
    for name in ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "AVIF")
    if name in Image.OPEN
)

_REASONS = {
    errno.ENOENT: "no such file",
    errno.ENOTDIR: "no such file",
    errno.EISDIR: "a folder, not a file",
    errno.EACCES: "no permission to read it",
    errno.EPERM: "no permission to read it",
}

# Without a handler, Pillow's log messages would reach the terminal.
logging.getLogger("PIL").addHandler(logging.NullHandler())


class BrokenImageError(Exception):
    """An image that cannot be used; the text is the reason in a few words, without the path."""


def decode_image(path: str | Path, at_least: int | None = None) -> npt.NDArray[np.uint8]:
    """Read an image.

    EXIF rotation is applied, transparency becomes white, and grey, palette, 16-bit and CMYK
    images become RGB; of an animation the first frame is taken. Thread-safe.

    Parameters
    ----------
    path : str or Path
        The file, or one inside a tar: ``shard.tar/image.jpg``.
    at_least : int, optional
        Sufficient side in pixels: a large JPEG is then decoded at a fraction of its size, in
        less time.

    Returns
    -------
    array of uint8 of shape (height, width, 3)
        RGB; it may be read-only.

    Raises
    ------
    BrokenImageError
        The file cannot be read, is not an image, is cut short or has too many pixels.
    """
    try:
        with open_image(path) as stream:
            if stream.seek(0, os.SEEK_END) == 0:
                raise BrokenImageError("empty file")
            stream.seek(0)
            return _decode(stream, at_least)
    except OSError as error:
        raise BrokenImageError(_REASONS.get(error.errno or 0) or _words(error)) from error
    except ValueError as error:  # a NUL in the path
        raise BrokenImageError(_words(error)) from error


def decode_bytes(content: bytes) -> npt.NDArray[np.uint8]:
    """Decode the content of an image file, as `decode_image` does."""
    if not content:
        raise BrokenImageError("empty file")
    return _decode(io.BytesIO(content))


def _decode(stream: IO[bytes], at_least: int | None = None) -> npt.NDArray[np.uint8]:
    _quiet_pillow()
    try:
        with Image.open(stream, formats=_FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise _bomb(f"{width} x {height}")
            if at_least is not None:
                image.draft(None, (at_least, at_least))
            image.load()
            return _rgb(_upright(image))
    except (BrokenImageError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        raise _bomb("too many") from error
    except UnidentifiedImageError as error:
        raise BrokenImageError("not an image") from error
    except Exception as error:
        # Pillow's decoders may raise anything: struct.error, IndexError, ...
        raise BrokenImageError(_damage(error)) from error


def _upright(image: Image.Image) -> Image.Image:
    """Apply the rotation that a camera noted."""
    # Parsing EXIF takes longer than looking for it. Pillow has applied that of a TIFF.
    if "exif" in image.info or "Raw profile type exif" in image.info:
        # Broken notes do not make the picture a broken one.
        with suppress(Exception):
            ImageOps.exif_transpose(image, in_place=True)
    return image


def _rgb(image: Image.Image) -> npt.NDArray[np.uint8]:
    if image.mode.startswith("I;16"):
        return _deep_grey(image, 65535)
    if image.mode == "I":
        return _deep_grey(image, 65535)
    if image.mode == "F":
        return _deep_grey(image, 1, 255, 65535)
    if image.has_transparency_data:
        pixels = image.convert("RGBA")
        image = Image.new("RGB", pixels.size, "white")
        image.paste(pixels, mask=pixels)
    if image.mode != "RGB":
        image = image.convert("RGB")
    return np.asarray(image)


def _deep_grey(image: Image.Image, *whites: float) -> npt.NDArray[np.uint8]:
    """Scale grey of more than 8 bits; white is the first of `whites` that no value exceeds."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float32), posinf=0, neginf=0)
    largest = float(values.max())
    white = next((white for white in whites if largest <= white), largest)
    grey = np.clip(np.rint(values * (255 / white)), 0, 255).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return np.repeat(grey[:, :, None], 3, axis=2)


def _bomb(size: str) -> BrokenImageError:
    return BrokenImageError(
        f"{size} pixels: more than {MAX_PIXELS:,} are refused as a decompression bomb"
    )


def _damage(error: Exception) -> str:
    text = str(error).lower()
    short = ("truncated", "end of file", "not enough", "unexpected eof", "broken png")
    if isinstance(error, EOFError) or any(word in text for word in short):
        return "cut short"
    return f"damaged ({_words(error)})"


def _words(error: Exception, most: int = 80) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    text = " ".join(str(text).split())
    return text if len(text) <= most else f"{text[:most]}..."


_QUIET: tuple[Any, ...] | None = None


def _quiet_pillow() -> None:
    """Keep Pillow's warnings (odd EXIF, large images) off the terminal.

    `warnings.catch_warnings` is not thread-safe, but one filter for Pillow's modules is. It
    is added again if other code has reset the filters.
    """
    global _QUIET
    if _QUIET is None or _QUIET not in warnings.filters:
        warnings.filterwarnings("ignore", module=r"PIL\.")
        _QUIET = warnings.filters[0]
