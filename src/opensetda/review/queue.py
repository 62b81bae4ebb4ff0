"""Which samples to review, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from opensetda.runs.predictions import PredictionTable

BORDER = "border"
"""Key of the list of samples near the threshold; groups have their number, from 1."""

MOST_NEAR = 200
LIKELY_CLASSES = 5

Rows = npt.NDArray[np.intp]


def border_rows(
    scores: npt.NDArray[np.float64], is_unknown: npt.NDArray[np.bool_], most: int = MOST_NEAR
) -> Rows:
    """Return up to `most` rows nearest to the rejection threshold, known and unknown in turn.

    Parameters
    ----------
    scores : array of shape (n,)
        Known scores.
    is_unknown : bool array of shape (n,)
        Which samples were rejected.
    most : int
        Maximum number of rows. If one side has too few, the other fills up.
    """
    distance = np.abs(scores - _cut(scores, is_unknown))
    order = np.argsort(distance, kind="stable")
    sides = [order[~is_unknown[order]], order[is_unknown[order]]]
    place = np.concatenate([2 * np.arange(len(sides[0])), 2 * np.arange(len(sides[1])) + 1])
    mixed = np.concatenate(sides)[np.argsort(place, kind="stable")]
    return np.asarray(mixed[:most], dtype=np.intp)


def _cut(scores: npt.NDArray[np.float64], is_unknown: npt.NDArray[np.bool_]) -> float:
    """Return the middle between both sides, or the end of the only one."""
    if not len(scores):
        return 0.0
    unknown, known = scores[is_unknown], scores[~is_unknown]
    low = np.nanmax(unknown) if len(unknown) else np.nanmin(known)
    high = np.nanmin(known) if len(known) else np.nanmax(unknown)
    return float((low + high) / 2)


class Queue:
    """The lists to review: samples near the threshold, then groups of unknowns.

    Parameters
    ----------
    table : PredictionTable
        The predictions of the run.
    unknown_label : str
        The label of unknowns.
    has_ids : bool
        Whether the samples have names, or only row numbers.
    """

    def __init__(self, table: PredictionTable, unknown_label: str, has_ids: bool = True) -> None:
        self.table, self.unknown_label, self.has_ids = table, unknown_label, has_ids
        # Manually corrected labels need no review, and say nothing about the threshold.
        corrected = np.zeros(len(table), dtype=bool) if table.corrected is None else table.corrected
        own = np.flatnonzero(~corrected)
        near = own[border_rows(table.known_scores[own], table.labels[own] == unknown_label)]
        self.lists: dict[str, list[int]] = {BORDER: near.tolist()}
        self.note = ""

    def add_groups(self, groups: Sequence[Rows], note: str) -> None:
        """Add one list per group of similar unknowns; `note` says how they were found."""
        self.note = note
        for number, rows in enumerate(groups, start=1):
            self.lists[str(number)] = rows.tolist()

    def sample(self, row: int) -> dict[str, Any]:
        """Return what the page shows of a sample."""
        table = self.table
        return {
            "row": row,
            "name": str(table.ids[row]) if self.has_ids else f"Row {table.ids[row]}",
            "given": str(table.labels[row]),
            "nearest": str(table.nearest[row]),
            "unknown": round(float(table.proba[row, -1]), 4),
            "likely": self._likely(table.proba[row, :-1], str(table.nearest[row])),
        }

    def likely(self, key: str) -> list[tuple[str, float]]:
        """Return the most likely classes of a whole list, with their mean probabilities."""
        mean = self.table.proba[self.lists[key], :-1].mean(axis=0)
        return self._likely(mean)

    def _likely(
        self, proba: npt.NDArray[np.float64], nearest: str | None = None
    ) -> list[tuple[str, float]]:
        best = np.argsort(-proba, kind="stable")[:LIKELY_CLASSES].tolist()
        place = self.table.classes.index(nearest) if nearest in self.table.classes else None
        if place is not None and place not in best:
            best[-1] = place
        return [(self.table.classes[place], round(float(proba[place]), 4)) for place in best]
