"""A review in progress, independent of HTTP: the run, the lists to review, and the decisions."""

from __future__ import annotations

import csv
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.data.names import formula_warning
from opensetda.errors import InputError, one_line
from opensetda.report.content import Indices, Numbers
from opensetda.review import queues
from opensetda.review.decisions import DecisionLog, Decisions, Entry, Mark, NotSavedError
from opensetda.review.hints import Columns, open_columns
from opensetda.review.page import Content, ShownPictures
from opensetda.review.queues import AUDIT, BORDER, FIND, SINGLE, USEFUL
from opensetda.review.refit import Refit, next_steps
from opensetda.review.useful import UsefulList, audit_summary, learned_by_fit, rows_by_label
from opensetda.runs.folder import CORRECTIONS, REPORT, REVIEW, RunFolder, predictions_name
from opensetda.runs.place import ReplacedRunError, changing_run
from opensetda.runs.sample_map import UnknownGroups, unknown_groups
from opensetda.share.audit import AUDIT_SIZE
from opensetda.system.locks import BusyError, lock_folder
from opensetda.usecases.corrections import as_new_class

LIKELY_CLASSES, LONGEST_PAGE = 9, 60
# One mark per sample in the strip below the picture; of longer lists only the share is drawn.
_LONGEST_STRIP = 400
_MARKS = {None: ".", "kept": "k", "corrected": "c", "new class": "n", "known": "k", "unknown": "u"}


