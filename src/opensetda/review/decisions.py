"""The decisions of a review: the state that follows from its log, and the table of it."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from io import TextIOWrapper
from itertools import islice
from pathlib import Path

from opensetda.errors import InputError
from opensetda.review.log import Decision, DecisionLog, now, open_own
from opensetda.system.files import new_file

_COLUMNS = ("label", "before", "decision", "group", "time")


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
        decision = Decision(tuple(rows), label, group, now())
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
        self.check_table(path, id_name)
        with new_file(path) as aside, aside.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow([id_name, *_COLUMNS])
            for row in sorted(self._of_row):
                decision = self._of_row[row][-1]
                cells = [ids[row], self.label(row), self._given[row], self.kind(row)]
                writer.writerow([*cells, decision.group, decision.time])

    def check_table(self, path: Path, id_name: str) -> None:
        """Raise an `InputError` if a file is in the way that `write_csv` did not write."""
        stream = open_own(path)
        if stream is None:
            return
        header = ",".join((id_name, *_COLUMNS)).encode() + b"\n"
        with stream:
            begin = stream.read(len(header) + 1)
        if not begin.startswith(header):
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
            lost = [cells[0] for cells in islice(csv.reader(text), 1, None) if cells]
        lost = [name for name in lost if name not in decided]
        if lost:
            raise InputError(
                f"{self._log.path}: cut short: {len(lost):,} decisions in {path.name} are not in "
                "it; put a whole one back, or move both files away"
            )

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
