"""Files inside tar archives, read in place: nothing is ever unpacked to disk.

The standard library's `tarfile` reads the headers, once per process and archive. Archives come
from anywhere, so what it may read for one header is limited, and every way in which it fails
becomes a `TarError`.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

# Long names and pax records are held in memory, and no sensible ones are larger.
_LARGEST_HEADER = 1 << 20

# Archives are remembered up to this number of members in all: about 100 MB.
_MOST_MEMBERS = 300_000

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}

# tarfile of Python before 3.11.10 takes quadratic time to look through these for a number.
_MANY_DIGITS = re.compile(rb"\d{300}")

_IN_TAR = re.compile(r"\.tar[/%s]" % re.escape(os.sep), re.IGNORECASE)  # noqa: UP031

Identity = tuple[int, int, int, int]


class TarError(OSError):
    """An archive that cannot be used; the text is the reason in a few words, without the path."""


class CompressedTarError(TarError):
    """An archive that is compressed as a whole, so its members cannot be read at random."""


class Member(NamedTuple):
    """An entry of an archive, and where its content is: perhaps beyond a cut archive's end.

    `is_plain` is False for links, devices and sparse files, whose content is not in one piece.
    """

    name: str
    offset: int
    size: int
    is_plain: bool


@dataclass(frozen=True)
class Archive:
    """The content of a tar archive.

    Attributes
    ----------
    members : tuple of Member
        Everything but folders, in the order of the archive.
    files : dict of str to Member
        The plain files by `clean_name`; of several with one name the last, as tar has it.
    is_whole : bool
        Whether it has the end marker of tar archives; otherwise it was cut short.
    identity : tuple of int
        Changes when the archive's file does.
    """

    members: tuple[Member, ...]
    files: dict[str, Member]
    is_whole: bool
    identity: Identity


class MemberStatus(NamedTuple):
    """A file inside an archive: the archive's status, and the member."""

    archive: os.stat_result
    member: Member


_known: OrderedDict[str, Archive] = OrderedDict()
_turn = threading.Lock()


def open_image(path: str | Path) -> IO[bytes]:
    """Open an image for reading: a file, or one inside a tar, ``shard.tar/image.jpg``.

    Thread-safe. Raises an `OSError` if there is none.
    """
    try:
        return open(path, "rb")  # noqa: PTH123 - paths are text: there may be millions
    except OSError:
        # Only now: a folder may be called "shard.tar", too.
        found = _split(os.fspath(path))
        if found is None:
            raise
    with open(found[0], "rb") as stream:  # noqa: PTH123
        member = archive_of(found[0], stream).files.get(found[1])
        if member is None:
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return io.BytesIO(read_member(stream, member))


def member_status(path: str) -> MemberStatus | None:
    """Return what changes when a file inside a tar does; None if there is no such file."""
    found = _split(path)
    if found is None:
        return None
    try:
        with open(found[0], "rb") as stream:  # noqa: PTH123
            member = archive_of(found[0], stream).files.get(found[1])
            return None if member is None else MemberStatus(os.fstat(stream.fileno()), member)
    except OSError:
        return None


def archive_of(path: str, stream: IO[bytes]) -> Archive:
    """Return the content of an archive, open as `stream`: remembered, or scanned."""
    status = os.fstat(stream.fileno())
    identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    # Scans wait for each other: two threads that want one archive need one scan.
    with _turn:
        archive = _known.get(path)
        if archive is None or archive.identity != identity:
            members, is_whole = _scan(stream, status.st_size)
            files = {
                name: member
                for member in members
                if member.is_plain and (name := clean_name(member.name))
            }
            _known[path] = archive = Archive(tuple(members), files, is_whole, identity)
            total = sum(len(known.members) for known in _known.values())
            while total > _MOST_MEMBERS and len(_known) > 1:
                total -= len(_known.popitem(last=False)[1].members)
        _known.move_to_end(path)
    return archive


def read_member(stream: IO[bytes], member: Member) -> bytes:
    """Return the content of a member of the archive open as `stream`."""
    if member.offset + member.size > os.fstat(stream.fileno()).st_size:
        raise TarError("cut short")
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


class _LimitedReader:
    """What tarfile reads from: at most `_LARGEST_HEADER` bytes for one member's headers."""

    def __init__(self, stream: IO[bytes], total: int) -> None:
        self._stream, self._total = stream, total
        self._place, self._left = 0, _LARGEST_HEADER
        self.is_at_end = False

    def next_member(self) -> None:
        self._left = _LARGEST_HEADER

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self._left:
            raise ValueError("headers larger than any name")
        self._left -= size
        self.is_at_end = self._place + size > self._total
        if self._place >= self._total:
            return b""
        self._stream.seek(self._place)
        content = self._stream.read(size)
        self._place += len(content)
        if size > tarfile.BLOCKSIZE and _MANY_DIGITS.search(content):
            raise ValueError("a number longer than any name")
        return content

    def seek(self, place: int) -> None:
        self._place = place

    def tell(self) -> int:
        return self._place


def _scan(stream: IO[bytes], total: int) -> tuple[list[Member], bool]:
    """Return the members of an archive, and whether it has its end marker."""
    stream.seek(0)
    start = stream.read(tarfile.BLOCKSIZE)
    for mark, how in _COMPRESSED.items():
        if start.startswith(mark):
            raise CompressedTarError(f"compressed ({how}), and so it cannot be read in any order")
    if total < tarfile.BLOCKSIZE:
        raise _damaged(0)
    reader = _LimitedReader(stream, total)
    members: list[Member] = []
    place = 0
    try:
        tar = tarfile.TarFile(fileobj=reader, encoding="utf-8")  # type: ignore[arg-type]
        while (info := tar.next()) is not None:
            # A negative size would send tarfile back, to read the same headers for ever.
            if info.size < 0 or tar.offset <= place:
                raise _damaged(place)
            if not info.isdir() and not info.name.endswith("/"):
                members.append(_member(info))
            tar.members.clear()  # type: ignore[attr-defined]  # typeshed leaves it out
            place = tar.offset
            reader.next_member()
    except OSError:
        raise
    except Exception as error:
        # Damaged headers raise anything: ReadError, ValueError, IndexError, RecursionError.
        if reader.is_at_end:
            return members, False
        raise _damaged(place) from error
    # tarfile stops silently at an invalid header: look at the block where it stopped.
    reader.next_member()
    reader.seek(place)
    end = reader.read(tarfile.BLOCKSIZE)
    if end.strip(b"\0"):
        if len(end) == tarfile.BLOCKSIZE:
            raise _damaged(place)
        return members, False
    return members, len(end) == tarfile.BLOCKSIZE


def _member(info: tarfile.TarInfo) -> Member:
    is_sparse = info.issparse() or any(key.startswith("GNU.sparse.") for key in info.pax_headers)
    return Member(info.name, info.offset_data, info.size, info.isreg() and not is_sparse)


def _damaged(place: int) -> TarError:
    return TarError(f"damaged at byte {place:,}" if place else "not a tar archive")