class ReviewSession:
    """The review of one run by one process; who calls it from several threads holds its `lock`.

    `images` is their folder, if moved, and `audit` the number of targets drawn at random; a run
    that a review has made begins with the `entries` of that. Raises an `InputError` without such a
    run, if another process reviews it, or if its log is of another run.
    """

    def __init__(
        self,
        path: Path,
        images: Path | None = None,
        audit: int = AUDIT_SIZE,
        entries: Sequence[Entry] | None = None,
    ) -> None:
        self._asked_for = path
        self._images = images
        self._audit = audit
        self.refit: Refit | None = None
        self.successor: ReviewSession | None = None  # of the run that this review has made
        self.run = RunFolder.open(path)
        self.corrections = path / CORRECTIONS
        self.lock = threading.RLock()
        self._grouping = threading.Thread(target=self._find_lists, daemon=True)
        self.trouble = ""  # why the table of corrections is out of date
        self.moved = ""  # where the run is kept, if another has taken its place
        try:
            self._holds = lock_folder(self.run.path)
        except BusyError:
            busy = "another 'osda review' is running on it; end that one first"
            raise InputError(f"{path}: {busy}") from None
        except FileNotFoundError:
            raise InputError(f"{path}: replaced by another run meanwhile; try again") from None
        try:
            if self.run.was_replaced:
                raise InputError(f"{path}: replaced by another run meanwhile; try again")
            self.table = table = self.run.predictions()
            # Of a demo, the checksum of its predictions.
            identity = self.run.settings["identity"]
            identity = identity or f"sha256:{self.run.manifest.files[predictions_name(len(table))]}"
            log = DecisionLog(path / REVIEW, identity, len(table))
            if entries is not None:
                log.begin(entries)
            self.unknown_label = unknown = self.run.unknown_label
            given = table.labels.tolist()
            self.decisions = Decisions(log, given, table.classes, unknown, learned_by_fit(table))
            if self.corrections.exists() and not log.size and entries is None:
                raise InputError(
                    f"{self.corrections}: decisions that are not in {REVIEW}; move it away"
                )
            self._pictures = ShownPictures(self.run, images)
            self._openness = self.run.estimates()["openness"]
            self._note, self._columns = "", Columns()
            self._confidence = table.confidence
            self._lists = {USEFUL: np.arange(0)}
            if audit:
                self._lists[AUDIT] = queues.audit_order(identity, len(table))[:audit]
            alarms = self.run.estimates().get("alarms") or []
            self._lists |= queues.first_lists(table, unknown, [alarm["name"] for alarm in alarms])
            self._useful = UsefulList(self.run, table, self.decisions)
            self._ask()
            self._log = log
            if log.size:
                # After a crash between writing log and table, the table is out of date.
                with self._saving():
                    self._export()
        except BaseException:
            self.close()
            raise
        self._grouping.start()

    def close(self) -> None:
        """Release the run, once nothing is being written."""
        if self.refit is not None and self.successor is None:
            self.refit.stop()
        if self._grouping.is_alive():
            self._grouping.join()  # pyarrow hangs if the process ends while it reads
        with self.lock:
            self._holds.release()

    def start(self) -> dict[str, Any]:
        """Return what the page needs at its start."""
        return {
            "size": len(self.table),
            "classes": list(self.table.classes),
            "unknown": self.unknown_label,
            "pictures": self._pictures.has(0),
            **self.summary(),
        }

    def summary(self) -> dict[str, Any]:
        """Return the progress of the review."""
        return {
            "run": self.run.path.resolve().name,
            "report": (self.run.path / REPORT).is_file(),
            "decided": len(self.decisions),
            "canUndo": bool(self.decisions.entries),
            "newClasses": self.decisions.new_names,
            "isGrouping": self._grouping.is_alive(),
            "note": self._note,
            "columnsNote": self._columns.note,
            "trouble": "; ".join(filter(None, (self.moved, self.trouble))),
            "audit": self.audit(),
            "useful": self._useful.summary(),
            "refit": None if self.refit is None else self.refit.summary(),
            "revision": self.decisions.revision,
            "lists": [self._list_summary(key, rows) for key, rows in self._lists.items()],
        }

    def audit(self) -> dict[str, Any]:
        """Return the audited share of unknowns beside that of the run."""
        rows = self._lists.get(AUDIT, np.arange(0))
        return audit_summary(self.table, self.decisions.audited(), rows, self._openness)

    def take_marks(self, path: Path) -> int:
        """Take labels from a CSV file, or an export of Label Studio; return how many."""
        new_names = self.decisions.new_names
        found = rows_by_label(path, self.table, new_names, self.unknown_label)
        with self._saving():
            for label, rows in found.items():
                self.decisions.decide(rows, label, USEFUL)
            self._export()
        return sum(map(len, found.values()))

    def _ask(self) -> None:
        self._lists[USEFUL] = self._useful.rows()

    def start_refit(self) -> dict[str, Any]:
        """Fit again with the corrections, beside this run; the review then goes on there."""
        if self.refit is not None and self.refit.state == "running":
            raise InputError("the fit is still at work")
        if not len(self.decisions) or self.trouble:
            raise InputError(self.trouble or "mark some samples first")
        self.refit = Refit(self.run, self.corrections, self._go_on)
        return self.summary()

    def _go_on(self, out: Path) -> None:
        """Continue with a new run: no decision is lost, and each can be undone there."""
        with self.lock:
            self.successor = ReviewSession(out, self._images, self._audit, self.decisions.entries)

    def finish(self) -> dict[str, Any]:
        """Return what to do next."""
        marked = int(self.decisions.has_label.sum())
        return {"marked": marked, "commands": next_steps(self.run, self.corrections)}

    def report(self) -> bytes | None:
        """Return the report of the run, if it has one."""
        path = self.run.path / REPORT
        return path.read_bytes() if path.is_file() and not path.is_symlink() else None

    def search(self, key: str) -> dict[str, Any]:
        """Search anew; the key of the list is the query."""
        found = {key: queues.search(key, self.table, self.decisions)}
        lists = {at: rows for at, rows in self._lists.items() if not at.startswith(FIND)}
        # What was found stays as it is while it is being decided, until the next search.
        self._lists = lists | found
        return self.summary()

    def page(self, key: str, start: int, count: int) -> dict[str, Any]:
        """Return samples of a list, from place `start` on."""
        rows = self._rows(key)
        shown = rows[start:][: min(count, LONGEST_PAGE)].tolist()
        marked = rows.tolist() if len(rows) <= _LONGEST_STRIP else []
        mark_of = self.decisions.audit if key == AUDIT else self.decisions.kind
        answer = {
            "start": start,
            "samples": [self._sample(row) for row in shown],
            "marks": "".join(_MARKS[mark_of(row)] for row in marked),
            "likely": [],
            "columns": [],
        }
        if key not in SINGLE and len(rows):
            answer["likely"] = self._likely(self.table.proba[rows, :-1].mean(axis=0))
            if not key.startswith(FIND):
                answer["columns"] = self._columns.of(rows)
        return answer

    def decide(
        self, row: int, key: str, label: str | None, revision: int | None = None
    ) -> dict[str, Any]:
        """Set the label of one sample of a list; None keeps it.

        It is refused if more was said about the sample than who asks has seen, at a `revision`.
        """
        self._check_member(row, key)
        self._check_seen([row], revision)
        if key == AUDIT and label is None:
            raise InputError("an audit keeps no label; say known or unknown")
        return self._decide([row], key, label)

    def mark(self, row: int, mark: Mark, revision: int | None = None) -> dict[str, Any]:
        """Mark a sample of the audit "known" or "unknown"."""
        self._check_member(row, AUDIT)
        self._check_seen([row], revision)
        with self._saving():
            self.decisions.mark(row, mark)
            self._export()
        return self.summary()

    def decide_group(
        self,
        key: str,
        label: str | None,
        toggled: Sequence[int],
        window: Sequence[int] = (),
        revision: int | None = None,
    ) -> dict[str, Any]:
        """Set the label of the undecided members, else of all; `toggled` are inverted.

        Only those of a `window` of the list, its first place and its end, if there is one.
        """
        if key in SINGLE:
            raise InputError("this list is no group; decide one by one")
        rows = self._rows(key)[slice(*window) if window else slice(None)].tolist()
        self._check_seen(rows, revision)
        still_open = {row for row in rows if row not in self.decisions} or set(rows)
        # A row of another list is in neither of them.
        selected = still_open ^ (set(toggled) & set(rows))
        if not selected:
            raise InputError("no sample is selected; select some first")
        return self._decide([row for row in rows if row in selected], key, label)

    def undo(self, revision: int | None = None) -> dict[str, Any]:
        """Undo the latest decision; return the list that it was made in, and its place there."""
        if revision is not None and revision != self.decisions.revision:
            raise InputError("another tab has decided more; press U again to undo that")
        with self._saving():
            entry = self.decisions.undo()
            if entry is not None:
                self._export()
        if entry is None:
            return {"undone": None, **self.summary()}
        self._ask()
        where = entry.list if entry.list in self._lists else BORDER
        found = np.flatnonzero(self._lists[where] == entry.rows[0])
        place = int(found[0]) if len(found) else 0
        undone = {"list": where, "place": place, "count": len(entry.rows)}
        return {"undone": undone, **self.summary()}

    def picture(self, row: int, small: bool) -> Content:
        """Return a picture of a target, or a placeholder; needs no lock."""
        return self._pictures.shown(row, small)

    def _decide(self, rows: Sequence[int], key: str, label: str | None) -> dict[str, Any]:
        if label is not None:
            in_use = [self.unknown_label, *self.table.classes, *self.decisions.new_names]
            label = as_new_class(label, in_use, self.unknown_label)
        with self._saving():
            if key == AUDIT:
                self.decisions.mark(rows[0], "known", label)
            else:
                self.decisions.decide(rows, label, key)
            self._export()
        self._ask()
        return {"count": len(rows), "label": label, **self.summary()}

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Hold the lock of the run while decisions are saved; follow the run if it was moved."""
        try:
            with changing_run(self._asked_for, self.run.stamp) as place:
                if place != self.run.path:
                    self._follow(place)
                yield
        except ReplacedRunError as error:
            raise NotSavedError(f"not saved: {error}") from None

    def _follow(self, place: Path) -> None:
        """Go on in another folder: 'osda fit --overwrite' has moved the run there."""
        self.run.path = place
        self.corrections = place / CORRECTIONS
        self._log.path = place / REVIEW
        self.moved = (
            f"a new run has taken the place of {self._asked_for}; the run reviewed here and its "
            f"decisions are kept in {place}"
        )

    def _rows(self, key: str) -> Indices:
        if key.startswith(FIND) and key not in self._lists:
            self.search(key)
        if key not in self._lists:
            raise InputError("there is no such list")
        return self._lists[key]

    def _check_seen(self, rows: Sequence[int], revision: int | None) -> None:
        if revision is not None and self.decisions.changed_since(rows, revision):
            raise InputError("another tab has decided this meanwhile; look again")

    def _check_member(self, row: int, key: str) -> None:
        if row not in self._rows(key):
            raise InputError(f"row {row}: not in this list")

    def _sample(self, row: int) -> dict[str, Any]:
        table, name = self.table, str(self.table.ids[row])
        return {
            "row": row,
            "name": name if self.run.settings["has_ids"] else f"Row {name}",
            "given": str(table.labels[row]),
            "nearest": str(table.nearest[row]),
            "unknown": round(float(table.proba[row, -1]), 4),
            "confidence": round(float(self._confidence[row]), 4),
            "likely": self._likely(table.proba[row, :-1]),
            "label": self.decisions.label(row),
            "kind": self.decisions.kind(row),
            "audit": self.decisions.audit(row),
            "picture": self._pictures.has(row),
            "columns": self._columns.of(np.array([row])),
        }

    def _likely(self, proba: Numbers) -> list[tuple[str, float]]:
        """Return the most likely classes and their probabilities."""
        best = np.argsort(-proba, kind="stable")[:LIKELY_CLASSES].tolist()
        return [(self.table.classes[place], round(float(proba[place]), 4)) for place in best]

    def _list_summary(self, key: str, rows: Indices) -> dict[str, Any]:
        name = None
        if key.isdecimal():
            # The label that most of a group has.
            most, count = Counter(map(self.decisions.label, rows.tolist())).most_common(1)[0]
            name = most if 2 * count > len(rows) else None
        is_done = self.decisions.has_label[rows]
        if key == AUDIT:
            is_done = np.isin(rows, list(self.decisions.audited()))
        return {
            "key": key,
            "name": name,
            "size": len(rows),
            "rows": rows[:1].tolist(),
            "decided": int(is_done.sum()),
            "open": int(is_done.argmin()) if len(rows) else 0,
        }

    def _find_lists(self) -> None:
        """Read columns, group the unknowns; each is shown once it is there."""
        # Of a damaged or missing file, say: the labels can still be reviewed.
        with suppress(Exception):
            self._columns = open_columns(self.run, self.table)
        try:
            groups = unknown_groups(self.run.view(), self.table.labels == self.unknown_label)
        except Exception as error:
            groups = UnknownGroups((), f"No groups: {one_line(error)}")
        with self.lock:
            self._note = groups.note
            self._lists |= {str(n): rows for n, rows in enumerate(groups.groups, start=1)}

    def formula_warning(self) -> list[str]:
        """Return a warning if the table has cells that start a formula in a spreadsheet."""
        if not self.corrections.exists():
            return []
        with self.corrections.open(encoding="utf-8", newline="") as stream:
            return formula_warning(self.corrections, chain.from_iterable(csv.reader(stream)))

    def _export(self) -> None:
        """Write the table; what is in the log is saved, also if this fails."""
        try:
            self.decisions.write_csv(self.corrections, self.table.ids.tolist(), self.table.id_name)
            self.trouble = ""
        except (OSError, InputError) as error:
            reason = getattr(error, "strerror", None) or one_line(error)
            advice = "repair that, and start 'osda review' again"
            self.trouble = f"saved to {REVIEW}, but not to {self.corrections} ({reason}); {advice}"
