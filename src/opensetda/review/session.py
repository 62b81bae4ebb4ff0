"""A review in progress, independent of HTTP: the run, the lists to review, and the decisions."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError, one_line
from opensetda.report.content import Indices, Numbers
from opensetda.report.run_parts import own_labels
from opensetda.review.decisions import Decisions
from opensetda.review.log import DecisionLog, NotSavedError
from opensetda.review.page import Content, placeholder, showable
from opensetda.runs.corrections import Names
from opensetda.runs.folder import CORRECTIONS, PREDICTIONS, REVIEW, RunFolder
from opensetda.runs.groups import UnknownGroups, unknown_groups
from opensetda.runs.pictures import Pictures
from opensetda.runs.predictions import PredictionTable

# Key of the list of samples near the threshold; groups have their number, from 1.
BORDER = "border"
MOST_NEAR, LIKELY_CLASSES, LONGEST_PAGE = 200, 5, 60
# Up to about 10 MB of each.
_KEPT_PICTURES, _KEPT_THUMBNAILS = 48, 2000
# The largest image takes 400 MB while it is made smaller, and a browser asks for six.
_UNPACKED_AT_ONCE = 2
# One mark per sample in the strip below the picture; of longer lists only the share is drawn.
_LONGEST_STRIP = 400
_MARKS = {None: ".", "kept": "k", "corrected": "c", "new class": "n"}


class ReviewSession:
    """The review of one run by one process; thread-safe. `images`: their folder, if moved.

    Raises an `InputError` without such a run, if another process reviews it, or if its log is of
    another run.
    """

    def __init__(self, path: Path, images: Path | None = None) -> None:
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
            self._pictures = Pictures(self.run, images)
            self._lists, self._note = {BORDER: rows_to_review(table, unknown)}, ""
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
        self._unpacking = threading.Semaphore(_UNPACKED_AT_ONCE)
        self._shown_big = lru_cache(_KEPT_PICTURES)(self._big)
        self._shown_small = lru_cache(_KEPT_THUMBNAILS)(self._small)
        # It takes seconds; the samples near the threshold can be reviewed meanwhile.
        self._grouping = threading.Thread(target=self._find_groups, daemon=True)
        self._grouping.start()

    def close(self) -> None:
        """Release the run, once nothing is being written; later decisions are refused."""
        with self._lock:
            if self.trouble and not self._is_closed:
                self._export()
            holds, self._holds, self._is_closed = self._holds, None, True
            if holds is not None:
                os.close(holds)

    def start(self) -> dict[str, Any]:
        """Return what the page needs at its start."""
        return {
            "run": self.run.path.resolve().name,
            "classes": list(self.table.classes),
            "unknown": self.unknown_label,
            "pictures": self._has_picture(0) if len(self.table) else False,
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
                "trouble": self.trouble,
                "lists": [self._list_summary(key) for key in self._lists],
            }

    def page(self, key: str, start: int, count: int) -> dict[str, Any]:
        """Return samples of a list, from place `start` on."""
        start, count = max(start, 0), min(max(count, 0), LONGEST_PAGE)
        with self._lock:
            rows = self._rows(key)
            shown = [self._sample(row) for row in rows[start:][:count]]
            marked = rows if len(rows) <= _LONGEST_STRIP else []
            marks = "".join(_MARKS[self.decisions.kind(row)] for row in marked)
        likely = [] if key == BORDER else self._likely(self.table.proba[rows, :-1].mean(axis=0))
        return {"start": start, "samples": shown, "marks": marks, "likely": likely}

    def first_open(self, key: str) -> int:
        """Return the place of the first undecided sample of a list, or 0."""
        with self._lock:
            rows = self._rows(key)
            return next((i for i, row in enumerate(rows) if row not in self.decisions), 0)

    def decide(self, row: int, key: str, label: str | None) -> dict[str, Any]:
        """Set the label of one sample of a list; None keeps it."""
        if row not in self._rows(key):
            raise InputError(f"row {row}: not in this list")
        return self._decide([row], key, label)

    def decide_group(self, key: str, label: str | None, toggled: Sequence[int]) -> dict[str, Any]:
        """Set the label of the undecided members, else of all; `toggled` are inverted."""
        if key == BORDER:
            raise InputError("the samples near the threshold are no group; decide one by one")
        with self._lock:
            rows = self._rows(key)
            still_open = {row for row in rows if row not in self.decisions} or set(rows)
            # A row of another list is in neither of them.
            selected = still_open ^ (set(toggled) & set(rows))
            if not selected:
                raise InputError("no sample is selected; select some first")
            return self._decide([row for row in rows if row in selected], key, label)

    def undo(self) -> dict[str, Any]:
        """Undo the latest decision; return where it was made."""
        with self._lock:
            self._check_writable()
            decision = self.decisions.undo()
            if decision is None:
                return {"undone": None, **self.summary()}
            self._export()
            key = BORDER if decision.group is None else str(decision.group)
            rows = self._lists.get(key, [])
            place = rows.index(decision.rows[0]) if decision.rows[0] in rows else 0
            undone = {"list": key, "place": place, "count": len(decision.rows)}
            return {"undone": undone, **self.summary()}

    def picture(self, row: int, small: bool) -> Content:
        """Return a picture of a target, or a placeholder."""
        if not 0 <= row < len(self.table):
            raise InputError(f"row {row}: the run has {len(self.table)} targets")
        return self._shown_small(row) if small else self._shown_big(row)

    def _big(self, row: int) -> Content:
        file = self._pictures.file(row)
        with self._unpacking:
            shown = placeholder("this sample has no image file") if file is None else showable(file)
        # The run may have kept a thumbnail of a file that is gone.
        thumbnail = self._pictures.thumbnail(row) if shown.is_placeholder else None
        return shown if thumbnail is None else Content("image/webp", thumbnail)

    def _small(self, row: int) -> Content:
        thumbnail = self._pictures.thumbnail(row)
        return self._big(row) if thumbnail is None else Content("image/webp", thumbnail)

    def _decide(self, rows: Sequence[int], key: str, label: str | None) -> dict[str, Any]:
        with self._lock:
            self._check_writable()
            if label is not None:
                in_use = [*self.table.classes, *self.decisions.new_names]
                label = Names(in_use, self.unknown_label).checked(label)
            self.decisions.decide(rows, label, None if key == BORDER else int(key))
            self._export()
            return {"count": len(rows), "label": label, **self.summary()}

    def _rows(self, key: str) -> list[int]:
        if key not in self._lists:
            raise InputError("there is no such list")
        return self._lists[key]

    def _sample(self, row: int) -> dict[str, Any]:
        table, name, nearest = self.table, str(self.table.ids[row]), str(self.table.nearest[row])
        return {
            "row": row,
            "name": name if self.run.has_ids else f"Row {name}",
            "given": str(table.labels[row]),
            "nearest": nearest,
            "unknown": round(float(table.proba[row, -1]), 4),
            "likely": self._likely(table.proba[row, :-1], nearest),
            "label": self.decisions.label(row),
            "kind": self.decisions.kind(row),
            "picture": self._has_picture(row),
        }

    def _likely(self, proba: Numbers, nearest: str | None = None) -> list[tuple[str, float]]:
        """Return the most likely classes and their probabilities, the nearest one among them."""
        classes = self.table.classes
        best = np.argsort(-proba, kind="stable")[:LIKELY_CLASSES].tolist()
        if nearest in classes and classes.index(nearest) not in best:
            best[-1] = classes.index(nearest)
        return [(classes[place], round(float(proba[place]), 4)) for place in best]

    def _has_picture(self, row: int) -> bool:
        return self._pictures.file(row) is not None or self._pictures.thumbnail(row) is not None

    def _list_summary(self, key: str) -> dict[str, Any]:
        rows = self._rows(key)
        labels = [self.decisions.label(row) for row in rows]
        given = Counter(label for label in labels if label is not None)
        name, count = given.most_common(1)[0] if given and key != BORDER else (None, 0)
        return {
            "key": key,
            "size": len(rows),
            "decided": given.total(),
            # The label that most of a group has.
            "name": name if 2 * count > len(rows) else None,
            "rows": rows[:1],
        }

    def _find_groups(self) -> None:
        try:
            groups = unknown_groups(self.run)
        except Exception as error:
            # Without groups, the samples can still be reviewed.
            rows = np.flatnonzero(self.table.labels == self.unknown_label)
            groups = UnknownGroups((rows,) if len(rows) else (), f"All in one group: {error}")
        with self._lock:
            self._note = groups.note
            for number, members in enumerate(groups.groups, start=1):
                self._lists[str(number)] = members.tolist()

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


def rows_to_review(table: PredictionTable, unknown: str) -> list[int]:
    """Return the rows near the threshold; manually corrected ones need no review."""
    own = np.flatnonzero(own_labels(table))
    near = border_rows(table.known_scores[own], table.labels[own] == unknown)
    return [int(row) for row in own[near]]


def border_rows(
    scores: Numbers, is_unknown: npt.NDArray[np.bool_], most: int = MOST_NEAR
) -> Indices:
    """Return up to `most` rows nearest to the rejection threshold, known and unknown in turn.

    If one side has too few, the other fills up.
    """
    if not len(scores):
        return np.zeros(0, dtype=np.intp)
    is_number = np.isfinite(scores)
    unknown, known = scores[is_unknown & is_number], scores[~is_unknown & is_number]
    # The threshold is in the middle between both sides, or at the end of the only one.
    ends = [float(unknown.max())] if len(unknown) else []
    ends += [float(known.min())] if len(known) else []
    with np.errstate(invalid="ignore", over="ignore"):
        distances = np.abs(scores - sum(ends) / max(len(ends), 1))
    order = np.argsort(distances, kind="stable")
    sides = zip_longest(order[~is_unknown[order]][:most], order[is_unknown[order]][:most])
    mixed = [row for both in sides for row in both if row is not None]
    return np.array(mixed[:most], dtype=np.intp)


def run_identity(run: RunFolder) -> str:
    """Return the identity of a run, or the checksum of its predictions."""
    identity = run.settings["identity"]
    return f"sha256:{run.manifest.files[PREDICTIONS][0]}" if identity is None else identity


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
