"""The log of a review, append-only.

Every decision is one line of JSON, synced to disk before the page says that it was saved. Undoing
is a line, too, and so is a mark of the audit. A line counts once it has its line end: a crash while
writing leaves an incomplete line, which is ignored, and removed by the next decision. Nothing else
is ever removed: a file that is not ours, or that another program has changed, is left as it is.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from opensetda.errors import InputError, one_line
from opensetda.system.files import open_regular

_HEAD = {"format": "opensetda-review", "version": 1}
# How the lines begin; what a crash left must be the beginning of one.
_BEGINNINGS = (
    *(b'{"do": "decide", "rows": [', b'{"do": "audit", "rows": ['),
    b'{"do": "undo", "time": "',
)
LARGEST_LOG = 1 << 28
# Bytes of a line without its rows, and of one row.
_LONGEST_LINE, _LONGEST_ROW = 1 << 20, 22
# Bytes of the last line that are compared before the next is written.
_COMPARED = 4096

_Number = Annotated[int, Field(strict=True, ge=0, lt=1 << 53)]
# pydantic looks into text, and finds halves of characters in it, only if it has a bound.
_Label = Annotated[str, Field(max_length=_LONGEST_LINE)]
# ISO 8601 with the offset from UTC.
_Time = Annotated[str, Field(pattern=r"^[0-9][0-9T:.+Z-]{0,39}$")]


class NotSavedError(InputError):
    """Decisions cannot be saved."""


@dataclass(frozen=True)
class Decision:
    """A label for some samples."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    rows: Annotated[tuple[_Number, ...], Field(min_length=1)]  # of the targets, from 0
    label: _Label | None  # a class, new or not, or the unknown label; None keeps the run's labels
    group: _Number | None  # of unknowns, from 1, in which they were shown
    time: _Time


