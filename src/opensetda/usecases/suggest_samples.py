"""The use case suggest: which targets of a run a person should label next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from opensetda.errors import InputError
from opensetda.features.scaling import RANKS
from opensetda.methods.groups import Grouping, TargetView, grouped
from opensetda.methods.marks import FEWEST_MARKS, Spread, marked_share, most_useful
from opensetda.rows import IntArray, Rows
from opensetda.runs.folder import CORRECTIONS, RunFolder
from opensetda.runs.predictions import PredictionTable
from opensetda.share.evidence import ShareEstimate
from opensetda.usecases.corrections import labels_in
from opensetda.usecases.predict_samples import Run, open_run

STEEPNESS = 20.0
"""What a share of doubt that is settled brings, as its square times this: see `expected_gain`."""


class Asked(NamedTuple):
    """The next targets to ask for, and what is known so far."""

    rows: IntArray
    gain: float
    """The share of the labels that the marks of these targets are expected to put right."""
    share: ShareEstimate | None
    """Of unknowns, by the marks; None if there are few."""


@dataclass(frozen=True)
class RunQueue:
    """Targets of a run, in canonical order and in groups; of many, those that the run kept."""

    rows: IntArray
    """Rows of the target: (n,)."""
    table: PredictionTable
    groups: Grouping
    learned: ShareEstimate | None
    """Of unknowns, by the marks that the run has learned from; None if it has not."""

    @classmethod
    def of_run(cls, run: RunFolder, table: PredictionTable) -> RunQueue:
        """Group the targets that the run kept, or those of its view."""
        used = run.estimates()["openness"]
        learned = None
        if used["source"] == "audited":
            learned = ShareEstimate(used["share"], used["low"], used["high"])
        kept = run.kept()
        if kept is None or not len(kept.target):
            view = run.view()
            embedded = view.embedding[len(view.source) :].astype(np.float32)
            order = Rows(embedded, np.arange(len(embedded))).in_canonical_order().index
            return cls(view.target[order], table, grouped([embedded[order]]), learned)
        order = Rows(kept.target, np.arange(len(kept.target))).in_canonical_order().index
        rows = kept.target[order]
        parts = []
        scaling = run.settings["scaling"]
        for name in dict.fromkeys((scaling, RANKS)):
            view_of = TargetView.fit(name, rows).eval()
            with torch.no_grad():
                parts.append(view_of(torch.from_numpy(rows)).numpy())
        return cls(kept.target_rows[order], table, grouped(parts), learned)

    def ask(self, marks: Mapping[int, str], count: int) -> Asked:
        """Return the next targets, given the labels of some rows of the target."""
        table = self.table
        new = sorted({*marks.values()} - {*table.classes, table.unknown_label})
        place = {name: number for number, name in enumerate([*table.classes, *new])}
        votes = np.zeros((len(self.rows), len(place) + 1))
        votes[:, : len(table.classes)] = table.proba[self.rows, :-1]
        votes[:, -1] = table.proba[self.rows, -1]
        is_marked = np.isin(self.rows, list(marks))
        taken = np.flatnonzero(is_marked)
        names = [marks[row] for row in self.rows[taken].tolist()]
        labels = np.array([place.get(name, len(place)) for name in names], dtype=np.intp)
        # Votes that have heard of marks agree with them.
        trust = 1.0 if table.corrected is not None and table.corrected.any() else None
        cells = self.groups.cells
        spread = Spread.fit(votes, cells, taken, labels, trust)
        found = most_useful(spread, votes, cells, self.groups.central, taken, count)
        # Votes that were never off at a mark cannot tell how far they may be.
        share = None if trust is None else self.learned
        if trust is None and len(taken) >= FEWEST_MARKS:
            share = marked_share(spread, votes, cells, taken, labels)
        return Asked(self.rows[found.rows], expected_gain(found.gain), share)


def expected_gain(resolved: float) -> float:
    """Return the share of labels that marks put right, by the share of doubt that they settle.

    Doubts are too large: on six suites, ten marks put right about 20 times the square of what they
    settled (`benchmarks/marks.py`).
    """
    return min(STEEPNESS * resolved**2, resolved * 2)


@dataclass(frozen=True)
class Suggested:
    """Samples to label next, by their ids, and what their labels are expected to bring."""

    ids: list[str]
    gain: float
    """The share of all labels that they are expected to put right."""
    share: ShareEstimate | None
    """Of unknowns, by the marks so far."""


def suggest(run: Run, n: int = 10, marks: Mapping[str, str] | None = None) -> Suggested:
    """Return the targets of a run whose labels would help most.

    Parameters
    ----------
    run : str, Path, RunFolder or FittedRun
        The run.
    n : int
        How many.
    marks : mapping of str to str, optional
        Labels so far, by id: a class, perhaps a new one, or the unknown label. By default those
        of the run's own ``corrections.csv``. Write them to a CSV file with the columns ``id`` and
        ``label``, and give that to ``fit(..., corrections=...)``.
    """
    if n < 1:
        raise InputError(f"n={n}: ask for at least one sample")
    folder = open_run(run)
    table = folder.predictions()
    if marks is None:
        own = folder.path / CORRECTIONS
        marks = labels_in(own) if own.exists() else {}
    place = {name: row for row, name in enumerate(table.ids.tolist())}
    for name in marks:
        if name not in place:
            raise InputError(f"marks: {name!r} is no sample of the target of {folder.path}")
    by_row = {place[name]: label for name, label in marks.items()}
    asked = RunQueue.of_run(folder, table).ask(by_row, n)
    return Suggested(table.ids[asked.rows].tolist(), asked.gain, asked.share)
