"""One image file to one array of RGB bytes, whatever the file holds.

Every reason why a file cannot be used comes out as a `BrokenImageError`, so that a run can
list the file and go on. Sizes are checked in the header: a decompression bomb is refused
before a pixel of it is unpacked.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import warnings
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from opensetda.data.images.tar_members import open_image

MAX_PIXELS = 2**27
"""Images of more pixels are refused: these are 134 megapixels, 400 MB as RGB."""

IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png"}
    | {".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
"""Endings of the files that count as images, in lower case."""

# Now, and not by the first thread that meets a rare format.
Image.init()
# A closed list: Pillow would also hand files to Ghostscript and other programs.
_FORMATS = tuple(
    name
    for name in ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "AVIF")
    if name in Image.OPEN
)

_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_REASONS = {
    errno.ENOENT: "no such file",
    errno.ENOTDIR: "no such file",
    errno.EISDIR: "a folder, not a file",
    errno.EACCES: "no permission to read it",
    errno.EPERM: "no permission to read it",
}

# Without a handler of its own, what Pillow logs would reach the terminal.
logging.getLogger("PIL").addHandler(logging.NullHandler())


class BrokenImageError(Exception):
    """An image that cannot be used; the text is the reason in a few words, without the path."""


def decode_image(path: str | Path, at_least: int | None = None) -> npt.NDArray[np.uint8]:
    """Read an image.

    The rotation that EXIF asks for is applied, transparency is laid on white, grey,
    palette, 16-bit and CMYK images become RGB; of an animation the first frame is taken.
    May be called from many threads.

    Parameters
    ----------
    path : str or Path
        The file, or one inside of a tar: ``shard.tar/image.jpg``.
    at_least : int, optional
        A side of so many pixels is enough: a large JPEG is then unpacked at a fraction of its
        size, in a fraction of the time.

    Returns
    -------
    array of uint8 of shape (height, width, 3)
        RGB; it may be read-only.

    Raises
    ------
    BrokenImageError
        The file cannot be read, is no image, is cut short or has too many pixels.
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
        # Pillow's decoders raise whatever they stumble over: struct.error, IndexError, ...
        raise BrokenImageError(_damage(error)) from error


def _upright(image: Image.Image) -> Image.Image:
    """Apply the rotation that a camera noted."""
    # Parsing EXIF takes longer than looking for it. What a TIFF notes, Pillow has applied.
    if "exif" not in image.info and "Raw profile type exif" not in image.info:
        return image
    try:
        turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        # Broken notes do not make the picture a broken one.
        return image
    return image if turn is None else image.transpose(turn)


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
    """Scale grey of more than 8 bits; the first of `whites` that nothing exceeds is white."""
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

    `warnings.catch_warnings` is not for threads; one filter for Pillow's own modules is,
    and it is put back where somebody has reset the filters.
    """
    global _QUIET
    if _QUIET is None or _QUIET not in warnings.filters:
        warnings.filterwarnings("ignore", module=r"PIL\.")
        _QUIET = warnings.filters[0]
