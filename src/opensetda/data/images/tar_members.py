"""Files inside of tar archives, read in place: nothing is ever unpacked to the disk.

The headers of an archive are scanned once a process. The scan is our own: archives come from
anywhere, and this one takes what it needs, reads nothing large, and ends.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

_BLOCK = 512
_ZEROS = bytes(_BLOCK)

# Long names and pax notes; nobody has larger ones, and they are held in memory.
_LONGEST_NOTES = 1 << 20

# Archives whose members are remembered, by the number of these: about 100 MB.
_MOST_MEMBERS = 300_000

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}

_PLAIN = (b"0", b"\0", b"7")
_FOLDER = b"5"
# Links, devices, folders and pipes: no content follows, whatever size is written.
_WITHOUT_CONTENT = (b"1", b"2", b"3", b"4", _FOLDER, b"6")
_SPARSE = b"S"
_LONG_NAME, _PAX = b"L", b"x"
_OTHER_NOTES = (b"K", b"g", b"X")

_IN_TAR = re.compile(r"\.tar[/%s]" % re.escape(os.sep), re.IGNORECASE)  # noqa: UP031

Identity = tuple[int, int, int, int]


class TarError(OSError):
    """An archive that cannot be used; the text is the reason in a few words, without the path."""


class CompressedTarError(TarError):
    """An archive that is compressed as a whole: what is in it cannot be read at random."""


class Member(NamedTuple):
    """An entry of an archive.

    Attributes
    ----------
    name : str
        As written in the archive.
    offset, size : int
        Where its content is; it may reach beyond the end of an archive that was cut short.
    is_plain : bool
        Whether it is a file with its content in one piece: no link, device or sparse file.
    """

    name: str
    offset: int
    size: int
    is_plain: bool


@dataclass(frozen=True)
class Archive:
    """What is in a tar archive.

    Attributes
    ----------
    members : tuple of Member
        Everything but folders, in the order of the archive.
    files : dict of str to Member
        The plain files by `clean_name`; of several with one name the last, as tar has it.
    is_whole : bool
        Whether it ends as archives end; else it was cut short, or somebody did not finish it.
    identity : tuple of int
        What tells whether the archive was changed since.
    """

    members: tuple[Member, ...]
    files: dict[str, Member]
    is_whole: bool
    identity: Identity


class MemberStatus(NamedTuple):
    """A file inside of an archive: the archive's status, and where it is in there."""

    archive: os.stat_result
    member: Member


_known: OrderedDict[str, Archive] = OrderedDict()
_turn = threading.Lock()


def open_image(path: str | Path) -> IO[bytes]:
    """Open an image for reading: a file, or one inside of a tar, ``shard.tar/image.jpg``.

    May be called from many threads. An `OSError` if there is none.
    """
    try:
        return open(path, "rb")  # noqa: PTH123 - paths are text: there may be millions
    except OSError:
        # Not before that: a folder may be called "shard.tar", too.
        found = _split(os.fspath(path))
        if found is None:
            raise
    with open(found[0], "rb") as stream:  # noqa: PTH123
        member = archive_of(found[0], stream).files.get(found[1])
        if member is None:
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return io.BytesIO(read_member(stream, member))


def member_status(path: str) -> MemberStatus | None:
    """Return what tells whether a file inside of a tar has changed; None if there is none."""
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
    """Return what is in an archive, open as `stream`: remembered, or scanned."""
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
    """Return the content of a member of the archive that `stream` is."""
    if member.offset + member.size > os.fstat(stream.fileno()).st_size:
        raise TarError("cut short")
    return _read(stream, member.offset, member.size)


