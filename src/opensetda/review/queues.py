"""Which samples a review shows, and in which order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import zip_longest
from urllib.parse import parse_qsl

import numpy as np

from opensetda.report.content import Indices
from opensetda.report.run_parts import nearest_to_cut, own_labels
from opensetda.review.decisions import Decisions
from opensetda.runs.predictions import PredictionTable

# Keys of lists; groups of unknowns have their number, from 1.
USEFUL, AUDIT, BORDER, UNSURE = "useful", "audit", "border", "unsure"
ALARMED = "alarmed"
CLASS, FIND = "class-", "find?"
# They are looked at one by one; the other lists are grids, too.
SINGLE = (USEFUL, AUDIT, ALARMED, BORDER, UNSURE)
MOST_NEAR = 200
FEWEST_NEAR = 20  # targets beside those that have the label of a class to check


def audit_order(identity: str, n_targets: int) -> Indices:
    """Return all targets in an order that the run alone decides.

    Each beginning of it is a uniformly random sample, and a longer one extends it.
    """
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng(int.from_bytes(digest)).permutation(n_targets)


def near_threshold(table: PredictionTable, unknown_label: str) -> Indices:
    """Return the rows nearest to the rejection threshold, known and unknown in turn.

    If one side has too few, the other fills up. Manually corrected labels need no review.
    """
    order = nearest_to_cut(table, unknown_label)
    is_unknown = table.labels[order] == unknown_label
    sides = zip_longest(order[~is_unknown][:MOST_NEAR], order[is_unknown][:MOST_NEAR])
    mixed = [row for both in sides for row in both if row is not None]
    return np.array(mixed[:MOST_NEAR], dtype=np.intp)


def least_confident(table: PredictionTable) -> Indices:
    """Return the rows of the least confident labels, the least first."""
    order = np.argsort(table.confidence, kind="stable")
    return order[own_labels(table)[order]][:MOST_NEAR]


def of_alarmed(table: PredictionTable, names: Sequence[str]) -> Indices:
    """Return the targets of classes to check first: with their label, then those next to it."""
    rows: dict[int, None] = {}
    for name in names:
        place = table.classes.index(name)
        own = np.flatnonzero(table.labels == name)
        own = own[np.argsort(table.confidence[own], kind="stable")]
        others = np.argsort(-np.where(table.labels == name, -1, table.proba[:, place]))
        near = others[: max(len(own), FEWEST_NEAR)]
        rows |= dict.fromkeys([*own.tolist(), *near.tolist()])
    return np.array(list(rows)[:MOST_NEAR], dtype=np.intp)


def first_lists(
    table: PredictionTable, unknown_label: str, alarmed: Sequence[str]
) -> dict[str, Indices]:
    """Return the lists that are there at once, in their order."""
    names = [name for name in alarmed if name in table.classes]
    lists = {ALARMED: of_alarmed(table, names)} if names else {}
    lists[BORDER] = near_threshold(table, unknown_label)
    lists[UNSURE] = least_confident(table)
    return lists | by_class(table)


def by_class(table: PredictionTable) -> dict[str, Indices]:
    """Return a list for each class that some targets got, the least confident first."""
    order = np.argsort(table.confidence, kind="stable")
    labels = table.labels[order]
    lists = {f"{CLASS}{at}": order[labels == name] for at, name in enumerate(table.classes)}
    return {key: rows for key, rows in lists.items() if len(rows)}


def search(key: str, table: PredictionTable, decisions: Decisions) -> Indices:
    """Return the rows that a key such as ``find?text=cat&state=open&order=row`` asks for."""
    asked = dict(parse_qsl(key.removeprefix(FIND)))
    text, label, state = (asked.get(name, "") for name in ("text", "label", "state"))
    text = text.casefold().strip()
    by_row = asked.get("order") == "row"
    order = np.arange(len(table)) if by_row else np.argsort(table.confidence, kind="stable")
    found = [
        row
        for row in order.tolist()
        if text in str(table.ids[row]).casefold()
        and label in ("", decisions.label(row) or table.labels[row])
        and state in _states(decisions, row)
    ]
    return np.array(found, dtype=np.intp)


def _states(decisions: Decisions, row: int) -> set[str | None]:
    """Return the states of a sample that a search may ask for; "" is any."""
    is_decided = "decided" if row in decisions else "open"
    return {"", is_decided, decisions.kind(row), decisions.audit(row) and "audited"}
