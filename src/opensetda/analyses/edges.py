"""Learned edges of one graph beside the true ones (the paper's Figure 6).

The true labels of the targets order the nodes and group the pairs; training never sees them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from opensetda.analyses.request import (
    AnalysisRequest,
    AnalysisResult,
    Column,
    FittedTask,
    share_above,
)
from opensetda.errors import InputError
from opensetda.report.matrices import PairMap, draw_maps
from opensetda.rows import FloatArray, IntArray

Matrix = npt.NDArray[np.float64]

# Nodes of each domain in each class, fewer if there are many classes.
PER_CLASS = 12
MOST_NODES = 240
# The few strongest edges would make all others look alike.
_HIGHEST_QUANTILE = 0.99


@dataclass(frozen=True)
class GraphNodes:
    """Nodes of both domains, ordered by true class, unknowns (C) last: arrays of shape (N,).

    `index` is the row number within the node's own domain.
    """

    index: IntArray
    is_target: npt.NDArray[np.bool_]
    classes: IntArray


def analyse(request: AnalysisRequest) -> AnalysisResult:
    """Train PGL, and draw the edges of one graph of its last step."""
    fitted = request.fit()
    n_classes = fitted.n_classes
    per_class = max(1, min(PER_CLASS, MOST_NODES // (4 * n_classes)))
    nodes = draw_nodes(fitted, per_class, request.seed)
    rows = np.empty((len(nodes.index), fitted.task.source_features.shape[1]))
    rows[~nodes.is_target] = fitted.task.source_features[nodes.index[~nodes.is_target]]
    rows[nodes.is_target] = fitted.task.target_features[nodes.index[nodes.is_target]]
    affinity, edges = edge_maps(fitted.classifier, rows, nodes.is_target)
    apart = edges[~np.eye(len(edges), dtype=bool)]
    maps, table = [], []
    for name, values, highest in (
        ("Affinity A", affinity, 1.0),
        ("Edge E", edges, float(np.quantile(apart, _HIGHEST_QUANTILE)) or 1.0),
    ):
        means = pair_means(values, nodes.classes, n_classes)
        table.append({"quantity": name, **means})
        remark = ", ".join(f"{kind.replace('_', '-')} {v:.3f}" for kind, v in means.items())
        maps.append(PairMap(name, values, highest, remark))
    same, remark = true_edges(nodes.classes, n_classes), "source first; grey: two unknowns"
    truth = PairMap("True: same class", same, 1.0, remark)
    sizes = np.bincount(nodes.classes).tolist()
    shown = [*map(str, fitted.classifier.classes_), "unknown"][: len(sizes)]
    title = f"Edges of {fitted.method}: {request.what}"
    columns = {
        "quantity": Column("quantity"),
        "same": Column("same class", 3),
        "other": Column("other class", 3),
        "unknown_known": Column("unknown and known", 3),
        "auroc": Column("AUROC %", 1, 100),
    }
    note = (
        f"Means over the pairs of {len(nodes.index)} nodes of both domains; A is the affinity of "
        "the last layer, E the normalised edge. AUROC: same class before the others."
    )
    figure = draw_maps(truth, [maps], sizes, shown, title)
    return AnalysisResult(title, columns, table, figure, (note,))


def draw_nodes(fitted: FittedTask, per_class: int, seed: int) -> GraphNodes:
    """Draw sources and targets of each class alike, and unknowns by their share of the target."""
    rng = np.random.default_rng(seed)
    truth, labels, n_classes = fitted.truth, fitted.source_labels, fitted.n_classes
    nodes: list[tuple[int, bool, int]] = []

    def take(pool: IntArray, count: int, target: bool, label: int) -> None:
        chosen = rng.choice(pool, min(count, len(pool)), replace=False)
        nodes.extend((row, target, label) for row in chosen.tolist())

    for label in range(n_classes):
        take(np.flatnonzero(labels == label), per_class, False, label)
        take(np.flatnonzero(truth == label), per_class, True, label)
    unknown = np.flatnonzero(truth == n_classes)
    known_targets = sum(target for _, target, _ in nodes)
    n_known = len(nodes)
    wanted = round(known_targets * len(unknown) / max(len(truth) - len(unknown), 1))
    take(unknown, min(wanted, 2 * known_targets), True, n_classes)
    # Unknowns of one class beside each other: what the network sees in them becomes visible.
    names = fitted.task.target_truth
    nodes[n_known:] = sorted(nodes[n_known:], key=lambda node: str(names[node[0]]))
    index, is_target, classes = (np.array(values) for values in zip(*nodes, strict=True))
    return GraphNodes(index.astype(np.intp), is_target, classes.astype(np.intp))


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
