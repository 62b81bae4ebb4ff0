"""The decisions of a review: the state that follows from its log, and the table of it."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from opensetda.errors import InputError
from opensetda.review.log import AuditMark, Decision, DecisionLog, Entry, now, open_own
from opensetda.system.files import new_file

Mark = Literal["known", "unknown"]

_COLUMNS = ("label", "before", "decision", "group", "time", "audit")
# Of releases without an audit.
_OLD_COLUMNS = _COLUMNS[:-1]
_ONLY_AUDITED = "audited"


class _State(NamedTuple):
    """What was said about a row: a label, or a mark of the audit, or both."""

    label: str | None
    audit: Mark | None
    group: int | None
    time: str


class Decisions:
    """The current decision of every row; changes are written to the log first.

    `given` are the run's labels of all targets, `classes` the known classes.
    """

    def __init__(
        self, log: DecisionLog, given: Sequence[str], classes: Sequence[str], unknown_label: str
    ) -> None:
        self._log, self._given = log, given
        self._classes, self._unknown_label = frozenset(classes), unknown_label
        self._held: list[Entry] = []
        self._of_row: dict[int, list[_State]] = {}  # the latest last
        self._names: Counter[str] = Counter()
        self.has_label = np.zeros(len(given), dtype=bool)
        for entry in log.read():
            self._apply(entry)

    def __len__(self) -> int:
        return len(self._of_row)

    def __contains__(self, row: int) -> bool:
        return bool(self.has_label[row])

    @property
    def can_undo(self) -> bool:
        """Whether there is something to undo."""
        return bool(self._held)

    @property
    def new_names(self) -> list[str]:
        """Names of new classes in use, in their order."""
        old = {*self._classes, self._unknown_label}
        return [name for name in self._names if name not in old]

    def label(self, row: int) -> str | None:
        """Return the decided label of a sample, or None."""
        return self._of_row[row][-1].label if row in self._of_row else None

    def audit(self, row: int) -> Mark | None:
        """Return the mark of a sample in the audit, or None."""
        return self._of_row[row][-1].audit if row in self._of_row else None

    def audited(self) -> dict[int, Mark]:
        """Return the marks of the audit by row."""
        marks = {row: states[-1].audit for row, states in self._of_row.items()}
        return {row: mark for row, mark in marks.items() if mark is not None}

    def kind(self, row: int) -> str | None:
        """Return "kept", "corrected", "new class", or None without a decided label."""
        label = self.label(row)
        if label is None:
            return None
        if label == self._given[row]:
            return "kept"
        is_old = label in self._classes or label == self._unknown_label
        return "corrected" if is_old else "new class"

    def decide(self, rows: Sequence[int], label: str | None, group: int | None = None) -> None:
        """Set the label of samples; None keeps the labels of the run."""
        self._add(Decision(tuple(map(int, rows)), label, group, now()))

    def mark(self, row: int, mark: Mark, label: str | None = None) -> None:
        """Mark a sample of the audit; a label overrules the mark."""
        said = mark if label is None else self._mark_of(label)
        self._add(AuditMark((int(row),), said, label, now()))

    def _add(self, entry: Entry) -> None:
        self._log.append(entry)
        self._apply(entry)

    def undo(self) -> Entry | None:
        """Undo the latest decision or mark and return it, or None."""
        if not self._held:
            return None
        self._log.append(None)
        entry = self._held.pop()
        for row in dict.fromkeys(entry.rows):
            self._count(row, -1)
            self._of_row[row].pop()
            if not self._of_row[row]:
                del self._of_row[row]
            self._count(row, +1)
        return entry

    def write_csv(self, path: Path, ids: Sequence[str], id_name: str) -> None:
        """Write a table of the decisions, in the order of the targets."""
        self.check_table(path, id_name)
        with new_file(path) as aside, aside.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow([id_name, *_COLUMNS])
            for row in sorted(self._of_row):
                state, kind = self._of_row[row][-1], self.kind(row) or _ONLY_AUDITED
                cells = [ids[row], state.label, self._given[row], kind]
                writer.writerow([*cells, state.group, state.time, state.audit])

    def check_table(self, path: Path, id_name: str) -> None:
        """Raise an `InputError` if a file is in the way that `write_csv` did not write."""
        stream = open_own(path)
        if stream is None:
            return
        headers = [
            ",".join((id_name, *names)).encode() + b"\n" for names in (_COLUMNS, _OLD_COLUMNS)
        ]
        with stream:
            begin = stream.read(len(headers[0]) + 1)
        header = next((one for one in headers if begin.startswith(one)), None)
        if header is None:
            raise InputError(f"{path}: not a table of this review; move it away")
        if self._log.is_new and begin != header:
            raise InputError(
                f"{path}: decisions that are not in {self._log.path.name}; move it away"
            )

    def check_whole(self, path: Path, ids: Sequence[str]) -> None:
        """Raise an `InputError` if the table at `path` has decisions that the log has lost."""
        stream = open_own(path)
        if stream is None:
            return
        # Undone ones, too: a crash may come before the table is written again.
        decided = {ids[row] for row in self._log.mentioned}
        with stream, TextIOWrapper(stream, "utf-8", "replace", newline="") as text:
            try:
                lost = [cells[0] for cells in islice(csv.reader(text), 1, None) if cells]
            except csv.Error as error:
                raise InputError(f"{path}: damaged ({error}); move it away") from error
        lost = [name for name in lost if name not in decided]
        if lost:
            raise InputError(
                f"{self._log.path}: cut short: {len(lost):,} decisions in {path.name} are not in "
                "it; put a whole one back, or move both files away"
            )

    def _mark_of(self, label: str) -> Mark:
        return "known" if label in self._classes else "unknown"

    def _apply(self, entry: Entry) -> None:
        self._held.append(entry)
        for row in dict.fromkeys(entry.rows):
            self._count(row, -1)
            state = self._state(row, entry)
            self._of_row.setdefault(row, []).append(state)
            self._count(row, +1)

    def _state(self, row: int, entry: Entry) -> _State:
        """Return what holds after an entry: label and mark of a row never contradict each other."""
        if isinstance(entry, Decision):
            told, mark = entry.label or self._given[row], self.audit(row)
            return _State(told, mark and self._mark_of(told), entry.group, entry.time)
        label = entry.label or self.label(row)
        if label is not None and self._mark_of(label) != entry.mark:
            label = None
        return _State(label, entry.mark, None, entry.time)

    def _count(self, row: int, by: int) -> None:
        name = self.label(row)
        self.has_label[row] = name is not None
        if name is not None:
            self._names[name] += by
            if not self._names[name]:
                del self._names[name]
