"""Image files, also inside tar archives, to arrays of RGB bytes.

A file that cannot be used raises a `BrokenImageError`, so that a run can list it and go on. Sizes
are checked in the header: a decompression bomb is refused before any pixel is decoded.

Nothing of an archive is ever unpacked to disk. The standard library's `tarfile` reads the headers,
once per process and archive; every way in which it fails becomes a `TarError`.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import tarfile
import threading
import warnings
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from opensetda.data.limits import LARGEST_IMAGE
from opensetda.errors import InputError
from opensetda.system.files import open_regular

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
_KNOWN_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "AVIF")
_FORMATS = tuple(name for name in _KNOWN_FORMATS if name in Image.OPEN)

_SHORT = ("truncated", "end of file", "not enough", "unexpected eof", "broken png")
_REASONS = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "no such file"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "no permission to read it"),
    errno.ELOOP: "links that lead in a circle",
}

_TOO_LARGE = f"larger than any image ({LARGEST_IMAGE >> 30} GiB)"

# Archives are remembered up to this number of members in all: about 100 MB.
_MOST_MEMBERS = 300_000
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd"}

_IN_TAR = re.compile(r"\.tar[/%s]" % re.escape(os.sep), re.IGNORECASE)  # noqa: UP031

# Without a handler, Pillow's log messages would reach the terminal.
logging.getLogger("PIL").addHandler(logging.NullHandler())


class BrokenImageError(Exception):
    """An image that cannot be used; the text is the reason in a few words, without the path."""


def decode_image(path: str | Path, at_least: int | None = None) -> npt.NDArray[np.uint8]:
    """Return the image ``image.jpg`` or ``shard.tar/image.jpg`` as RGB: (height, width, 3).

    EXIF rotation is applied, transparency becomes white, and grey, palette, 16-bit and CMYK
    images become RGB; of an animation the first frame is taken. If a side of `at_least` pixels is
    sufficient, a large JPEG is decoded at a fraction of its size, in less time. Thread-safe. The
    array may be read-only. A file that cannot be used raises a `BrokenImageError`.
    """
    try:
        with open_image(path) as stream:
            return _decode(stream, at_least)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = _REASONS.get(getattr(error, "errno", None) or 0)
        raise BrokenImageError(reason or _words(error)) from error


def decode_bytes(content: bytes) -> npt.NDArray[np.uint8]:
    """Decode the content of an image file, as `decode_image` does."""
    return _decode(io.BytesIO(content))


def _decode(stream: IO[bytes], at_least: int | None = None) -> npt.NDArray[np.uint8]:
    if stream.seek(0, os.SEEK_END) == 0:
        raise BrokenImageError("empty file")
    stream.seek(0)
    _quiet_pillow()
    try:
        with Image.open(stream, formats=_FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise _bomb(f"{width} x {height}")
            if at_least is not None:
                image.draft(None, (at_least, at_least))
            image.load()
            # Parsing EXIF takes longer than looking for it. Pillow has applied that of a TIFF.
            if "exif" in image.info or "Raw profile type exif" in image.info:
                # Broken notes do not make the picture a broken one.
                with suppress(Exception):
                    ImageOps.exif_transpose(image, in_place=True)
            return _rgb(image)
    except (BrokenImageError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        raise _bomb("too many") from error
    except UnidentifiedImageError as error:
        raise BrokenImageError("not an image") from error
    except Exception as error:
        # Pillow's decoders may raise anything: struct.error, IndexError, ...
        is_short = isinstance(error, EOFError) or any(word in str(error).lower() for word in _SHORT)
        reason = "cut short" if is_short else f"damaged ({_words(error)})"
        raise BrokenImageError(reason) from error


def _rgb(image: Image.Image) -> npt.NDArray[np.uint8]:
    if image.mode == "I" or image.mode.startswith("I;16"):
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
    limit = f"more than {MAX_PIXELS:,} are refused as a decompression bomb"
    return BrokenImageError(f"{size} pixels: {limit}")


def _words(error: Exception, most: int = 80) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    text = " ".join(str(text).split())
    return text if len(text) <= most else f"{text[:most]}..."


_QUIET: tuple[Any, ...] | None = None


def _quiet_pillow() -> None:
    """Keep Pillow's warnings off the terminal, also after other code has reset the filters."""
    # Not `warnings.catch_warnings`, which is not thread-safe.
    global _QUIET
    if _QUIET is None or _QUIET not in warnings.filters:
        warnings.filterwarnings("ignore", module=r"PIL\.")
        _QUIET = warnings.filters[0]


class TarError(OSError):
    """An archive that cannot be used; the text is the reason in a few words, without the path."""


class CompressedTarError(TarError):
    """An archive that is compressed as a whole, so its members cannot be read at random."""


