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

from opensetda.analyses.request import AnalysisResult, FittedTask, share_above
from opensetda.errors import InputError
from opensetda.report.charts import figure_name, new_figure
from opensetda.rows import FloatArray, IntArray

# Nodes of each domain in each class, fewer if there are many classes.
PER_CLASS = 12
MOST_NODES = 240
_COLUMNS = {"quantity": "quantity", "same": "same class", "other": "other class"}
_COLUMNS |= {"unknown_known": "unknown and known", "auroc": "AUROC %"}


def analyse(fitted: FittedTask) -> AnalysisResult:
    """Draw the edges of one graph of the last step of PGL."""
    n_classes = fitted.n_classes
    n_source = len(fitted.source_labels)
    per_class = max(1, min(PER_CLASS, MOST_NODES // (4 * n_classes)))
    nodes = draw_nodes(fitted, per_class)
    classes = np.concatenate([fitted.source_labels, fitted.truth])[nodes]
    affinity, edges = edge_maps(fitted.classifier, fitted.rows[nodes], nodes >= n_source)
    maps = {"Affinity A": affinity, "Edge E": edges}
    table = [{"quantity": k, **pair_means(map_, classes, n_classes)} for k, map_ in maps.items()]
    names = [*map(str, fitted.classifier.classes_), "unknown"]
    title = f"Edges of {fitted.method}: {fitted.what}"
    maps = {"True: same class": true_edges(classes, n_classes), **maps}
    figure = draw_maps(maps, np.bincount(classes), names, title)
    return AnalysisResult(title, _COLUMNS, table, figure)


def draw_nodes(fitted: FittedTask, per_class: int) -> IntArray:
    """Draw rows of `fitted.rows`, ordered by true class, sources first; unknowns are last.

    As many of each known class in both domains, and unknowns by their share of the target.
    """
    rng = np.random.default_rng(fitted.seed)
    n_classes = fitted.n_classes
    n_unknown = int((fitted.truth == n_classes).sum())
    odds = min(n_unknown / max(len(fitted.truth) - n_unknown, 1), 2.0)
    nodes = []
    domains = {0: fitted.source_labels, len(fitted.source_labels): fitted.truth}
    for label in range(n_classes + 1):
        count = per_class if label < n_classes else round(odds * per_class * n_classes)
        for first, classes in domains.items():
            nodes.append(first + rng.permutation(np.flatnonzero(classes == label))[:count])
    return np.concatenate(nodes)


@torch.no_grad()
def edge_maps(
    classifier: Any, rows: FloatArray, is_target: npt.NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray]:
    r"""Return affinities :math:`A` and normalised edges :math:`\mathcal{E}` of the last layer.

    .. math:: A_{ij} = \sigma(G_E(v_i, v_j)), \quad
              \mathcal{E} = D^{-1/2} (A + I) D^{-1/2}

    of the network of a fitted `PGLClassifier`. Shapes: rows (N, D), is_target (N,) -> two (N, N).
    """
    network: Any = getattr(classifier.scorer_, "network", None)
    layers = () if network is None else network.graph_layers
    if not len(layers):
        raise InputError("edges: only pgl has a graph, with layers=1 or more")
    x = torch.from_numpy(rows)
    align = classifier.scorer_.align
    scale = classifier.scaler_
    of_target = align(scale(x))
    of_source = align(scale(x, of_source=True), of_source=True)
    v = network.features(torch.where(torch.from_numpy(is_target)[:, None], of_target, of_source))
    for layer in layers:
        loops = layer.affinity(v)
        v, edges = layer(v)
    return (loops - torch.eye(len(x), dtype=loops.dtype)).numpy(), edges.numpy()


def true_edges(classes: IntArray, n_classes: int) -> FloatArray:
    """Return the label map: 1 for one class, 0 for two, NaN for two unknowns, of any class."""
    same = classes[:, None] == classes
    unknown = classes == n_classes
    return np.where(unknown[:, None] & unknown, np.nan, same)


def pair_means(values: FloatArray, classes: IntArray, n_classes: int) -> dict[str, float]:
    """Take means over pairs of different nodes of one known class, of two, of unknown and known."""
    truth = true_edges(classes, n_classes)
    unknown = classes == n_classes
    mixed = unknown[:, None] ^ unknown[None, :]
    apart = ~np.eye(len(unknown), dtype=bool)
    same = (truth == 1) & apart
    other = (truth == 0) & ~mixed
    kinds = {"same": same, "other": other, "unknown_known": mixed}
    means = {k: float(values[p].mean()) if p.any() else math.nan for k, p in kinds.items()}
    return means | {"auroc": share_above(values[same], values[other | mixed])}


def draw_maps(
    maps: Mapping[str, FloatArray], groups: IntArray, names: Sequence[str], title: str
) -> Figure:
    """Draw maps of all pairs (N, N) beside each other; `groups` are the nodes of each name."""
    figure = new_figure(4.1 * len(maps) + 1.2, 4.9, title)
    ends = np.cumsum(groups)
    colors = colormaps["viridis"].with_extremes(bad="#E8E8E8")
    for number, (name, values) in enumerate(maps.items(), start=1):
        axes = figure.add_subplot(1, len(maps), number)
        apart = values[~np.eye(len(values), dtype=bool)]
        # The few strongest edges would make all others look alike.
        highest = float(np.nanquantile(apart, 0.99)) or 1.0
        image = axes.imshow(values, cmap=colors, interpolation="nearest", vmin=0, vmax=highest)
        for border in ends[:-1] - 0.5:
            axes.axhline(border, color="white", linewidth=0.35)
            axes.axvline(border, color="white", linewidth=0.35)
        axes.set_title(name, fontsize=10.5, loc="left")
        axes.set(xticks=[], yticks=[])
        # More groups are too narrow for their names.
        if number == 1 and len(ends) <= 40:
            shown = [figure_name(name, 14) for name in names[: len(ends)]]
            axes.set_yticks(ends - groups / 2 - 0.5, shown, fontsize=8 if len(ends) < 25 else 5)
        figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02).ax.tick_params(labelsize=8)
    return figure
