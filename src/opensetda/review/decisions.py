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
from dataclasses import dataclass
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import Any

from opensetda.errors import InputError
from opensetda.system.files import new_file

_FORMAT = "opensetda-review"
_VERSION = 1


class NotSavedError(InputError):
    """Decisions cannot be saved."""


@dataclass(frozen=True)
class Decision:
    """A label for some samples.

    Attributes
    ----------
    rows : tuple of int
        Rows of the targets, from 0.
    label : str or None
        A class, a new class or the unknown label; None keeps the labels of the run.
    group : int or None
        Number of the group of unknowns, from 1, in which they were shown.
    time : str
        ISO 8601 with the offset from UTC.
    """

    rows: tuple[int, ...]
    label: str | None
    group: int | None
    time: str

    def to_dict(self) -> dict[str, Any]:
        """Return the line of the log."""
        return {
            "do": "decide",
            "rows": list(self.rows),
            "label": self.label,
            "group": self.group,
            "time": self.time,
        }

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Decision:
        """Read a line of the log, or raise a `ValueError`."""
        rows, label, group, time = (entry[name] for name in ("rows", "label", "group", "time"))
        if not isinstance(rows, list) or not all(type(row) is int and row >= 0 for row in rows):
            raise ValueError("'rows' are not row numbers")
        if not (label is None or isinstance(label, str)):
            raise ValueError("'label' is no text")
        if not (group is None or type(group) is int):
            raise ValueError("'group' is no number")
        return cls(tuple(rows), label, group, str(time))


class DecisionLog:
    """The file of the decisions; created with the first one.

    Parameters
    ----------
    path : Path
        The file.
    identity : str
        Identity of the run: decisions about another run are refused.
    n_rows : int
        Number of targets.
    """

    def __init__(self, path: Path, identity: str, n_rows: int) -> None:
        self.path, self.identity, self.n_rows = path, identity, n_rows
        # Bytes of complete lines; the rest is an incomplete one.
        self._size = 0

    def read(self) -> list[Decision]:
        """Return the decisions in their order, without undone ones."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            content = b""
        self._size = content.rfind(b"\n") + 1
        lines = content[: self._size].split(b"\n")[:-1]
        if lines:
            self._check_head(lines[0])
        held: list[Decision] = []
        for number, line in enumerate(lines[1:], start=2):
            try:
                self._replay(json.loads(line), held)
            except (KeyError, TypeError, ValueError) as error:
                reason = " ".join(str(error).split())
                raise InputError(
                    f"{self.path}: line {number} is damaged ({reason}); "
                    "remove the line, or move the file away"
                ) from error
        return held

    def append(self, decision: Decision | None, time: str | None = None) -> None:
        """Write a decision, or an undo for None, and sync it to disk."""
        entry = {"do": "undo", "time": time or now()} if decision is None else decision.to_dict()
        text = _line(entry)
        if self._size == 0:
            head = {"format": _FORMAT, "version": _VERSION, "identity": self.identity}
            text = _line(head) + text
        # Unbuffered: after an error nothing may be written when the file is closed.
        with self._open() as stream:
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
            _sync_folder(self.path.parent)
        self._size += len(text)

    def _open(self) -> FileIO:
        is_there = self.path.exists()
        if (self.path.stat().st_size if is_there else 0) < self._size:
            # Writing on would leave a hole in place of the earlier decisions.
            raise NotSavedError(
                f"not saved: {self.path} was removed or cut short by another program; put it "
                "back, or start 'osda review' again"
            )
        return FileIO(self.path, "r+" if is_there else "x+")

    def _replay(self, entry: Any, held: list[Decision]) -> None:
        if entry["do"] == "undo":
            if not held:
                raise ValueError("nothing to undo")
            held.pop()
        elif entry["do"] == "decide":
            decision = Decision.from_dict(entry)
            if any(row >= self.n_rows for row in decision.rows):
                raise ValueError(f"the run has {self.n_rows} targets only")
            held.append(decision)
        else:
            raise ValueError("neither a decision nor an undo")

    def _check_head(self, line: bytes) -> None:
        try:
            head = json.loads(line)
            is_ours = head["format"] == _FORMAT and head["version"] == _VERSION
            identity = head["identity"]
        except (KeyError, TypeError, ValueError):
            is_ours = False
        if not is_ours:
            raise InputError(
                f"{self.path}: not the log of a review by this release; move it away"
            ) from None
        if identity != self.identity:
            raise InputError(
                f"{self.path}: decisions about another run that was here before; "
                "move the file away to review this one"
            )


class Decisions:
    """The current decision of every row; changes are written to the log first.

    Parameters
    ----------
    log : DecisionLog
        The file.
    given : sequence of str
        The run's label of each target.
    classes : sequence of str
        The known classes.
    unknown_label : str
        The label of unknowns.
    """

    def __init__(
        self, log: DecisionLog, given: Sequence[str], classes: Sequence[str], unknown_label: str
    ) -> None:
        self._log, self._given = log, given
        self._old_names = {*classes, unknown_label}
        self._held: list[Decision] = []
        self._covered: list[dict[int, Decision | None]] = []
        self._current: dict[int, Decision] = {}
        self._names: Counter[str] = Counter()
        for decision in log.read():
            self._apply(decision)

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, row: int) -> bool:
        return row in self._current

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
        decision = self._current.get(row)
        if decision is None:
            return None
        return self._given[row] if decision.label is None else decision.label

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
        decision = Decision(tuple(rows), label, group, now())
        self._log.append(decision)
        self._apply(decision)

    def undo(self) -> Decision | None:
        """Undo the latest decision and return it, or None."""
        if not self._held:
            return None
        self._log.append(None)
        decision, covered = self._held.pop(), self._covered.pop()
        for row, earlier in covered.items():
            self._count(row, -1)
            if earlier is None:
                del self._current[row]
            else:
                self._current[row] = earlier
                self._count(row, +1)
        return decision

    def write_csv(self, path: Path, ids: Sequence[str], id_name: str) -> None:
        """Write a table of the decisions, in the order of the targets."""
        with new_file(path) as aside, aside.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow([id_name, "label", "before", "decision", "group", "time"])
            for row in sorted(self._current):
                decision = self._current[row]
                cells = [ids[row], self.label(row), self._given[row], self.kind(row)]
                writer.writerow([*cells, decision.group, decision.time])

    def _apply(self, decision: Decision) -> None:
        rows = dict.fromkeys(decision.rows)
        self._held.append(decision)
        self._covered.append({row: self._current.get(row) for row in rows})
        for row in rows:
            self._count(row, -1)
            self._current[row] = decision
            self._count(row, +1)

    def _count(self, row: int, by: int) -> None:
        name = self.label(row)
        if name is not None:
            self._names[name] += by
            if not self._names[name]:
                del self._names[name]


def now() -> str:
    """Return the time in ISO 8601, with the offset from UTC."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, ensure_ascii=False).encode() + b"\n"


def _sync_folder(path: Path) -> None:
    """Sync the entry of a new file in its folder, where the system can."""
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