class Member(NamedTuple):
    """An entry of an archive, and where its content is.

    `is_plain` is False for links, devices and sparse files, whose content is not in one piece.
    """

    name: str
    offset: int
    size: int
    is_plain: bool


@dataclass(frozen=True)
class Archive:
    """The content of a tar archive, without folders; `identity` changes when its file does.

    `files` are the plain files by `clean_name`; of several with one name the last, as tar has it.
    """

    members: tuple[Member, ...]
    files: dict[str, Member]
    identity: tuple[int, int, int, int]


_known: OrderedDict[str, Archive] = OrderedDict()
_turn = threading.Lock()


def open_image(path: str | Path) -> IO[bytes]:
    """Open an image file, or one inside a tar, ``shard.tar/image.jpg``; thread-safe."""
    try:
        stream = open_regular(path)
    except InputError as error:
        reason = str(error).removeprefix(f"{os.fspath(path)}: ").partition(";")[0]
        raise OSError(errno.EINVAL, reason) from error
    except OSError:
        # Only now: a folder may be called "shard.tar", too.
        found = _split(os.fspath(path))
        if found is None:
            raise
    else:
        if os.fstat(stream.fileno()).st_size > LARGEST_IMAGE:
            stream.close()
            raise OSError(errno.EFBIG, _TOO_LARGE)
        return stream
    with open_regular(found[0]) as stream:
        member = archive_of(found[0], stream).files.get(found[1])
        if member is None:
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return io.BytesIO(read_member(stream, member))


def is_member(path: str) -> bool:
    """Return whether a path is that of a file inside a tar."""
    found = _split(path)
    if found is None:
        return False
    try:
        with open_regular(found[0]) as stream:
            return found[1] in archive_of(found[0], stream).files
    except (InputError, OSError):
        return False


def archive_of(path: str, stream: IO[bytes]) -> Archive:
    """Return the content of an archive, open as `stream`: remembered, or scanned."""
    status = os.fstat(stream.fileno())
    identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    # Scans wait for each other: two threads that want one archive need one scan.
    with _turn:
        archive = _known.get(path)
        if archive is None or archive.identity != identity:
            members = _scan(stream)
            plain = [(clean_name(member.name), member) for member in members if member.is_plain]
            files = {name: member for name, member in plain if name}
            _known[path] = archive = Archive(tuple(members), files, identity)
            total = sum(len(known.members) for known in _known.values())
            while total > _MOST_MEMBERS and len(_known) > 1:
                total -= len(_known.popitem(last=False)[1].members)
        _known.move_to_end(path)
    return archive


def read_member(stream: IO[bytes], member: Member) -> bytes:
    """Return the content of a member of the archive open as `stream`."""
    if member.offset + member.size > os.fstat(stream.fileno()).st_size:
        raise TarError("cut short")
    if member.size > LARGEST_IMAGE:
        raise TarError(_TOO_LARGE)
    stream.seek(member.offset)
    return stream.read(member.size)


def clean_name(name: str) -> str | None:
    """Return a member's name as in a path, without "./"; None if it leads out of the archive."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or name.startswith("/") or "\0" in name:
        return None
    return "/".join(parts)


def _split(path: str) -> tuple[str, str] | None:
    """Split ``shard.tar/image.jpg``; None if there is no such archive."""
    for found in _IN_TAR.finditer(path):
        tar = path[: found.end() - 1]
        if os.path.isfile(tar):  # noqa: PTH113
            return tar, path[found.end() :].replace(os.sep, "/")
    return None


def _scan(stream: IO[bytes]) -> list[Member]:
    """Return the members of an archive."""
    stream.seek(0)
    start = stream.read(tarfile.BLOCKSIZE)
    for mark, how in _COMPRESSED.items():
        if start.startswith(mark):
            raise CompressedTarError(f"compressed ({how}), and so it cannot be read in any order")
    stream.seek(0)
    members: list[Member] = []
    place = 0
    try:
        tar = tarfile.TarFile(fileobj=stream, encoding="utf-8")
        while (info := tar.next()) is not None:
            # A negative size would send tarfile back, to read the same headers for ever.
            if tar.offset <= place:
                raise _damaged(place)
            if not info.isdir() and not info.name.endswith("/"):
                is_plain = info.isreg() and not info.issparse()
                members.append(Member(info.name, info.offset_data, info.size, is_plain))
            place = tar.offset
        # tarfile stops silently at an invalid header: look at the block where it stopped.
        stream.seek(place)
        if stream.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise _damaged(place)
    except OSError:
        raise
    except Exception as error:
        # Damaged headers raise anything: ReadError, ValueError, IndexError, RecursionError.
        raise _damaged(place) from error
    return members


def _damaged(place: int) -> TarError:
    return TarError(f"damaged or cut short at byte {place:,}" if place else "not a tar archive")