@dataclass(frozen=True)
class AuditMark:
    """Whether a sample that was drawn at random is of a known class."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    rows: tuple[_Number]
    mark: Literal["known", "unknown"]
    label: _Label | None  # its class, if that was said, too
    time: _Time


Entry = Decision | AuditMark


@dataclass(frozen=True)
class _Undo:
    __pydantic_config__ = ConfigDict(extra="forbid")

    time: _Time


_KINDS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(kind)
    for name, kind in (("decide", Decision), ("audit", AuditMark), ("undo", _Undo))
}


class DecisionLog:
    """The file of the decisions; created with the first one.

    Decisions about a run of another identity are refused. `n_rows` is the number of targets.
    """

    def __init__(self, path: Path, identity: str, n_rows: int) -> None:
        self.path, self.identity, self.n_rows = path, identity, n_rows
        self.is_new = True  # nothing was decided yet, nor undone
        self.mentioned: set[int] = set()  # rows that were decided, also if undone since
        self._head = _line({**_HEAD, "identity": identity})
        self._longest = _LONGEST_LINE + _LONGEST_ROW * n_rows
        # Bytes of complete lines, and the end of them; what follows is an incomplete line.
        self._size, self._end = 0, b""

    def read(self) -> list[Entry]:
        """Return decisions and marks in their order, without undone ones."""
        self._size, self._end = 0, b""
        stream = open_own(self.path)
        if stream is None:
            return []
        with stream:
            if os.fstat(stream.fileno()).st_size > LARGEST_LOG:
                raise InputError(f"{self.path}: larger than {LARGEST_LOG >> 20} MiB; move it away")
            return self._replay(stream)

    def _replay(self, stream: BinaryIO) -> list[Entry]:
        held: list[Entry] = []
        number = 0
        while line := stream.readline(self._longest):
            number += 1
            if not self._size:
                self._check_head(line)
            try:
                if not line.endswith(b"\n"):
                    if not self._may_be_torn(line):
                        raise ValueError("no line of a review")
                    break
                if self._size:
                    self._take(_parsed(line), held)
            except ValueError as error:
                reason, advice = _reason(error), "remove the line, or move the file away"
                raise InputError(
                    f"{self.path}: line {number} is damaged ({reason}); {advice}"
                ) from error
            self._note(line)
        return held

    def append(self, entry: Entry | None) -> None:
        """Write a decision or a mark, or an undo for None, and sync it to disk."""
        kind = "audit" if isinstance(entry, AuditMark) else "decide"
        undo = {"do": "undo", "time": now()}
        text = _line(undo if entry is None else {"do": kind, **asdict(entry)})
        if len(text) >= self._longest or self._size + len(text) > LARGEST_LOG:
            # It could not be read again.
            raise NotSavedError(f"not saved: too long for {self.path}; learn from what is decided")
        if self._size == 0:
            text = self._head + text
        try:
            self._write(text)
        except FileNotFoundError:
            raise self._changed() from None
        except OSError as error:
            reason = "a link" if self.path.is_symlink() else (error.strerror or str(error)).lower()
            raise NotSavedError(
                f"not saved: {self.path} cannot be written ({reason}); repair that, and decide "
                "again"
            ) from error
        self._note(text)
        self.is_new = False

    def _write(self, text: bytes) -> None:
        is_there = self._size or os.path.lexists(self.path)
        # Unbuffered: after an error nothing may be written when the file is closed.
        with FileIO(self.path, "r+" if is_there else "x+", opener=_open_carefully) as stream:
            if not self._is_as_left(stream):
                raise self._changed()
            stream.seek(self._size)
            stream.truncate()
            try:
                left = memoryview(text)
                while left:
                    left = left[stream.write(left) :]
                os.fsync(stream.fileno())
            except OSError:
                # Reported as not saved: it must not reappear.
                with suppress(OSError):
                    os.ftruncate(stream.fileno(), self._size)
                raise
        if self._size == 0:
            # The folder's entry of the new file, where the system can sync it.
            with suppress(OSError):
                folder = os.open(self.path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)

    def _note(self, text: bytes) -> None:
        self._size, self._end = self._size + len(text), text[-_COMPARED:]

    def _is_as_left(self, stream: FileIO) -> bool:
        """Return whether an open file ends as it did, but for an incomplete line of ours."""
        status, begin = os.fstat(stream.fileno()), self._size - len(self._end)
        if not stat.S_ISREG(status.st_mode) or status.st_size > self._size + self._longest:
            return False
        stream.seek(begin)
        found = stream.read(max(status.st_size - begin, 0))
        return found.startswith(self._end) and self._may_be_torn(found[len(self._end) :])

    def _may_be_torn(self, tail: bytes) -> bool:
        """Return whether bytes without a line end can be the beginning of a line of ours."""
        if not self._size:
            return self._head.startswith(tail) and tail != self._head
        is_one = any(tail.startswith(start) or start.startswith(tail) for start in _BEGINNINGS)
        return is_one and b"\n" not in tail and len(tail) < self._longest

    def _changed(self) -> NotSavedError:
        return NotSavedError(
            f"not saved: {self.path} was removed or changed by another program; put it back, or "
            "start 'osda review' again"
        )

    def _take(self, entry: dict[str, Any], held: list[Entry]) -> None:
        kind = entry.pop("do", None)
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ValueError("do: neither a decision, a mark nor an undo")
        value, self.is_new = _KINDS[kind].validate_python(entry), False
        if not isinstance(value, _Undo):
            if max(value.rows) >= self.n_rows:
                raise ValueError(f"rows: the run has {self.n_rows} targets only")
            held.append(value)
            self.mentioned.update(value.rows)
        elif not held:
            raise ValueError("nothing to undo")
        else:
            held.pop()

    def _check_head(self, line: bytes) -> None:
        if self._head.startswith(line):
            return
        head: dict[str, Any] = {}
        with suppress(ValueError):
            head = _parsed(line)
        if not (line.endswith(b"\n") and "identity" in head and head.items() >= _HEAD.items()):
            raise InputError(f"{self.path}: not the log of a review by this release; move it away")
        if head["identity"] != self.identity:
            raise InputError(
                f"{self.path}: decisions about another run that was here before; "
                "move the file away to review this one"
            )


def open_own(path: Path) -> BinaryIO | None:
    """Open a file of the review to read; None if it is not there, an error if it is no file."""
    try:
        return open_regular(path, follow_links=False)
    except FileNotFoundError:
        return None
    except InputError:
        reason = "not a file"
    except OSError as error:
        reason = "a link" if path.is_symlink() else (error.strerror or str(error)).lower()
    raise InputError(f"{path}: {reason}; move it away, and start 'osda review' again")


def _open_carefully(name: str, flags: int) -> int:
    # Not through a link, and without waiting for the other end of a pipe.
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.open(name, flags, 0o666)


def now() -> str:
    """Return the time as the log has it."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _line(entry: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(entry, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        # In a class or the identity of a damaged run: new names are checked.
        raise NotSavedError("not saved: a name has half of a character in it; fit again") from None


def _parsed(line: bytes) -> dict[str, Any]:
    """Read a JSON object, or raise a `ValueError`."""
    try:
        # Not from bytes, which may be of other encodings, too.
        value = json.loads(line.decode(), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a key is there twice")
    return entries


def _reason(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        error = ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    return one_line(error, 200)