def clean_name(name: str) -> str | None:
    """Return a member's name as in a path, without "./"; None if it leads out of the archive."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or name.startswith("/") or "\0" in name:
        return None
    return "/".join(parts)


def _split(path: str) -> tuple[str, str] | None:
    """Take ``shard.tar/image.jpg`` apart; None if there is no such archive."""
    for found in _IN_TAR.finditer(path):
        tar = path[: found.end() - 1]
        if os.path.isfile(tar):  # noqa: PTH113
            return tar, path[found.end() :].replace(os.sep, "/")
    return None


def _scan(stream: IO[bytes], total: int) -> tuple[list[Member], bool]:
    """Return the members of an archive, and whether it ends as it should."""
    start = _read(stream, 0, _BLOCK)
    for mark, how in _COMPRESSED.items():
        if start.startswith(mark):
            raise CompressedTarError(f"compressed ({how}), and so it cannot be read in any order")
    if total < _BLOCK:
        raise _damaged(0)
    members: list[Member] = []
    place, long_name, pax = 0, b"", dict[bytes, bytes]()
    while place + _BLOCK <= total:
        block = _read(stream, place, _BLOCK)
        if block == _ZEROS:
            return members, True
        size, kind = _header(block, place)
        content = place + _BLOCK
        if kind in (_LONG_NAME, _PAX):
            if size > _LONGEST_NOTES:
                raise _damaged(place)
            if content + size > total:
                break
            notes = _read(stream, content, size)
            if kind == _PAX:
                pax = _pax_notes(notes, place)
            else:
                long_name = notes.partition(b"\0")[0]
            place = content + _padded(size)
            continue
        if kind in _OTHER_NOTES:
            place = content + _padded(size)
            continue
        name = pax.get(b"path") or long_name or _short_name(block)
        size = int(pax.get(b"size", size))
        is_sparse = kind == _SPARSE or any(key.startswith(b"GNU.sparse.") for key in pax)
        if kind == _SPARSE:
            content += _more_headers(stream, block, content)
        if kind != _FOLDER and not name.endswith(b"/"):
            text = name.decode("utf-8", "surrogateescape")
            members.append(Member(text, content, size, kind in _PLAIN and not is_sparse))
        place = content + (0 if kind in _WITHOUT_CONTENT else _padded(size))
        long_name, pax = b"", {}
    return members, False


def _header(block: bytes, place: int) -> tuple[int, bytes]:
    """Return size and kind, if this is a header."""
    checksum = _number(block[148:156])
    # The sum is that of the header with blanks in its own place.
    if checksum is None or checksum != sum(block) - sum(block[148:156]) + 8 * ord(" "):
        raise _damaged(place)
    size = _number(block[124:136])
    if size is None:
        raise _damaged(place)
    return size, block[156:157]


def _number(field: bytes) -> int | None:
    """Read octal digits, or the binary numbers that GNU tar writes where these do not do."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip()
    if digits.strip(b"01234567"):
        return None
    return int(digits or b"0", 8)


def _short_name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0":
        prefix = block[345:500].partition(b"\0")[0]
        return prefix + b"/" + name if prefix else name
    return name


def _pax_notes(notes: bytes, place: int) -> dict[bytes, bytes]:
    """Take "length key=value" lines apart; the length is that of the whole line."""
    found, start = {}, 0
    while start < len(notes) and notes[start]:
        digits = notes[start : start + 20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        if length < len(digits) + 4:
            raise _damaged(place)
        line = notes[start + len(digits) + 1 : start + length - 1]
        key, is_there, value = line.partition(b"=")
        if not is_there or (key == b"size" and not (value.isdigit() and len(value) < 20)):
            raise _damaged(place)
        found[key] = value
        start += length
    return found


def _more_headers(stream: IO[bytes], block: bytes, place: int) -> int:
    """Return how many bytes of further headers an old sparse file has."""
    length, goes_on = 0, block[482:483]
    while goes_on not in (b"", b"\0"):
        goes_on = _read(stream, place + length, _BLOCK)[504:505]
        length += _BLOCK
    return length


def _read(stream: IO[bytes], offset: int, size: int) -> bytes:
    stream.seek(offset)
    return stream.read(size)


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _damaged(place: int) -> TarError:
    return TarError(f"damaged at byte {place:,}" if place else "not a tar archive")
