"""Which samples a review shows, and in which order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.report.content import Indices, Numbers
from opensetda.report.run_parts import own_labels
from opensetda.runs.predictions import PredictionTable

# Keys of lists; groups of unknowns have their number, from 1.
AUDIT, BORDER, UNSURE, DOUBT = "audit", "border", "unsure", "doubt"
CLASS, FIND = "class-", "find?"
# They are looked at one by one; the other lists are grids, too.
SINGLE = (AUDIT, BORDER, UNSURE, DOUBT)
MOST_NEAR = 200

_TITLES = {
    AUDIT: "Audit",
    BORDER: "Near the threshold",
    UNSURE: "Least confident",
    DOUBT: "Disagreement",
}
STATES = ("", "open", "decided", "kept", "corrected", "new class", "audited")
ORDERS = ("confidence", "row")


def kind_of(key: str) -> str:
    """Return the kind of a list: "audit", "check", "class", "find" or "group"."""
    if key in SINGLE:
        return AUDIT if key == AUDIT else "check"
    return "class" if key.startswith(CLASS) else "find" if key.startswith(FIND) else "group"


def title_of(key: str, classes: tuple[str, ...]) -> str:
    """Return the heading of a list."""
    kind = kind_of(key)
    if kind == "class":
        return classes[int(key.removeprefix(CLASS))]
    return _TITLES.get(key, "Search" if kind == "find" else f"Group {key}")


def audit_order(identity: str, n_targets: int) -> Indices:
    """Return all targets in an order that the run alone decides.

    Each beginning of it is a uniformly random sample, and a longer one extends it.
    """
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng(int.from_bytes(digest)).permutation(n_targets)


def rows_to_review(table: PredictionTable, unknown: str) -> Indices:
    """Return the rows near the threshold; manually corrected ones need no review."""
    own = np.flatnonzero(own_labels(table))
    near = border_rows(table.known_scores[own], table.labels[own] == unknown)
    return np.asarray(own[near])


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


def least_confident(table: PredictionTable) -> Indices:
    """Return the rows of the least confident labels, the least first."""
    own = np.flatnonzero(own_labels(table))
    order = np.argsort(table.confidence[own], kind="stable")
    return np.asarray(own[order][:MOST_NEAR])


def by_class(table: PredictionTable) -> dict[str, Indices]:
    """Return a list for each class that some targets got, the least confident first."""
    order = np.argsort(table.confidence, kind="stable")
    labels, lists = table.labels[order], {}
    for place, name in enumerate(table.classes):
        rows = order[labels == name]
        if len(rows):
            lists[f"{CLASS}{place}"] = rows
    return lists


@dataclass(frozen=True)
class Query:
    """A search: a part of the name, a label, a state of the decision, and an order."""

    text: str = ""
    label: str = ""
    state: str = ""
    order: str = "confidence"

    @classmethod
    def of(cls, key: str) -> Query:
        """Return the query of a key, such as ``find?text=cat&state=open``."""
        try:
            given = parse_qs(key.removeprefix(FIND), max_num_fields=len(_FIELDS))
        except ValueError:
            raise InputError("too much to search for; use the form of the page") from None
        query = cls(**{name: values[-1] for name, values in given.items() if name in _FIELDS})
        if query.state not in STATES or query.order not in ORDERS:
            raise InputError("no such state or order; use the form of the page")
        return query

    def rows(
        self,
        table: PredictionTable,
        label_of: Callable[[int], str],
        is_in_state: Callable[[int, str], bool],
    ) -> Indices:
        """Return the rows that are found, in the order that was asked for."""
        by_row = self.order == "row"
        order = (
            range(len(table)) if by_row else np.argsort(table.confidence, kind="stable").tolist()
        )
        text, ids = self.text.casefold().strip(), table.ids
        found: list[Any] = [
            row
            for row in order
            if (not text or text in str(ids[row]).casefold())
            and (not self.label or label_of(row) == self.label)
            and (not self.state or is_in_state(row, self.state))
        ]
        return np.array(found, dtype=np.intp)


_FIELDS = ("text", "label", "state", "order")
