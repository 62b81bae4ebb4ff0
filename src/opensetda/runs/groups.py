"""Groups of unknowns that look alike, for a person to name.

They are groups of the method's embeddings: on Office-31 and the digits (13 tasks) those agreed
with the true classes better than groups of the features did (`docs/experiments.md`).
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class UnknownGroups:
    """Target rows of each group, the most typical and the largest group first, and a note."""

    groups: tuple[IntArray, ...]
    note: str


def unknown_groups(run: RunFolder) -> UnknownGroups:
    """Group the targets of a run that were labelled unknown."""
    view, labels = run.view(), run.labels()
    n_unknown = int((labels == run.unknown_label).sum())
    embedded = view.embedding[len(view.source) :].astype(np.float64)
    chosen = np.flatnonzero(labels[view.target] == run.unknown_label)
    if len(chosen) > MOST_SAMPLES:
        chosen = np.random.default_rng(0).choice(chosen, MOST_SAMPLES, replace=False)
    rows = view.target[chosen]
    found = group_rows(embedded[chosen])
    groups = tuple(rows[members] for members in found)
    return UnknownGroups(groups, _note(len(groups), len(rows), n_unknown))


def group_rows(rows: FloatArray) -> list[IntArray]:
    """Group rows by Ward's linkage of their directions, into as many groups as fit best.

    The number of groups is the smallest whose mean silhouette (by the cosine) is nearly the
    best. Returns the members of each group, the most typical first, the largest group first.
    """
    if len(rows) == 0:
        return []
    unit = unit_rows(rows)
    labels = _cut(unit) if len(rows) >= FEWEST else np.zeros(len(rows), dtype=np.intp)
    groups = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        typical = unit[members] @ unit[members].mean(axis=0)
        groups.append(members[np.argsort(-typical, kind="stable")])
    return sorted(groups, key=lambda members: (-len(members), int(members.min())))


def _cut(unit: FloatArray) -> IntArray:
    """Cut Ward's tree: (n, d) -> group of each row."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from sklearn.metrics import silhouette_score

    tree = linkage(unit, "ward")
    distances = np.clip(1 - unit @ unit.T, 0, None)
    np.fill_diagonal(distances, 0)
    cuts, silhouettes = {}, {}
    for count in range(2, min(MOST_GROUPS, len(unit) // 5) + 1):
        labels = fcluster(tree, count, "maxclust")
        if 1 < len(np.unique(labels)) < len(unit):
            cuts[count] = labels
            silhouettes[count] = float(silhouette_score(distances, labels, metric="precomputed"))
    # Without a cut better than chance there is one group.
    best = max(silhouettes.values(), default=0.0)
    if best <= 0:
        return np.zeros(len(unit), dtype=np.intp)
    return np.asarray(cuts[min(c for c in cuts if silhouettes[c] >= NEARLY_BEST * best)])


def _note(n_groups: int, n_grouped: int, n_unknown: int) -> str:
    if not n_unknown:
        return "Nothing was labelled unknown."
    of = f"{n_unknown:,} unknowns"
    if n_grouped < n_unknown:
        of = f"{n_grouped:,} of {n_unknown:,} unknowns, drawn at random,"
    groups = "one group" if n_groups == 1 else f"{n_groups} groups"
    return (
        f"{of} in {groups}, by how alike they look to the method (Ward's linkage; the number "
        "of groups by the silhouette). A group may hold several classes, or a part of one."
    )
