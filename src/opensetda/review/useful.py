"""The list "Most useful": which sample to ask for next; labels from a file; the audited share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.data.names import shown
from opensetda.errors import InputError
from opensetda.report.content import Indices
from opensetda.review.decisions import Decisions, Entry, Mark
from opensetda.review.queues import USEFUL
from opensetda.runs.folder import RunFolder
from opensetda.runs.predictions import PredictionTable
from opensetda.share.audit import scored_share
from opensetda.usecases.corrections import as_new_class, labels_in
from opensetda.usecases.label_studio import labels_of_tasks
from opensetda.usecases.suggest_samples import Asked, RunQueue

SHOWN_AHEAD = 10  # samples that are asked for next


class UsefulList:
    """Samples that were decided in this list, and the next ones to ask for."""

    def __init__(self, run: RunFolder, table: PredictionTable, decisions: Decisions) -> None:
        self._decisions = decisions
        self._queue: RunQueue | None = None
        # Of a damaged file: everything else can still be reviewed.
        with suppress(InputError):
            self._queue = RunQueue.of_run(run, table)

    def rows(self) -> Indices:
        """Find what to ask for next, and return the list."""
        decisions = self._decisions
        self._asked = Asked(np.arange(0), 0.0, None)
        if self._queue is not None:
            self._asked = self._queue.ask(decisions.labels(), SHOWN_AHEAD)
        given = dict.fromkeys(
            row for entry in decisions.entries if entry.list == USEFUL for row in entry.rows
        )
        done = [row for row in given if row in decisions]
        return np.array([*done, *self._asked.rows.tolist()], dtype=np.intp)

    def summary(self) -> dict[str, Any]:
        """Return what marks have brought, and what the next ones are expected to bring."""
        share = self._asked.share
        return {
            "marked": int(self._decisions.has_label.sum()),
            "next": SHOWN_AHEAD,
            "gain": round(self._asked.gain, 4),
            "share": None if share is None else [share.share, share.low, share.high],
        }


def rows_by_label(
    path: Path, table: PredictionTable, new_names: list[str], unknown_label: str
) -> dict[str, list[int]]:
    """Return the samples of each label of a CSV file, or of an export of Label Studio."""
    said = labels_of_tasks(path) if path.suffix.lower() == ".json" else labels_in(path)
    if not said:
        raise InputError(f"{path}: no label in it")
    place = {name: row for row, name in enumerate(table.ids.tolist())}
    in_use = [unknown_label, *table.classes, *new_names]
    rows: dict[str, list[int]] = {}
    for name, label in said.items():
        if name not in place:
            raise InputError(f"{path}: {shown(name)} is no sample of the target of this run")
        try:
            label = as_new_class(label, in_use, unknown_label)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        in_use.append(label)
        rows.setdefault(label, []).append(place[name])
    return rows


def learned_by_fit(table: PredictionTable) -> list[Entry]:
    """Return the decisions that a run was fitted with."""
    rows = np.flatnonzero(table.corrected) if table.corrected is not None else np.arange(0)
    labels = table.labels[rows]
    return [
        Entry(rows=tuple(rows[labels == label].tolist()), label=label, list=USEFUL)
        for label in np.unique(labels).tolist()
    ]


def audit_summary(
    table: PredictionTable, marks: Mapping[int, Mark], rows: Indices, used: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the share of unknowns by the marks of the audit's `rows`, beside that of the run."""
    unknown = np.array([mark == "unknown" for mark in marks.values()], dtype=bool)
    # As 'osda fit --corrections' will compute it.
    found = scored_share(table.known_scores, np.array([*marks], dtype=np.intp), unknown)
    asked = rows.tolist()
    last = max((place for place, row in enumerate(asked) if row in marks), default=-1)
    return {
        "unknown": int(unknown.sum()),
        "marked": len(marks),
        "size": len(asked),
        "share": found.share,
        "low": found.low,
        "high": found.high,
        "skipped": sum(row not in marks for row in asked[: last + 1]),
        "runShare": used["share"],
        "origin": used["source"],
    }
