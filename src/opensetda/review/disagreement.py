"""What the neighbours of a sample and the steps of the method say against its label.

A label may have a high probability and still be wrong: the samples next to it in the method's own
embedding have other labels, or it got this label late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from opensetda.report.content import Indices, Numbers
from opensetda.report.run_parts import own_labels
from opensetda.review.queues import MOST_NEAR
from opensetda.rows import unit_rows
from opensetda.runs.folder import STEPS, VIEW, RunFolder
from opensetda.runs.predictions import PredictionTable

NEIGHBOURS = 20
_ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class Doubts:
    """Doubts about the labels of all targets.

    Attributes
    ----------
    against : array of shape (n,)
        The mean of the shares of neighbours and of steps with another label, of those that are
        known; 0 without either.
    words : dict
        What speaks against the label, by row.
    """

    table: PredictionTable
    against: Numbers
    words: Mapping[int, list[str]]

    def most_doubtful(self) -> Indices:
        """Return the rows whose neighbours and steps disagree most with their label."""
        against = np.where(own_labels(self.table), self.against, 0)
        # Of equal ones, the more confident first: nothing else shows them.
        order = np.lexsort((-self.table.confidence, -against))
        return order[against[order] > 0][:MOST_NEAR]


def doubts_of(run: RunFolder, table: PredictionTable) -> Doubts:
    """Compare the labels of a run with its embedding and its steps, as far as it has them."""
    words: dict[int, list[str]] = {}
    parts = []
    for compare in (_neighbours, _steps):
        try:
            parts.append(compare(run, table, words))
        except Exception:
            # Of a damaged file, say: the labels can still be reviewed.
            parts.append(np.full(len(table), np.nan))
    shares = np.ma.masked_invalid(parts)
    return Doubts(table, np.asarray(shares.mean(axis=0).filled(0.0)), words)


def _neighbours(run: RunFolder, table: PredictionTable, words: dict[int, list[str]]) -> Numbers:
    """Return the share of the nearest samples, by the cosine, that have another label."""
    share = np.full(len(table), np.nan)
    if not run.manifest.has(VIEW):
        return share
    view = run.view()
    names = np.array([*table.classes, run.unknown_label], dtype=np.str_)
    place = {name: number for number, name in enumerate(names.tolist())}
    own = np.array([place[label] for label in table.labels[view.target].tolist()], dtype=np.intp)
    labels = np.concatenate([view.source_labels, own])
    unit = unit_rows(view.embedding.astype(np.float32))
    n_source, count = len(view.source), min(NEIGHBOURS, len(unit) - 1)
    if count < 1:
        return share
    for start in range(n_source, len(unit), _ROWS_AT_ONCE):
        here = np.arange(start, min(start + _ROWS_AT_ONCE, len(unit)))
        cosine = unit[here] @ unit.T
        cosine[np.arange(len(here)), here] = -np.inf
        nearest = labels[np.argpartition(-cosine, count - 1, axis=1)[:, :count]]
        for row, label, found in zip(
            view.target[here - n_source], labels[here], nearest, strict=True
        ):
            counts = np.bincount(found, minlength=len(names))
            n_other = count - int(counts[label])
            share[row], counts[label] = n_other / count, 0
            if 2 * n_other >= count:
                other = int(counts.argmax())
                words.setdefault(int(row), []).append(
                    f"{n_other} of the {count} nearest samples are labelled "
                    + _others(n_other, int(counts[other]), str(names[other]))
                )
    return share


def _others(n_other: int, count: int, name: str) -> str:
    return name if count == n_other else f"otherwise, {count} of them {name}"


def _steps(run: RunFolder, table: PredictionTable, words: dict[int, list[str]]) -> Numbers:
    """Return the share of the steps after which a target had another label."""
    steps = run.steps() if run.manifest.has(STEPS) else {}
    if len(steps) < 2:
        return np.full(len(table), np.nan)
    found = [labels for _, labels in sorted(steps.items())]
    share = np.mean([labels != table.labels for labels in found], axis=0)
    for row in np.flatnonzero(2 * share >= 1).tolist():
        others = Counter(str(labels[row]) for labels in found)
        n_other = len(found) - others.pop(str(table.labels[row]), 0)
        name, count = others.most_common(1)[0]
        words.setdefault(row, []).append(
            f"after {n_other} of {len(found)} steps it was labelled {_others(n_other, count, name)}"
        )
    return np.asarray(share)
