"""A review in progress, independent of HTTP: the run, the lists to review, and the decisions."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.errors import InputError, one_line
from opensetda.openness.audit import AUDIT_SIZE, scored_share
from opensetda.report.content import Indices, Numbers
from opensetda.review import queues
from opensetda.review.columns import NO_COLUMNS, open_columns
from opensetda.review.decisions import Decisions, Mark
from opensetda.review.disagreement import Doubts, doubts_of
from opensetda.review.log import AuditMark, DecisionLog, NotSavedError
from opensetda.review.page import Content, ShownPictures
from opensetda.review.queues import AUDIT, BORDER, DOUBT, FIND, SINGLE, UNSURE
from opensetda.runs.corrections import Names
from opensetda.runs.folder import CORRECTIONS, PREDICTIONS, REVIEW, RunFolder
from opensetda.runs.groups import UnknownGroups, unknown_groups

LIKELY_CLASSES, LONGEST_PAGE = 5, 60
# Searches whose results are kept: what was found stays as it is while it is being decided.
_KEPT_SEARCHES = 4
# One mark per sample in the strip below the picture; of longer lists only the share is drawn.
_LONGEST_STRIP = 400
_MARKS = {None: ".", "kept": "k", "corrected": "c", "new class": "n"}


class ReviewSession:
    """The review of one run by one process; thread-safe.

    `images` is their folder, if moved, and `audit` the number of targets drawn at random. Raises an
    `InputError` without such a run, if another process reviews it, or if its log is of another run.
    """

    def __init__(self, path: Path, images: Path | None = None, audit: int = AUDIT_SIZE) -> None:
        self.run = RunFolder.open(path)
        self.corrections = self.run.path / CORRECTIONS
        self._lock, self._is_closed = threading.RLock(), False
        self.trouble = ""  # why the table of corrections is out of date
        self._holds = _hold(path)
        try:
            self.table = table = self.run.predictions()
            self._identity = run_identity(self.run)
            log = DecisionLog(path / REVIEW, self._identity, len(table))
            self.unknown_label = unknown = self.run.unknown_label
            self.decisions = Decisions(log, table.labels.tolist(), table.classes, unknown)
            self._ids: list[str] = table.ids.tolist()
            self._pictures = ShownPictures(self.run, images)
            self._openness = used = self.run.estimates()["openness"]
            by = "audited" if used.get("audit") else "estimated"
            self._origin = "given" if used["told"] else by
            self._lists, self._note = self._first_lists(audit), ""
            self._searches: dict[str, Indices] = {}
            self._confidence = table.confidence
            self._doubts = Doubts(table, np.zeros(len(table)), {})
            self._columns = NO_COLUMNS
            self.decisions.check_table(self.corrections, table.id_name)
            self.decisions.check_whole(self.corrections, table.ids.tolist())
            if not log.is_new:
                # After a crash between writing log and table, the table is out of date.
                self._export()
                if self.trouble:
                    raise InputError(self.trouble)
        except BaseException:
            self.close()
            raise
        # It takes seconds; the audit can begin meanwhile.
        self._grouping = threading.Thread(target=self._find_lists, daemon=True)
        self._grouping.start()

    def close(self) -> None:
        """Release the run, once nothing is being written; later decisions are refused."""
        with self._lock:
            if self.trouble and not self._is_closed:
                self._export()
            holds, self._holds, self._is_closed = self._holds, None, True
            if holds is not None:
                os.close(holds)

    def _first_lists(self, n_audited: int) -> dict[str, Indices]:
        order = queues.audit_order(self._identity, len(self.table))
        if n_audited:
            # An earlier review may have audited more.
            marked = np.flatnonzero(np.isin(order, list(self.decisions.audited())))
            n_audited = max(n_audited, *(marked[-1:] + 1).tolist(), 0)
        return {
            **({AUDIT: order[:n_audited]} if n_audited else {}),
            BORDER: queues.rows_to_review(self.table, self.unknown_label),
            UNSURE: queues.least_confident(self.table),
            # Found later, but its place is before the classes.
            DOUBT: np.arange(0),
            **queues.by_class(self.table),
        }

    def start(self) -> dict[str, Any]:
        """Return what the page needs at its start."""
        return {
            "run": self.run.path.resolve().name,
            "classes": list(self.table.classes),
            "unknown": self.unknown_label,
            "pictures": self._pictures.has(0) if len(self.table) else False,
            **self.summary(),
        }

    def summary(self) -> dict[str, Any]:
        """Return the progress of the review."""
        with self._lock:
            return {
                "decided": len(self.decisions),
                "canUndo": self.decisions.can_undo,
                "newClasses": self.decisions.new_names,
                "isGrouping": self._grouping.is_alive(),
                "note": self._note,
                "columnsNote": self._columns.note,
                "trouble": self.trouble,
                "audit": self.audit(),
                "lists": [self._list_summary(key) for key in (*self._lists, *self._searches)],
            }

    def audit(self) -> dict[str, Any]:
        """Return the audited share of unknowns beside that of the run."""
        with self._lock:
            marks = self.decisions.audited()
            unknown = np.array([mark == "unknown" for mark in marks.values()], dtype=bool)
            rows = self._lists.get(AUDIT, np.arange(0)).tolist()
        # As 'osda fit --corrections' will compute it.
        share = scored_share(self.table.known_scores, np.array([*marks], dtype=np.intp), unknown)
        last = max((place for place, row in enumerate(rows) if row in marks), default=-1)
        return {
            **{"unknown": int(unknown.sum()), "marked": len(marks), "size": len(rows)},
            **{"share": share.share, "low": share.low, "high": share.high},
            "skipped": sum(row not in marks for row in rows[: last + 1]),
            **{"runShare": self._openness["share"], "origin": self._origin},
        }

    def search(self, key: str) -> dict[str, Any]:
        """Search anew; the key of the list is the query."""
        with self._lock:
            if not key.startswith(FIND):
                raise InputError("no search; use the form of the page")
            self._searches.pop(key, None)
            self._rows(key)
            return self.summary()

    def page(self, key: str, start: int, count: int) -> dict[str, Any]:
        """Return samples of a list, from place `start` on."""
        start, count = max(start, 0), min(max(count, 0), LONGEST_PAGE)
        with self._lock:
            rows = self._rows(key)
            shown = [self._sample(row) for row in rows[start:][:count].tolist()]
            marked = rows.tolist() if len(rows) <= _LONGEST_STRIP else []
            marks = "".join(self._strip_mark(key, row) for row in marked)
        answer = {"start": start, "samples": shown, "marks": marks, "likely": [], "columns": []}
        if key not in SINGLE and len(rows):
            answer["likely"] = self._likely(self.table.proba[rows, :-1].mean(axis=0))
            if not key.startswith(FIND):
                answer["columns"] = self._columns.of(rows)
        return answer

    def first_open(self, key: str) -> int:
        """Return the place of the first undecided sample of a list, or 0."""
        with self._lock:
            is_open = np.flatnonzero(~self._is_done(key, self._rows(key)))
            return int(is_open[0]) if len(is_open) else 0

    def decide(self, row: int, key: str, label: str | None) -> dict[str, Any]:
        """Set the label of one sample of a list; None keeps it."""
        self._check_member(row, key)
        if key == AUDIT and label is None:
            raise InputError("an audit keeps no label; say known or unknown")
        return self._decide([row], key, label)

    def mark(self, row: int, mark: str) -> dict[str, Any]:
        """Mark a sample of the audit "known" or "unknown"."""
        self._check_member(row, AUDIT)
        with self._lock:
            self._check_writable()
            said: dict[str, Mark] = {"known": "known", "unknown": "unknown"}
            if mark not in said:
                raise InputError("'mark' is neither 'known' nor 'unknown'")
            self.decisions.mark(row, said[mark])
            self._export()
            return self.summary()

    def decide_group(
        self, key: str, label: str | None, toggled: Sequence[int], window: slice = slice(None)
    ) -> dict[str, Any]:
        """Set the label of the undecided members, else of all; `toggled` are inverted.

        Only those of a `window` of the list, if there is one.
        """
        if key in SINGLE:
            raise InputError("this list is no group; decide one by one")
        with self._lock:
            rows = self._rows(key)[window].tolist()
            still_open = {row for row in rows if row not in self.decisions} or set(rows)
            # A row of another list is in neither of them.
            selected = still_open ^ (set(toggled) & set(rows))
            if not selected:
                raise InputError("no sample is selected; select some first")
            return self._decide([row for row in rows if row in selected], key, label)

    def undo(self, key: str = BORDER) -> dict[str, Any]:
        """Undo the latest decision; return a list in which it is, `key` if it can be."""
        with self._lock:
            self._check_writable()
            entry = self.decisions.undo()
            if entry is None:
                return {"undone": None, **self.summary()}
            self._export()
            keys = [key, *self._lists]
            if isinstance(entry, AuditMark):
                keys.insert(0, AUDIT)
            elif entry.group is not None:
                keys.insert(0, str(entry.group))
            found = ((key, np.flatnonzero(self._found(key) == entry.rows[0])) for key in keys)
            where, place = next(((key, int(at[0])) for key, at in found if len(at)), (BORDER, 0))
            undone = {"list": where, "place": place, "count": len(entry.rows)}
            return {"undone": undone, **self.summary()}

    def picture(self, row: int, small: bool) -> Content:
        """Return a picture of a target, or a placeholder."""
        if not 0 <= row < len(self.table):
            raise InputError(f"row {row}: the run has {len(self.table)} targets")
        return self._pictures.shown(row, small)

    def _decide(self, rows: Sequence[int], key: str, label: str | None) -> dict[str, Any]:
        with self._lock:
            self._check_writable()
            if label is not None:
                in_use = [*self.table.classes, *self.decisions.new_names]
                label = Names(in_use, self.unknown_label).checked(label)
            if key == AUDIT:
                self.decisions.mark(rows[0], "known", label)
            else:
                self.decisions.decide(rows, label, int(key) if key.isdecimal() else None)
            self._export()
            return {"count": len(rows), "label": label, **self.summary()}

    def _rows(self, key: str) -> Indices:
        if key.startswith(FIND) and key not in self._searches:
            query = queues.Query.of(key)
            found = query.rows(self.table, self._label, self._is_in_state)
            if len(self._searches) >= _KEPT_SEARCHES:
                del self._searches[next(iter(self._searches))]
            self._searches[key] = found
        if key not in self._searches and key not in self._lists:
            raise InputError("there is no such list")
        return self._found(key)

    def _found(self, key: str) -> Indices:
        return self._searches.get(key, self._lists.get(key, np.arange(0)))

    def _check_member(self, row: int, key: str) -> None:
        with self._lock:
            if row not in self._rows(key):
                raise InputError(f"row {row}: not in this list")

    def _label(self, row: int) -> str:
        return self.decisions.label(row) or str(self.table.labels[row])

    def _is_in_state(self, row: int, state: str) -> bool:
        if state in ("open", "decided"):
            return (row in self.decisions) == (state == "decided")
        if state == "audited":
            return self.decisions.audit(row) is not None
        return self.decisions.kind(row) == state

    def _is_done(self, key: str, rows: Indices) -> Any:
        if key == AUDIT:
            return np.isin(rows, list(self.decisions.audited()))
        return self.decisions.has_label[rows]

    def _strip_mark(self, key: str, row: int) -> str:
        mark = self.decisions.audit(row)
        if key == AUDIT:
            return "." if mark is None else "k" if mark == "known" else "u"
        return _MARKS[self.decisions.kind(row)]

    def _sample(self, row: int) -> dict[str, Any]:
        table, name, nearest = self.table, str(self.table.ids[row]), str(self.table.nearest[row])
        return {
            "row": row,
            "name": name if self.run.has_ids else f"Row {name}",
            "given": str(table.labels[row]),
            "nearest": nearest,
            "unknown": round(float(table.proba[row, -1]), 4),
            "confidence": round(float(self._confidence[row]), 4),
            "likely": self._likely(table.proba[row, :-1], nearest),
            "label": self.decisions.label(row),
            "kind": self.decisions.kind(row),
            "audit": self.decisions.audit(row),
            "picture": self._pictures.has(row),
            "reasons": self._doubts.words.get(row, []),
            "columns": self._columns.of(np.array([row]), nearest),
        }

    def _likely(self, proba: Numbers, nearest: str | None = None) -> list[tuple[str, float]]:
        """Return the most likely classes and their probabilities, the nearest one among them."""
        classes = self.table.classes
        best = np.argsort(-proba, kind="stable")[:LIKELY_CLASSES].tolist()
        if nearest in classes and classes.index(nearest) not in best:
            best[-1] = classes.index(nearest)
        return [(classes[place], round(float(proba[place]), 4)) for place in best]

    def _list_summary(self, key: str) -> dict[str, Any]:
        rows, name = self._rows(key), None
        if key.isdecimal():
            # The label that most of a group has.
            labels = Counter(map(self.decisions.label, rows.tolist()))
            most, count = labels.most_common(1)[0]
            name = most if 2 * count > len(rows) else None
        return {
            "key": key,
            "kind": queues.kind_of(key),
            "title": queues.title_of(key, self.table.classes),
            "size": len(rows),
            "decided": int(self._is_done(key, rows).sum()),
            "name": name,
            "rows": rows[:1].tolist(),
        }

    def _find_lists(self) -> None:
        """Find disagreement, read columns, group the unknowns; each is shown once it is there."""
        doubts = doubts_of(self.run, self.table)
        with self._lock:
            self._doubts = doubts
            self._lists[DOUBT] = doubts.most_doubtful()
        columns = open_columns(self.run, self.table)
        with self._lock:
            self._columns = columns
        try:
            groups = unknown_groups(self.run)
        except Exception as error:
            # Without groups, the samples can still be reviewed.
            rows = np.flatnonzero(self.table.labels == self.unknown_label)
            groups = UnknownGroups((rows,) if len(rows) else (), f"All in one group: {error}")
        with self._lock:
            self._note = groups.note
            for number, members in enumerate(groups.groups, start=1):
                self._lists[str(number)] = members

    def _export(self) -> None:
        """Write the table; what is in the log is saved, also if this fails."""
        try:
            self.decisions.write_csv(self.corrections, self._ids, self.table.id_name)
            self.trouble = ""
        except (OSError, InputError) as error:
            reason = getattr(error, "strerror", None) or one_line(error)
            self.trouble = (
                f"saved to {REVIEW}, but not to {self.corrections} ({reason}); repair that, and "
                "start 'osda review' again"
            )

    def _check_writable(self) -> None:
        """Raise a `NotSavedError` if the review is closed, or the run was replaced."""
        if self._is_closed:
            # After Ctrl-C a connection may still be open, and another review may have begun.
            raise NotSavedError("not saved: this review has ended; start 'osda review' again")
        try:
            is_same = run_identity(RunFolder.open(self.run.path)) == self._identity
            self.decisions.check_table(self.corrections, self.table.id_name)
        except (OSError, InputError) as error:
            raise NotSavedError(f"not saved: {one_line(error)}") from error
        if not is_same:
            raise NotSavedError(
                f"{self.run.path}: replaced by another run meanwhile; start 'osda review' again"
            )


def run_identity(run: RunFolder) -> str:
    """Return the identity of a run, or the checksum of its predictions."""
    identity = run.settings["identity"]
    return f"sha256:{run.manifest.files[PREDICTIONS]}" if identity is None else identity


def _hold(path: Path) -> int | None:
    """Lock the run's folder for this process; the system releases it when the process ends."""
    folder = None
    with suppress(OSError, ImportError):
        # Without locks (Windows, some file systems) two reviews are not prevented.
        import fcntl

        folder = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(folder)
            message = f"{path}: another 'osda review' is running on it; end that one first"
            raise InputError(message) from None
    return folder
