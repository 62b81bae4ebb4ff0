"""The decisions of a review: their log, the state that follows from it, and the table of it.

Every decision is one line of JSON, synced to disk before the page says that it was saved; undoing
is a line, too. A crash while writing leaves a last line without its end, which is skipped, and
overwritten by the next decision.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from errno import ENOSPC
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from opensetda.errors import InputError, one_line
from opensetda.system.files import new_file, open_regular

Mark = Literal["known", "unknown"]

_FORMAT = {"format": "opensetda-review", "version": 2}
_COLUMNS = ("label", "before", "decision", "group", "time", "audit")


class NotSavedError(InputError):
    """Decisions cannot be saved."""


class Entry(BaseModel):
    """A line of the log: a label for some samples, a mark of the audit, or an undo."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    do: Literal["decide", "undo"] = "decide"
    rows: tuple[Annotated[int, Field(ge=0)], ...] = ()  # of the targets, from 0
    label: str | None = None  # a class, new or not, or the unknown label; None: that of the run
    mark: Mark | None = None  # only of the audit; None as a label then means that none was given
    list: str = ""  # in which the samples were shown; a group of unknowns has its number, from 1
    time: str = Field(default_factory=lambda: datetime.now().astimezone().isoformat("T", "seconds"))


class DecisionLog:
    """The file of the decisions about the run of an identity; created with the first one."""

    def __init__(self, path: Path, identity: str, n_rows: int) -> None:
        self.path, self._n_rows = path, n_rows
        self._head = json.dumps({**_FORMAT, "identity": identity}).encode()
        self.size = 0  # bytes of whole lines; none before the first decision

    def read(self) -> list[Entry]:
        """Return decisions and marks in their order, without undone ones."""
        if self.path.is_symlink():
            raise InputError(f"{self.path}: a link, not the log of a review; move it away")
        try:
            with open_regular(self.path) as stream:
                *lines, _torn = stream.read().split(b"\n")
        except FileNotFoundError:
            return []
        if lines and lines[0] != self._head:
            raise InputError(f"{self.path}: not a review of this run; move the file away")
        held: list[Entry] = []
        for number, line in enumerate(lines[1:], start=2):
            try:
                entry = Entry.model_validate_json(line)
                if entry.do == "decide" and not 0 <= max(entry.rows, default=-1) < self._n_rows:
                    raise ValueError(f"rows: not of the {self._n_rows} targets")
                held.append(entry)
                if entry.do == "undo":
                    del held[-2:]
            except ValueError as error:
                raise InputError(
                    f"{self.path}: line {number} is damaged ({one_line(error, 150)}); remove the "
                    "line, or move the file away"
                ) from error
        self.size = sum(map(len, lines)) + len(lines)
        return held

    def begin(self, entries: Sequence[Entry]) -> None:
        """Write the file with the entries of another review of the same targets."""
        lines = [json.dumps(entry.model_dump(), ensure_ascii=False) for entry in entries]
        with new_file(self.path) as aside:
            content = b"".join(line.encode("utf-8", "replace") + b"\n" for line in lines)
            aside.write_bytes(self._head + b"\n" + content)

    def append(self, entry: Entry) -> None:
        """Write an entry and sync it to disk, or raise a `NotSavedError`."""
        line = json.dumps(entry.model_dump(), ensure_ascii=False).encode("utf-8", "replace")
        text = (b"" if self.size else self._head + b"\n") + line + b"\n"
        try:
            # Unbuffered: after an error nothing may be written when the file is closed.
            with open(self._number(), "r+b", buffering=0) as stream:  # noqa: PTH123 - of a number
                stream.truncate(stream.seek(self.size))
                try:
                    if stream.write(text) < len(text):
                        raise OSError(ENOSPC, os.strerror(ENOSPC))
                    os.fsync(stream.fileno())
                except OSError:
                    # Reported as not saved: it must not reappear.
                    with suppress(OSError):
                        stream.truncate(self.size)
                    raise
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise NotSavedError(
                f"not saved: {self.path} cannot be written ({reason}); repair that, and decide "
                "again"
            ) from error
        self.size += len(text)

    def _number(self) -> int:
        """Open the file, or make it; a link in its place is an error."""
        flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        try:
            return os.open(self.path, flags)
        except FileNotFoundError:
            if self.size:
                # Somebody removed it: earlier decisions are gone, and nobody must miss that.
                raise
            return os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o666)


