"""The view of a run: a sample of both domains as the method represents it, for the report.

Its unknowns that look alike make groups, for a person to name. They are groups of the method's
embeddings: on Office-31 and the digits (13 tasks) those agreed with the true classes better than
groups of the features did (`docs/experiments.md`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from opensetda.rows import FloatArray, IntArray, Rows, unit_rows
from opensetda.runs.integrity import reading

if TYPE_CHECKING:
    from opensetda.methods.base import OpenSetClassifier

# Largest numbers of samples, and the principal components that are kept.
MOST_SOURCES = 1000
MOST_TARGETS = 5000
COMPONENTS = 32
_AT_A_TIME = 512
_NAMES = "names"
MOST_GROUPS = 12
# Ward's tree needs all distances: 3,000 samples make 36 MB of them.
MOST_SAMPLES = 3000
# Fewer samples are easier to look at one by one.
FEWEST = 10
# Take the fewest groups whose silhouette is this close to the best: more split true classes.
NEARLY_BEST = 0.95


@dataclass(frozen=True)
class RunView:
    """What the report shows: a sample of both domains, of bounded size.

    `source` and `target` are rows of each domain, from 0; `source_labels` are indices of classes;
    `source_names` are ids, empty if there are none; `embedding`, (k_s + k_t, components), is how
    the method represents them, sources first, as principal components.
    """

    source: IntArray
    target: IntArray
    source_labels: IntArray
    source_names: tuple[str, ...]
    embedding: npt.NDArray[np.float16]

    def write(self, path: Path) -> None:
        """Write a safetensors file."""
        names = "source", "target", "source_labels", "embedding"
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in names}
        metadata = {_NAMES: json.dumps(self.source_names)}
        path.write_bytes(safetensors.numpy.save(arrays, metadata=metadata))

    @classmethod
    def parse(cls, content: bytes, path: Path) -> RunView:
        """Return what `write` wrote, or raise an `InputError` that names the file."""
        with reading(path):
            arrays = safetensors.numpy.load(content)
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            names = tuple(map(str, json.loads(header["__metadata__"][_NAMES])))
            return cls(source_names=names, **arrays)


def view_of(
    classifier: OpenSetClassifier,
    source: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    target: npt.NDArray[Any],
    source_ids: Sequence[str] | npt.NDArray[Any] | None = None,
    features: Callable[[IntArray], FloatArray] | None = None,
) -> RunView:
    """Return the view of a fitted classifier.

    `features` computes those of rows, counted through both domains, by a backbone that was
    trained since `source` and `target` were computed.
    """
    rows = _drawn(len(source), MOST_SOURCES), _drawn(len(target), MOST_TARGETS)
    if features is None:
        parts = [Rows(X, own).chunks() for X, own in zip((source, target), rows, strict=True)]
        both = np.concatenate([chunk for chunks in parts for _, chunk in chunks])
    else:
        both = features(np.concatenate([rows[0], len(source) + rows[1]]))
    names = () if source_ids is None else tuple(str(source_ids[row]) for row in rows[0])
    classes = np.searchsorted(classifier.classes_, labels[rows[0]])
    embedding = principal_components(_represented(classifier, both, len(rows[0])))
    return RunView(rows[0], rows[1], classes, names, embedding)


def _drawn(count: int, most: int) -> IntArray:
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def _represented(classifier: OpenSetClassifier, rows: FloatArray, n_source: int) -> FloatArray:
    """Return the method's representation of rows, sources first, or centred rows without one."""
    if classifier.transforms_domains:
        domain = np.where(np.arange(len(rows)) < n_source, 0, -1)
        parts = []
        for start in range(0, len(rows), _AT_A_TIME):
            some = slice(start, start + _AT_A_TIME)
            domains = domain[some] if start < n_source else None
            parts.append(classifier.transform(rows[some], sample_domain=domains))
        return np.concatenate(parts)
    import torch

    scaler = classifier.scaler_
    tensor = torch.from_numpy(rows)
    scaled = scaler(tensor[:n_source], of_source=True), scaler(tensor[n_source:])
    unit = [unit_rows(part.numpy()) for part in scaled]
    # Less their mean, which removes the shift between the domains.
    return np.concatenate([part - part.mean(axis=0) for part in unit])


def principal_components(rows: FloatArray) -> npt.NDArray[np.float16]:
    """Return the first principal components: (n, d) -> (n, at most `COMPONENTS`)."""
    from sklearn.decomposition import PCA

    keep = min(COMPONENTS, *rows.shape)
    if (rows == rows[0]).all():
        # scikit-learn would divide by their variance.
        return np.zeros((len(rows), keep), dtype=np.float16)
    reduced = PCA(keep, svd_solver="covariance_eigh").fit_transform(rows)
    return np.asarray(reduced, dtype=np.float16)


class UnknownGroups(NamedTuple):
    """Target rows of each group, the most typical and the largest group first, and a note."""

    groups: tuple[IntArray, ...]
    note: str


def unknown_groups(view: RunView, is_unknown: npt.NDArray[np.bool_]) -> UnknownGroups:
    """Group the targets in view that were labelled unknown, of all targets (n,)."""
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
