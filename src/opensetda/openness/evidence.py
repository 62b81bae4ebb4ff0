"""What the rows of both domains say about the share of unknowns, without target labels.

Four figures, none of which is enough by itself: `share_model` weighs them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from opensetda.features.smoothing import move_to_neighbours
from opensetda.openness.held_out import cosine_without_nearest
from opensetda.openness.mixtures import ScoreHistogram, fit_mixture
from opensetda.rows import FloatArray, IntArray, unit_rows

NEIGHBOURS, MESSAGE = 10, 0.5
STEPS = 5
# The share of unknowns that most data have, about.
USUAL = 0.4
# How far class means move to the surest targets of their class.
MOVE = 0.5
# Targets are compared with the source rows that score lowest, this share of them.
LOWEST = 0.1


class Evidence(NamedTuple):
    """What speaks for many unknowns, or few."""

    hidden: float
    """Share by hidden classes: how many targets score as if their class were not known."""
    hidden_moved: float
    """The same after the class means have moved to the targets."""
    margin: float
    """Logarithm of the targets' mean distance from the second-best class, over the source's."""
    below: float
    """Share of the targets that score below nine tenths of the source's rows."""
    n_classes: int
    """How many classes can be hidden to see how unknowns score."""

    @property
    def figures(self) -> tuple[float, ...]:
        """All but the number of classes."""
        return self[:-1]


def gather_evidence(source: FloatArray, y: IntArray, target: FloatArray) -> Evidence:
    """Compare the targets with the source's classes: aligned unit rows (n_s, d), (n_t, d).

    Every row moves half way to its neighbours in its domain, class means move to the surest
    targets step by step, and the cosines to these means are what is looked at.
    """
    n_classes = int(y.max()) + 1
    source = move_to_neighbours(source, source, NEIGHBOURS, MESSAGE)
    target = move_to_neighbours(target, target, NEIGHBOURS, MESSAGE)
    sums = _class_sums(source, y, n_classes)
    counts = np.bincount(y, minlength=n_classes).astype(np.float64)
    start = means = moved = unit_rows(sums)

    def by_hidden_classes(mix: float) -> float:
        nearest, known = cosine.argmax(axis=1), cosine.max(axis=1).astype(np.float64)
        mixes = np.full(n_classes, mix)
        hidden = cosine_without_nearest(target, nearest, sums, counts, moved, mixes)
        return fit_mixture(ScoreHistogram.of(known, hidden)).share

    cosine = target @ means.T
    hidden = by_hidden_classes(0.0)
    # Half of the way to what most data have: the first look is often far off.
    likely_known = 1 - (hidden + USUAL) / 2
    for step in range(1, STEPS + 1):
        mix = MOVE * step / STEPS
        surest = _surest(cosine, likely_known * step / STEPS)
        found = _class_sums(target, surest, n_classes)
        moved = np.where(np.abs(found).sum(axis=1, keepdims=True) > 0, unit_rows(found), start)
        means = unit_rows((1 - mix) * start + mix * moved)
        cosine = target @ means.T
    of_source = source @ start.T
    # No row is compared with a mean that it is part of.
    own = np.arange(len(y)), y
    of_source[own] = (source * unit_rows(sums[y] - source)).sum(axis=1)
    margin = _margin(cosine) / max(_margin(of_source), 1e-3)
    lowest = np.quantile(of_source.max(axis=1), LOWEST)
    return Evidence(
        hidden=hidden,
        hidden_moved=by_hidden_classes(MOVE),
        margin=float(np.log(np.clip(margin, 0.02, 2.0))),
        below=float((cosine.max(axis=1) < lowest).mean()),
        n_classes=n_classes,
    )


def _surest(cosine: FloatArray, share: float) -> IntArray:
    """Return the nearest class of this share of the targets, the surest, and -1 for the rest."""
    known = cosine.max(axis=1)
    is_sure = known >= np.quantile(known, 1 - share)
    return np.where(is_sure, cosine.argmax(axis=1), -1)


def _class_sums(rows: FloatArray, labels: IntArray, n_classes: int) -> FloatArray:
    return np.stack([rows[labels == label].sum(axis=0) for label in range(n_classes)])


def _margin(cosine: FloatArray) -> float:
    ordered = np.sort(cosine, axis=1)
    return float((ordered[:, -1] - ordered[:, -2]).mean())
