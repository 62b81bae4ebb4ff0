"""A review in progress: the run, the lists to review, and the decisions; independent of HTTP."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.errors import InputError
from opensetda.review.decisions import DecisionLog, Decisions, NotSavedError
from opensetda.review.page import Picture, placeholder, showable
from opensetda.review.queue import BORDER, Queue
from opensetda.runs.corrections import check_name
from opensetda.runs.folder import CORRECTIONS, PREDICTIONS, REVIEW, RunFolder
from opensetda.runs.groups import UnknownGroups, unknown_groups
from opensetda.runs.pictures import Pictures

LONGEST_PAGE = 60

# Up to about 10 MB of each.
_KEPT_PICTURES, _KEPT_THUMBNAILS = 48, 2000
# The largest image takes 400 MB while it is made smaller, and a browser asks for six.
_UNPACKED_AT_ONCE = 2
# A mark a sample in the strip below the picture; of longer lists only the share is drawn.
_LONGEST_STRIP = 400
_MARKS = {None: ".", "kept": "k", "corrected": "c", "new class": "n"}


class ReviewSession:
    """The review of one run by one process; thread-safe.

    Parameters
    ----------
    path : Path
        The run folder.
    images : Path, optional
        Folder of the images, if they have moved.

    Raises
    ------
    InputError
        If there is no such run, another process reviews it, or its log is of another run.
    """

    def __init__(self, path: Path, images: Path | None = None) -> None:
        self.run = RunFolder.open(path)
        self._lock = threading.RLock()
        self._is_closed = False
        self._holds = _hold(path)
        try:
            table = self.run.predictions()
            self._identity = run_identity(self.run)
            log = DecisionLog(path / REVIEW, self._identity, len(table))
            self._given: list[str] = table.labels.tolist()
            self._ids: list[str] = table.ids.tolist()
            self.unknown_label = self.run.unknown_label
            self.decisions = Decisions(log, self._given, table.classes, self.unknown_label)
            self.table = table
            self._pictures = Pictures(self.run, images)
            self._queue = Queue(table, self.unknown_label, self.run.has_ids)
            if self.decisions.can_undo:
                # After a crash between writing log and table, the table is out of date.
                self._export()
        except BaseException:
            self.close()
            raise
        self._unpacking = threading.Semaphore(_UNPACKED_AT_ONCE)
        self._shown_big = lru_cache(_KEPT_PICTURES)(self._big)
        self._shown_small = lru_cache(_KEPT_THUMBNAILS)(self._small)
        # It takes seconds; the samples near the threshold can be reviewed meanwhile.
        self._grouping = threading.Thread(target=self._find_groups, daemon=True)
        self._grouping.start()

    @property
    def corrections(self) -> Path:
        """The table of the decisions."""
        return self.run.path / CORRECTIONS

    def close(self) -> None:
        """Release the run, once nothing is being written; later decisions are refused."""
        with self._lock:
            self._is_closed = True
            holds, self._holds = self._holds, None
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
                "note": self._queue.note,
                "lists": [self._list_summary(key) for key in self._queue.lists],
            }

    def page(self, key: str, start: int, count: int) -> dict[str, Any]:
        """Return samples of a list, from place `start` on."""
        start, count = max(start, 0), min(max(count, 0), LONGEST_PAGE)
        with self._lock:
            rows = self._rows(key)
            shown = [self._sample(row) for row in rows[start:][:count]]
            marks = ""
            if len(rows) <= _LONGEST_STRIP:
                marks = "".join(_MARKS[self.decisions.kind(row)] for row in rows)
        likely = [] if key == BORDER else self._queue.likely(key)
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
        """Set the label of the selected members of a group.

        Selected are the undecided members, or all if none is left; `toggled` inverts that.
        """
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
            rows = self._queue.lists.get(key, [])
            place = rows.index(decision.rows[0]) if decision.rows[0] in rows else 0
            undone = {"list": key, "place": place, "count": len(decision.rows)}
            return {"undone": undone, **self.summary()}

    def picture(self, row: int, small: bool) -> Picture:
        """Return a picture of a target, or a placeholder."""
        if not 0 <= row < len(self.table):
            raise InputError(f"row {row}: the run has {len(self.table)} targets")
        return self._shown_small(row) if small else self._shown_big(row)

    def _big(self, row: int) -> Picture:
        file = self._pictures.file(row)
        with self._unpacking:
            shown = None if file is None else showable(file)
        if shown is not None and not shown.is_placeholder:
            return shown
        # The run may have kept a thumbnail of a file that is gone.
        thumbnail = self._pictures.thumbnail(row)
        if thumbnail is not None:
            return Picture("image/webp", thumbnail)
        return placeholder("this sample has no image file") if shown is None else shown

    def _small(self, row: int) -> Picture:
        thumbnail = self._pictures.thumbnail(row)
        if thumbnail is not None:
            return Picture("image/webp", thumbnail)
        return self._big(row)

    def _decide(self, rows: Sequence[int], key: str, label: str | None) -> dict[str, Any]:
        with self._lock:
            self._check_writable()
            if label is not None:
                in_use = [*self.table.classes, *self.decisions.new_names]
                label = check_name(label, in_use, self.unknown_label)
            self.decisions.decide(rows, label, None if key == BORDER else int(key))
            self._export()
            return {"count": len(rows), "label": label, **self.summary()}

    def _rows(self, key: str) -> list[int]:
        if key not in self._queue.lists:
            raise InputError("there is no such list")
        return self._queue.lists[key]

    def _sample(self, row: int) -> dict[str, Any]:
        label, kind = self.decisions.label(row), self.decisions.kind(row)
        picture = self._has_picture(row)
        return {**self._queue.sample(row), "label": label, "kind": kind, "picture": picture}

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
            self._queue.add_groups(groups.groups, groups.note)

    def _export(self) -> None:
        try:
            self.decisions.write_csv(self.corrections, self._ids, self.table.id_name)
        except OSError as error:
            raise NotSavedError(
                f"saved to {REVIEW}, but not to {CORRECTIONS} ({error.strerror}): make room, "
                "and start 'osda review' again"
            ) from error

    def _check_writable(self) -> None:
        """Raise a `NotSavedError` if the review is closed, or the run was replaced."""
        if self._is_closed:
            # After Ctrl-C a connection may still be open, and another review may have begun.
            raise NotSavedError("not saved: this review has ended; start 'osda review' again")
        if run_identity(RunFolder.open(self.run.path)) != self._identity:
            raise NotSavedError(
                f"{self.run.path}: replaced by another run meanwhile; start 'osda review' again"
            )


def run_identity(run: RunFolder) -> str:
    """Return the identity of a run, or a hash of its predictions."""
    identity = run.settings.get("identity")
    if identity is not None:
        return str(identity)
    with (run.path / PREDICTIONS).open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def _hold(path: Path) -> int | None:
    """Lock the run for this process; the system releases it when the process ends.

    The folder itself is locked, so that no lock file stays behind.
    """
    folder = None
    with suppress(OSError, ImportError):
        # Without locks (Windows, some file systems) two reviews are not prevented.
        import fcntl

        folder = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(folder)
            raise InputError(
                f"{path}: another 'osda review' is running on it; end that one first"
            ) from None
    return folder
