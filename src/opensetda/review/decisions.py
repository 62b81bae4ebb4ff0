"""The decisions of a review: an append-only log, and the state that follows from it.

Every decision is one line of JSON, synced to disk before the page says that it was saved. Undoing
is a line, too. A line counts once it has its line end: a crash while writing leaves an incomplete
line, which is ignored, and removed by the next decision.
"""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import Any

from opensetda.errors import InputError
from opensetda.system.files import new_file

_HEAD = {"format": "opensetda-review", "version": 1}


class NotSavedError(InputError):
    """Decisions cannot be saved."""


@dataclass(frozen=True)
class Decision:
    """A label for some samples."""

    rows: tuple[int, ...]  # of the targets, from 0
    label: str | None  # a class, new or not, or the unknown label; None keeps the run's labels
    group: int | None  # number of the group of unknowns, from 1, in which they were shown
    time: str  # ISO 8601 with the offset from UTC

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any], n_rows: int) -> Decision:
        """Read a line of the log of a run of `n_rows` targets, or raise a `ValueError`."""
        rows, label, group, time = (entry[name] for name in ("rows", "label", "group", "time"))
        if not isinstance(rows, list) or not all(type(row) is int and row >= 0 for row in rows):
            raise ValueError("'rows' are not row numbers")
        if not (label is None or isinstance(label, str)):
            raise ValueError("'label' is no text")
        if not (group is None or type(group) is int):
            raise ValueError("'group' is no number")
        if any(row >= n_rows for row in rows):
            raise ValueError(f"the run has {n_rows} targets only")
        return cls(tuple(rows), label, group, str(time))


class DecisionLog:
    """The file of the decisions; created with the first one.

    Decisions about a run of another identity are refused. `n_rows` is the number of targets.
    """

    def __init__(self, path: Path, identity: str, n_rows: int) -> None:
        self.path, self.identity, self.n_rows = path, identity, n_rows
        self._size = 0  # bytes of complete lines; the rest is an incomplete one

    def read(self) -> list[Decision]:
        """Return the decisions in their order, without undone ones."""
        content = self.path.read_bytes() if self.path.exists() else b""
        self._size = content.rfind(b"\n") + 1
        lines = content[: self._size].split(b"\n")[:-1]
        held: list[Decision] = []
        if lines:
            self._check_head(lines[0])
        for number, line in enumerate(lines[1:], start=2):
            try:
                self._replay(json.loads(line), held)
            except (KeyError, TypeError, ValueError) as error:
                reason = " ".join(str(error).split())
                advice = "remove the line, or move the file away"
                raise InputError(
                    f"{self.path}: line {number} is damaged ({reason}); {advice}"
                ) from error
        return held

    def append(self, decision: Decision | None) -> None:
        """Write a decision, or an undo for None, and sync it to disk."""
        is_there = self.path.exists()
        if (self.path.stat().st_size if is_there else 0) < self._size:
            # Writing on would leave a hole in place of the earlier decisions.
            raise NotSavedError(
                f"not saved: {self.path} was removed or cut short by another program; put it "
                "back, or start 'osda review' again"
            )
        entry = {"do": "undo", "time": _now()}
        text = _line(entry if decision is None else {"do": "decide", **asdict(decision)})
        if self._size == 0:
            text = _line({**_HEAD, "identity": self.identity}) + text
        # Unbuffered: after an error nothing may be written when the file is closed.
        with FileIO(self.path, "r+" if is_there else "x+") as stream:
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
        self._size += len(text)

    def _replay(self, entry: Any, held: list[Decision]) -> None:
        if entry["do"] not in ("decide", "undo"):
            raise ValueError("neither a decision nor an undo")
        if entry["do"] == "decide":
            held.append(Decision.from_dict(entry, self.n_rows))
        elif not held:
            raise ValueError("nothing to undo")
        else:
            held.pop()

    def _check_head(self, line: bytes) -> None:
        head = None
        with suppress(ValueError):
            head = json.loads(line)
        if not (isinstance(head, dict) and "identity" in head and head.items() >= _HEAD.items()):
            raise InputError(f"{self.path}: not the log of a review by this release; move it away")
        if head["identity"] != self.identity:
            raise InputError(
                f"{self.path}: decisions about another run that was here before; "
                "move the file away to review this one"
            )


class Decisions:
    """The current decision of every row; changes are written to the log first.

    `given` are the run's labels of all targets, `classes` the known classes.
    """

    def __init__(
        self, log: DecisionLog, given: Sequence[str], classes: Sequence[str], unknown_label: str
    ) -> None:
        self._log, self._given = log, given
        self._old_names = {*classes, unknown_label}
        self._held: list[Decision] = []
        self._of_row: dict[int, list[Decision]] = {}  # the latest last
        self._names: Counter[str] = Counter()
        for decision in log.read():
            self._apply(decision)

    def __len__(self) -> int:
        return len(self._of_row)

    def __contains__(self, row: int) -> bool:
        return row in self._of_row

    @property
    def can_undo(self) -> bool:
        """Whether there is a decision to undo."""
        return bool(self._held)

    @property
    def new_names(self) -> list[str]:
        """Names of new classes in use, in their order."""
        return [name for name in self._names if name not in self._old_names]

    def label(self, row: int) -> str | None:
        """Return the decided label of a sample, or None."""
        if row not in self._of_row:
            return None
        label = self._of_row[row][-1].label
        return self._given[row] if label is None else label

    def kind(self, row: int) -> str | None:
        """Return "kept", "corrected", "new class", or None without a decision."""
        label = self.label(row)
        if label is None:
            return None
        if label == self._given[row]:
            return "kept"
        return "corrected" if label in self._old_names else "new class"

    def decide(self, rows: Sequence[int], label: str | None, group: int | None = None) -> None:
        """Set the label of samples; None keeps the labels of the run."""
        decision = Decision(tuple(rows), label, group, _now())
        self._log.append(decision)
        self._apply(decision)

    def undo(self) -> Decision | None:
        """Undo the latest decision and return it, or None."""
        if not self._held:
            return None
        self._log.append(None)
        decision = self._held.pop()
        for row in dict.fromkeys(decision.rows):
            self._count(row, -1)
            self._of_row[row].pop()
            if not self._of_row[row]:
                del self._of_row[row]
            self._count(row, +1)
        return decision

    def write_csv(self, path: Path, ids: Sequence[str], id_name: str) -> None:
        """Write a table of the decisions, in the order of the targets."""
        with new_file(path) as aside, aside.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow([id_name, "label", "before", "decision", "group", "time"])
            for row in sorted(self._of_row):
                decision = self._of_row[row][-1]
                cells = [ids[row], self.label(row), self._given[row], self.kind(row)]
                writer.writerow([*cells, decision.group, decision.time])

    def _apply(self, decision: Decision) -> None:
        self._held.append(decision)
        for row in dict.fromkeys(decision.rows):
            self._count(row, -1)
            self._of_row.setdefault(row, []).append(decision)
            self._count(row, +1)

    def _count(self, row: int, by: int) -> None:
        name = self.label(row)
        if name is not None:
            self._names[name] += by
            if not self._names[name]:
                del self._names[name]


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, ensure_ascii=False).encode() + b"\n"
