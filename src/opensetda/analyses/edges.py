"""Learned edges of one graph beside the true ones (the paper's Figure 6).

The true labels of the targets order the nodes and group the pairs; training never sees them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure

from opensetda.analyses.request import (
    AnalysisRequest,
    AnalysisResult,
    Column,
    FittedTask,
    share_above,
)
from opensetda.errors import InputError
from opensetda.rows import FloatArray, IntArray
from opensetda.runs.figure_style import figure_name, new_figure

Matrix = npt.NDArray[np.float64]

# Nodes of each domain in each class, fewer if there are many classes.
PER_CLASS, MOST_NODES = 12, 240
# The few strongest edges would make all others look alike.
_HIGHEST_QUANTILE = 0.99
# More groups are too narrow for their names.
_MOST_NAMES, _LONGEST_NAME = 40, 14


def analyse(request: AnalysisRequest) -> AnalysisResult:
    """Train PGL, and draw the edges of one graph of its last step."""
    fitted = request.fit()
    n_classes, n_source = fitted.n_classes, len(fitted.source_labels)
    per_class = max(1, min(PER_CLASS, MOST_NODES // (4 * n_classes)))
    nodes = draw_nodes(fitted, per_class, request.seed)
    classes = np.concatenate([fitted.source_labels, fitted.truth])[nodes]
    affinity, edges = edge_maps(fitted.classifier, fitted.rows[nodes], nodes >= n_source)
    maps = {"Affinity A": affinity, "Edge E": edges}
    table = [
        {"quantity": name, **pair_means(values, classes, n_classes)}
        for name, values in maps.items()
    ]
    groups = np.bincount(classes)
    names = [*map(str, fitted.classifier.classes_), "unknown"][: len(groups)]
    title = f"Edges of {fitted.method}: {request.what}"
    columns = {
        "quantity": Column("quantity"),
        "same": Column("same class", 3),
        "other": Column("other class", 3),
        "unknown_known": Column("unknown and known", 3),
        "auroc": Column("AUROC %", 1, 100),
    }
    note = (
        f"Means over the pairs of {len(nodes)} nodes of both domains, sources first in each "
        "class; A is the affinity of the last layer, E the normalised edge. AUROC: same class "
        "before the others. Grey in the true map: two unknowns, of any class."
    )
    maps = {"True: same class": true_edges(classes, n_classes), **maps}
    return AnalysisResult(title, columns, table, draw_maps(maps, groups, names, title), (note,))


def draw_nodes(fitted: FittedTask, per_class: int, seed: int) -> IntArray:
    """Draw rows of `fitted.rows`, ordered by true class, sources first; unknowns are last.

    As many of each known class in both domains, and unknowns by their share of the target.
    """
    rng = np.random.default_rng(seed)
    truth, labels, n_classes = fitted.truth, fitted.source_labels, fitted.n_classes

    def draw(pool: npt.NDArray[np.bool_], count: int) -> IntArray:
        chosen = np.flatnonzero(pool)
        return np.asarray(rng.choice(chosen, min(count, len(chosen)), replace=False))

    pairs = [
        (draw(labels == label, per_class), len(labels) + draw(truth == label, per_class))
        for label in range(n_classes)
    ]
    n_targets, is_unknown = sum(len(targets) for _, targets in pairs), truth == n_classes
    wanted = round(n_targets * is_unknown.sum() / max((~is_unknown).sum(), 1))
    unknowns = draw(is_unknown, min(wanted, 2 * n_targets))
    # Unknowns of one class beside each other: what the network sees in them becomes visible.
    names = np.asarray(fitted.task.target_truth)[unknowns].astype(str)
    unknowns = len(labels) + unknowns[np.argsort(names, kind="stable")]
    return np.concatenate([*(rows for pair in pairs for rows in pair), unknowns])


@torch.no_grad()
def edge_maps(
    classifier: Any, rows: FloatArray, is_target: npt.NDArray[np.bool_]
) -> tuple[Matrix, Matrix]:
    r"""Return affinities :math:`A` and normalised edges :math:`\mathcal{E}` of the last layer.

    .. math:: A_{ij} = \sigma(G_E(v_i, v_j)), \quad
              \mathcal{E} = D^{-1/2} (A + I) D^{-1/2}

    of the network of a fitted `PGLClassifier`. Shapes: rows (N, D), is_target (N,) -> two (N, N).
    """
    network: Any = getattr(classifier.scorer_, "network", None)
    layers = () if network is None else network.graph_layers
    if not len(layers):
        raise InputError("edges: only pgl has a graph, with layers=1 or more")
    x, target = torch.from_numpy(rows), torch.from_numpy(is_target)
    scaled = torch.where(
        target[:, None], classifier.scaler_(x), classifier.scaler_(x, of_source=True)
    )
    v = network.backbone(scaled)
    for layer in layers:
        loops = layer.affinity(v)
        v, edges = layer(v)
    return (loops - torch.eye(len(x), dtype=loops.dtype)).numpy(), edges.numpy()


def true_edges(classes: IntArray, n_classes: int) -> Matrix:
    """Return the label map: 1 for one class, 0 for two, NaN for two unknowns, of any class."""
    same = (classes[:, None] == classes[None, :]).astype(np.float64)
    unknown = classes == n_classes
    same[np.ix_(unknown, unknown)] = np.nan
    return np.asarray(same)


def pair_means(values: Matrix, classes: IntArray, n_classes: int) -> dict[str, float]:
    """Take means over pairs of different nodes of one known class, of two, of unknown and known.

    `auroc` is that of pairs of one class against the others.
    """
    truth = true_edges(classes, n_classes)
    unknown = classes == n_classes
    mixed = unknown[:, None] ^ unknown[None, :]
    apart = ~np.eye(len(unknown), dtype=bool)
    same, other = (truth == 1) & apart, (truth == 0) & ~mixed
    kinds = {"same": same, "other": other, "unknown_known": mixed}
    means = {k: float(values[p].mean()) if p.any() else math.nan for k, p in kinds.items()}
    return means | {"auroc": share_above(values[same], values[other | mixed])}


def draw_maps(
    maps: Mapping[str, Matrix], groups: IntArray, names: Sequence[str], title: str
) -> Figure:
    """Draw maps of all pairs (N, N) beside each other; `groups` are the nodes of each name."""
    figure = new_figure(4.1 * len(maps) + 1.2, 4.9, title)
    ends = np.cumsum(groups)
    colors = colormaps["viridis"].with_extremes(bad="#E8E8E8")
    for number, (name, values) in enumerate(maps.items(), start=1):
        axes = figure.add_subplot(1, len(maps), number)
        apart = values[~np.eye(len(values), dtype=bool)]
        highest = float(np.nanquantile(apart, _HIGHEST_QUANTILE)) or 1.0
        image = axes.imshow(values, cmap=colors, interpolation="nearest", vmin=0, vmax=highest)
        for border in ends[:-1] - 0.5:
            axes.axhline(border, color="white", linewidth=0.35)
            axes.axvline(border, color="white", linewidth=0.35)
        axes.set_title(name, fontsize=10.5, loc="left")
        axes.set(xticks=[], yticks=[])
        if number == 1 and len(names) <= _MOST_NAMES:
            shown = [figure_name(name, _LONGEST_NAME) for name in names]
            axes.set_yticks(ends - groups / 2 - 0.5, shown, fontsize=8 if len(names) < 25 else 5)
            axes.tick_params(axis="y", length=0)
        figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02).ax.tick_params(labelsize=8)
    return figure