class Decisions:
    """The current decision of every row; changes are written to the log first.

    `given` are the run's labels of all targets, `classes` the known classes. The first decision
    takes over the `learned` ones, which the run was fitted with: the next fit must not lose them.
    """

    def __init__(
        self,
        log: DecisionLog,
        given: Sequence[str],
        classes: Sequence[str],
        unknown_label: str,
        learned: Sequence[Entry] = (),
    ) -> None:
        self._log, self._given, self._classes = log, given, frozenset(classes)
        self._learned = learned
        self._old_names = {*classes, unknown_label}
        self.entries = log.read()  # those that can be undone
        self.revision = 0  # counts what was said or undone since the start
        self._revision_of: dict[int, int] = {}
        self._replay()

    def _replay(self) -> None:
        # The latest entry about each row, with the label and mark that hold since then.
        self._of_row: dict[int, Entry] = {}
        self.has_label = np.zeros(len(self._given), dtype=bool)
        for entry in self.entries:
            self._apply(entry)

    def __len__(self) -> int:
        return len(self._of_row)

    def __contains__(self, row: int) -> bool:
        return bool(self.has_label[row])

    @property
    def new_names(self) -> list[str]:
        """Names of new classes in use."""
        names = dict.fromkeys(said.label for said in self._of_row.values())
        return [name for name in names if name is not None and name not in self._old_names]

    def labels(self) -> dict[int, str]:
        """Return the decided labels by row."""
        return {row: said.label for row, said in self._of_row.items() if said.label is not None}

    def changed_since(self, rows: Iterable[int], revision: int) -> bool:
        """Return whether something was said about one of these rows after a revision."""
        return any(self._revision_of.get(row, 0) > revision for row in rows)

    def label(self, row: int) -> str | None:
        """Return the decided label of a sample, or None."""
        return self._of_row[row].label if row in self._of_row else None

    def audit(self, row: int) -> Mark | None:
        """Return the mark of a sample in the audit, or None."""
        return self._of_row[row].mark if row in self._of_row else None

    def audited(self) -> dict[int, Mark]:
        """Return the marks of the audit by row."""
        return {row: said.mark for row, said in self._of_row.items() if said.mark is not None}

    def kind(self, row: int) -> str | None:
        """Return "kept", "corrected", "new class", or None without a decided label."""
        label = self.label(row)
        if label is None or label == self._given[row]:
            return label and "kept"
        return "corrected" if label in self._old_names else "new class"

    def decide(self, rows: Sequence[int], label: str | None, key: str = "") -> None:
        """Set the label of samples of a list; None keeps the labels of the run."""
        self._add(Entry(rows=tuple(map(int, rows)), label=label, list=key))

    def mark(self, row: int, mark: Mark, label: str | None = None) -> None:
        """Mark a sample of the audit; a label overrules the mark."""
        said = mark if label is None else self._mark_of(label)
        self._add(Entry(rows=(int(row),), label=label, mark=said, list="audit"))

    def _add(self, entry: Entry) -> None:
        if self._learned and not self._log.size:
            self._log.begin(self._learned)
            self.entries = self._log.read()
            self._replay()
        self._log.append(entry)
        self.entries.append(entry)
        self._apply(entry)
        self._count(entry)

    def undo(self) -> Entry | None:
        """Undo the latest decision or mark and return it, or None."""
        if not self.entries:
            return None
        self._log.append(Entry(do="undo"))
        entry = self.entries.pop()
        self._replay()
        self._count(entry)
        return entry

    def _count(self, entry: Entry) -> None:
        self.revision += 1
        for row in entry.rows:
            self._revision_of[row] = self.revision

    def write_csv(self, path: Path, ids: Sequence[str], id_name: str) -> None:
        """Write a table of the decisions, in the order of the targets."""
        with new_file(path) as aside, aside.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow([id_name, *_COLUMNS])
            for row, said in sorted(self._of_row.items(), key=itemgetter(0)):
                cells = [ids[row], said.label, self._given[row], self.kind(row) or "audited"]
                group = said.list if said.list.isdecimal() else ""
                writer.writerow([*cells, group, said.time, said.mark])

    def _mark_of(self, label: str) -> Mark:
        return "known" if label in self._classes else "unknown"

    def _apply(self, entry: Entry) -> None:
        """Take an entry over: label and mark of a row never contradict each other."""
        for row in entry.rows:
            label, mark = entry.label or self.label(row), entry.mark
            if mark is None:
                label = entry.label or self._given[row]
                mark = self.audit(row) and self._mark_of(label)
            elif label and self._mark_of(label) != mark:
                label = None
            self._of_row[row] = entry.model_copy(update={"label": label, "mark": mark})
            self.has_label[row] = label is not None
