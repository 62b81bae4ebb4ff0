"""Image files to arrays of RGB bytes, also inside WebDataset's tar shards.

Pillow's own limit refuses decompression bombs. Nothing of an archive is unpacked to disk. The
files of a sample in a shard share a key, the path up to the first dot of the file's name:
``a/0001.jpg`` and ``a/0001.cls``. Classes are read for a source only.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import tarfile
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from opensetda.data.names import printable, reading, unreadable
from opensetda.errors import InputError, one_line
from opensetda.system.files import open_regular

_SUFFIXES = ".avif .bmp .gif .jfif .jpe .jpeg .jpg .pbm .pgm .png .pnm .ppm .tif .tiff .webp"
IMAGE_SUFFIXES = frozenset(_SUFFIXES.split())
"""Endings of image files, in lower case."""
NO_FILE = "no such file"
LARGEST_IMAGE = 1 << 30  # bytes of an image file, or of an image in a tar shard

LARGE_PIXELS = 1 << 25
"""Images with more pixels are decoded one at a time, and reduced to at most so many."""

_one_large_image = threading.Lock()
_STRIP_PIXELS = 1 << 22
# Where Pillow keeps EXIF.
_EXIF = ("exif", "Raw profile type exif")

# Files that may hold the class, the first one counts.
_CLASS_ENDINGS = ("cls", "json", "txt")
_CLASS_KEYS = ("label", "class", "cls")

# Here, and not in the first thread that meets a rare format.
Image.init()
# A closed list: Pillow would also hand files to Ghostscript and other programs.
_KNOWN = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "AVIF")
_FORMATS = tuple(name for name in _KNOWN if name in Image.OPEN)

# What Pillow has to say about odd files must not reach the terminal.
logging.getLogger("PIL").addHandler(logging.NullHandler())
warnings.filterwarnings("ignore", module=r"PIL\.")


class Entry(NamedTuple):
    """One image: its printable name, its file, its class if any, its place in a list ("line 3")."""

    id: str
    path: str
    label: str | None
    place: str = ""


class BrokenImageError(Exception):
    """An image that cannot be used; the text is the reason in a few words, without the path."""


def decode_image(path: str | Path, at_least: int | None = None) -> npt.NDArray[np.uint8]:
    """Return the image ``image.jpg`` or ``shard.tar/image.jpg`` as RGB: (height, width, 3).

    EXIF rotation is applied, transparency becomes white; of an animation the first frame is taken.
    A large JPEG is decoded at a fraction of its size if a side of `at_least` pixels is sufficient.
    Images of more than `LARGE_PIXELS` are reduced by a whole number.
    """
    return decode_bytes(read_content(path), at_least)


def decode_bytes(content: bytes, at_least: int | None = None) -> npt.NDArray[np.uint8]:
    """Decode the content of an image file, as `decode_image` does."""
    if not content:
        raise BrokenImageError("empty file")
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            if at_least is not None:
                image.draft(None, (at_least, at_least))
            factor = _reduction(image)
            if factor == 1:
                image.load()
                return _rgb(_upright(image))
            with _one_large_image:
                # The decoder of JPEG reduces by 2, 4 or 8 itself.
                image.draft(None, (image.width // factor, image.height // factor))
                image.load()
                return _rgb(_upright(_reduced(image, _reduction(image))))
    except UnidentifiedImageError as error:
        raise BrokenImageError("not an image") from error
    except Exception as error:
        # Pillow's decoders may raise anything: struct.error, IndexError, ...
        if isinstance(error, MemoryError):
            raise
        raise BrokenImageError(f"damaged ({one_line(error, 80)})") from error


def read_content(path: str | Path) -> bytes:
    """Return the content of an image file, or of one inside a tar, ``shard.tar/image.jpg``."""
    name = os.fspath(path)
    try:
        # A folder may be called "shard.tar", too.
        inside = None if os.path.lexists(name) else _split(name)
        start, size = (0, None) if inside is None else archive_of(inside[0])[inside[1]]
        with open_regular(name if inside is None else inside[0]) as stream:
            size = os.fstat(stream.fileno()).st_size if size is None else size
            if size > LARGEST_IMAGE:
                raise BrokenImageError(f"larger than any image ({LARGEST_IMAGE >> 30} GiB)")
            stream.seek(start)
            return stream.read(size)
    except (FileNotFoundError, NotADirectoryError, KeyError) as error:
        raise BrokenImageError(NO_FILE) from error
    except (InputError, OSError, ValueError) as error:  # ValueError: a NUL in the path
        told = str(unreadable(name, error) if isinstance(error, OSError) else error)
        # Without the path and the advice.
        raise BrokenImageError(told.rpartition(": ")[2].partition(";")[0]) from error


def is_member(path: str) -> bool:
    """Return whether a path is that of a file inside a tar."""
    inside = _split(path)
    with suppress(InputError, OSError):
        return inside is not None and inside[1] in archive_of(inside[0])
    return False


def archive_of(path: str) -> dict[str, tuple[int, int]]:
    """Return where each plain file of a tar begins, and its size, by name."""
    status = os.stat(path)  # noqa: PTH116
    return _scan(path, (status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=32)
def _scan(path: str, identity: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    files: dict[str, tuple[int, int]] = {}
    place = 0
    with open_regular(path) as stream:
        try:
            tar = tarfile.TarFile(fileobj=stream, encoding="utf-8")
            while (info := tar.next()) is not None:
                # A negative size would send tarfile back, to read the same headers for ever.
                if tar.offset <= place:
                    raise tarfile.ReadError("goes back")
                place = tar.offset
                name = os.path.normpath(info.name)
                is_inside = not f"{name}/".startswith(("/", "../")) and "\0" not in name
                if info.isreg() and not info.issparse() and is_inside:
                    files[name] = info.offset_data, info.size
            # tarfile stops silently at an invalid header: look at the block where it stopped.
            stream.seek(place)
            if stream.read(tarfile.BLOCKSIZE).strip(b"\0"):
                raise tarfile.ReadError("no header")
        except OSError:
            raise
        except Exception as error:
            # Damaged headers raise anything: ReadError, ValueError, IndexError, RecursionError.
            what = f"damaged or cut short at byte {place:,}" if place else "not a tar archive"
            raise InputError(f"{printable(path)}: {what}; write it again") from error
    return files


def _split(path: str) -> tuple[str, str] | None:
    """Split ``shard.tar/image.jpg``; None if there is no such archive."""
    for tar in Path(path).parents:
        if tar.suffix.lower() == ".tar" and tar.is_file():
            return str(tar), Path(path).relative_to(tar).as_posix()
    return None


def _reduction(image: Image.Image) -> int:
    """Return the whole number by which both sides are divided to have at most `LARGE_PIXELS`."""
    return math.ceil(math.sqrt(image.width * image.height / LARGE_PIXELS))


def _reduced(image: Image.Image, factor: int) -> Image.Image:
    """Return a large image as RGB at a fraction of its size, converted strip by strip.

    As a whole, RGB of 178 megapixels takes several times the memory of the decoded image.
    """
    width, height = (max(1, -(-side // factor)) for side in image.size)
    small = Image.new("RGB", (width, height))
    white = None
    rows = max(1, _STRIP_PIXELS // (image.width * factor))
    strips = [
        (0, factor * top, image.width, min(factor * (top + rows), image.height))
        for top in range(0, height, rows)
    ]
    if _is_deep(image):
        # The grey of a strip depends on the largest value of the whole.
        white = _white_of(image.mode, max(_largest_value(image.crop(box)) for box in strips))
    for box in strips:
        pixels = Image.fromarray(_rgb(image.crop(box), white))
        small.paste(pixels.reduce(factor), (0, box[1] // factor))
    small.info = {name: note for name, note in image.info.items() if name in _EXIF}
    return small


def _upright(image: Image.Image) -> Image.Image:
    """Apply the rotation of EXIF to a decoded image."""
    # Parsing EXIF takes longer than looking for it. Pillow has applied that of a TIFF.
    if any(name in image.info for name in _EXIF):
        # Broken notes do not make the picture a broken one.
        with suppress(Exception):
            ImageOps.exif_transpose(image, in_place=True)
    return image


def _rgb(image: Image.Image, white: float | None = None) -> npt.NDArray[np.uint8]:
    """Return RGB; `white` is the value that becomes white of a part of an image of deep grey."""
    if _is_deep(image):
        return _deep_grey(image, white)
    if image.has_transparency_data:
        pixels = image.convert("RGBA")
        image = Image.new("RGB", pixels.size, "white")
        image.paste(pixels, mask=pixels)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _is_deep(image: Image.Image) -> bool:
    """Return whether an image is grey with more than 8 bits."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def _deep_values(image: Image.Image) -> npt.NDArray[np.float32]:
    return np.nan_to_num(np.asarray(image, dtype=np.float32), posinf=0, neginf=0)


