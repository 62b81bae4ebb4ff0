"""Groups of unknowns that look alike, for a person to name.

They are groups of the method's embeddings: on Office-31 and the digits (13 tasks) those agreed
with the true classes better than groups of the features did (`docs/experiments.md`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from opensetda.rows import FloatArray, IntArray, unit_rows
from opensetda.runs.folder import RunFolder

MOST_GROUPS = 30
# Ward's tree needs all distances: 3,000 samples make 36 MB of them.
MOST_SAMPLES = 3000
# Fewer samples are easier to look at one by one.
FEWEST = 10
# Take the fewest groups whose silhouette is this close to the best: more split true classes.
NEARLY_BEST = 0.95


class UnknownGroups(NamedTuple):
    """Target rows of each group, the most typical and the largest group first, and a note."""

    groups: tuple[IntArray, ...]
    note: str


def unknown_groups(run: RunFolder) -> UnknownGroups:
    """Group the targets of a run that were labelled unknown."""
    view, is_unknown = run.view(), run.labels() == run.unknown_label
    chosen = np.flatnonzero(is_unknown[view.target])
    if len(chosen) > MOST_SAMPLES:
        chosen = np.random.default_rng(0).choice(chosen, MOST_SAMPLES, replace=False)
    embedded = view.embedding[len(view.source) + chosen].astype(np.float64)
    groups = tuple(view.target[chosen[members]] for members in group_rows(embedded))
    if not groups:
        return UnknownGroups((), "Nothing was labelled unknown.")
    count = "one group" if len(groups) == 1 else f"{len(groups)} groups"
    return UnknownGroups(
        groups,
        f"{len(chosen):,} of {is_unknown.sum():,} unknowns in {count}, by how alike they look to "
        "the method. A group may hold several classes, or a part of one.",
    )


def group_rows(rows: FloatArray) -> list[IntArray]:
    """Group rows by Ward's linkage of their directions, into as many groups as fit best.

    Returns the members of each group, the most typical first, the largest group first.
    """
    unit = unit_rows(rows)
    labels = _cut(unit) if len(rows) >= FEWEST else np.zeros(len(rows), dtype=np.intp)
    groups = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        typical = unit[members] @ unit[members].mean(axis=0)
        groups.append(members[np.argsort(-typical, kind="stable")])
    return sorted(groups, key=lambda members: (-len(members), int(members.min())))


def _cut(unit: FloatArray) -> IntArray:
    """Cut Ward's tree, (n, d) -> group of each row, where the silhouette is nearly the best."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from sklearn.metrics import silhouette_score

    tree = linkage(unit, "ward")
    distances = np.clip(1 - unit @ unit.T, 0, None)
    np.fill_diagonal(distances, 0)
    cuts = []
    for count in range(2, min(MOST_GROUPS, len(unit) // 5) + 1):
        labels = fcluster(tree, count, "maxclust")
        if 1 < len(np.unique(labels)) < len(unit):
            cuts.append((silhouette_score(distances, labels, metric="precomputed"), labels))
    best = max((score for score, _ in cuts), default=0.0)
    if best <= 0:  # No cut is better than chance: one group.
        return np.zeros(len(unit), dtype=np.intp)
    return np.asarray(next(labels for score, labels in cuts if score >= NEARLY_BEST * best))