def _largest_value(image: Image.Image) -> float:
    return float(_deep_values(image).max())


def _white_of(mode: str, largest: float) -> float:
    """Return what becomes white: the first of the usual values that no value exceeds."""
    usual = (1, 255, 65535) if mode == "F" else (65535,)
    return next((white for white in usual if largest <= white), largest)


def _deep_grey(image: Image.Image, white: float | None = None) -> npt.NDArray[np.uint8]:
    """Scale grey of more than 8 bits."""
    values = _deep_values(image)
    white = _white_of(image.mode, float(values.max())) if white is None else white
    grey = np.clip(np.rint(values * (255 / white)), 0, 255).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def is_shard(name: str) -> bool:
    """Return whether a name ends like a tar shard."""
    return name.lower().endswith(".tar")


def shard_entries(shard: str, name: str, labelled: bool) -> Iterator[Entry]:
    """Yield the images of a shard, as if it were a folder of that name."""
    samples: dict[str, dict[str, str]] = defaultdict(dict)
    with reading(shard, "a tar shard"):
        for member in archive_of(shard):
            # Not the files that macOS adds: "._0001.jpg", "__MACOSX/0001.jpg".
            if not any(part.startswith((".", "__MACOSX")) for part in member.split("/")):
                folder, _, base = member.rpartition("/")
                key, _, ending = base.partition(".")
                samples[f"{folder}/{key}"][ending.lower()] = member
    for files in samples.values():
        images = [e for e in files if f".{e.rpartition('.')[2]}" in IMAGE_SUFFIXES]
        # Of several, those without a second dot: "1.jpg" and not "1.depth.png".
        plain = [ending for ending in images if "." not in ending] or images
        label = _class_of(shard, files) if labelled and images else None
        for image in [files[ending] for ending in plain]:
            yield Entry(printable(f"{name}/{image}"), f"{shard}/{image}", label)


def _class_of(shard: str, files: dict[str, str]) -> str | None:
    """Return the class of a sample; None if it has none."""
    for ending in filter(files.get, _CLASS_ENDINGS):
        place = f"{shard}/{files[ending]}"
        with reading(place, "the class"):
            text = read_content(place).decode("utf-8-sig")
            if ending == "json":
                values = json.loads(text)
                found = [values.get(key) for key in _CLASS_KEYS if isinstance(values, dict)]
                text = next((str(value) for value in found if value is not None), "")
        if text.strip():
            return text.strip()
    return None
