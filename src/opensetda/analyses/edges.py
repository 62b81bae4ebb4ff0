"""Learned edges of one graph beside the true ones (the paper's Figure 6).

The true labels of the targets order the nodes and group the pairs; training never sees them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from opensetda.analyses.contract import AnalysisRequest, AnalysisResult, Column, PGLRun, ResultTable
from opensetda.analyses.observed import ObservedTraining, StepView, observe
from opensetda.errors import InputError
from opensetda.report.matrices import PairMap, draw_maps
from opensetda.rows import IntArray

Matrix = npt.NDArray[np.float64]


# Nodes of each domain in each class, fewer if there are many classes.
PER_CLASS = 12
MOST_NODES = 240
# The few strongest edges would make all others look alike.
_HIGHEST_QUANTILE = 0.99
_QUANTITIES = {"A": "Affinity A", "E": "Edge E"}


@dataclass(frozen=True)
class GraphNodes:
    """Nodes of both domains, ordered by true class, unknowns (C) last: arrays of shape (N,).

    `index` is the row number within the node's own domain.
    """

    index: IntArray
    is_target: npt.NDArray[np.bool_]
    classes: IntArray

    def sizes(self, n_classes: int) -> list[int]:
        """Count the nodes of each class, then of unknown."""
        return [int(count) for count in np.bincount(self.classes, minlength=n_classes + 1)]


@dataclass(frozen=True)
class PairMeans:
    """Means over pairs of different nodes of one known class, of two, and of unknown and known.

    `auroc` is the share of the (pair of one class, any other of these pairs) whose first is
    higher. NaN of none.
    """

    same: float
    different: float
    unknown_known: float
    auroc: float


def analyse(request: AnalysisRequest) -> AnalysisResult:
    """Train PGL, and draw the edges of one graph at the first and at the kept step."""
    if not request.settings().graph.enabled:
        raise InputError("setting graph.enabled=False: without a graph there are no edges to draw")
    [run] = request.pgl_runs()
    [(nodes, names, steps)] = request.run_each(edges_of_run, [run])
    n_classes = len(names)
    table = ResultTable(
        f"Edges by what is true of the pair: PGL, {request.preset}, on {request.what()}",
        [
            *(Column("step", "step"), Column("quantity", "quantity")),
            Column("same", "same class", "number"),
            Column("different", "other class", "number"),
            Column("unknown_known", "unknown and known", "number"),
            Column("auroc", "AUROC", "percent"),
        ],
        notes=[
            f"Means over the pairs of {len(nodes.index)} nodes of both domains; A is the affinity "
            "of the last layer, E the normalised edge. AUROC, in %: same class before the others.",
        ],
    )
    rows: list[list[PairMap]] = [[], []]
    highest = _highest([edges for _, edges in steps.values()])
    for number, (affinity, edges) in steps.items():
        kinds = (("A", affinity, 1.0), ("E", edges, highest))
        for row, (quantity, values, top) in zip(rows, kinds, strict=True):
            means = pair_means(values, nodes, n_classes)
            kept = number == max(steps)
            table.add(marked=kept, step=number, quantity=quantity, **vars(means))
            remark = f"same {means.same:.3f}, other {means.different:.3f}"
            remark += f", unknown {means.unknown_known:.3f}"
            row.append(PairMap(f"{_QUANTITIES[quantity]}, step {number}", values, top, remark))
    remark = "of each class the source first; grey: two unknowns"
    truth = PairMap("True: same class", true_edges(nodes, n_classes), 1.0, remark)
    sizes = nodes.sizes(n_classes)
    title = f"Edges of PGL: {request.what()}"
    shown = [*names, "unknown"] if sizes[-1] else list(names)
    return AnalysisResult(table, draw_maps(truth, rows, sizes[: len(shown)], shown, title))


def edges_of_run(
    run: PGLRun,
) -> tuple[GraphNodes, list[str], dict[int, tuple[Matrix, Matrix]]]:
    """Train, and return the nodes of one graph, the classes, and A and E of two steps."""
    training = observe(run, run.tasks.load(run.task))
    per_class = max(1, min(PER_CLASS, MOST_NODES // (4 * training.n_classes)))
    nodes = draw_nodes(training, per_class, run.seed)
    steps = {n: edge_maps(training.step(n), nodes) for n in (1, training.kept_step)}
    return nodes, [str(name) for name in training.classifier.classes_], steps


def _highest(maps: list[Matrix]) -> float:
    """Return the value from which on all edges look alike; loops do not count."""
    apart = [values[~np.eye(len(values), dtype=bool)] for values in maps]
    every = np.concatenate([values[values > 0] for values in apart])
    return float(np.quantile(every, _HIGHEST_QUANTILE)) if len(every) else 1.0


def draw_nodes(training: ObservedTraining, per_class: int, seed: int) -> GraphNodes:
    """Draw sources and targets of each class alike, and unknowns by their share of the target."""
    rng = np.random.default_rng(seed)
    truth, labels, n_classes = training.target_truth, training.source_labels, training.n_classes
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
    nodes[n_known:] = sorted(nodes[n_known:], key=lambda node: str(training.target_names[node[0]]))
    index, is_target, classes = (np.array(values) for values in zip(*nodes, strict=True))
    return GraphNodes(index.astype(np.intp), is_target, classes.astype(np.intp))


@torch.no_grad()
def edge_maps(step: StepView, nodes: GraphNodes) -> tuple[Matrix, Matrix]:
    r"""Return affinities :math:`A` and normalised edges :math:`\mathcal{E}` of the last layer.

    .. math:: A_{ij} = \sigma(G_E(v_i, v_j)), \quad
              \mathcal{E} = D^{-1/2} (A' + I) D^{-1/2}

    with A' those of A that are kept: all in the paper, a node's strongest in the default.

    Shapes: N nodes -> (N, N), (N, N).
    """
    samples = step.samples
    x = torch.empty(len(nodes.index), samples.source.shape[1])
    labels = torch.empty(len(nodes.index), dtype=torch.long)
    is_target, index = torch.from_numpy(nodes.is_target), torch.from_numpy(nodes.index)
    own, others = index[~is_target], index[is_target]
    x[~is_target], labels[~is_target] = samples.source[own], samples.source_labels[own]
    x[is_target], labels[is_target] = samples.target[others], samples.pseudo_labels[others]
    output = step.network(x, labels)
    affinity = torch.sigmoid(output.edge_logits[-1])
    return affinity.double().numpy(), output.edges[-1].double().numpy()


def true_edges(nodes: GraphNodes, n_classes: int) -> Matrix:
    """Return the label map: 1 for one class, 0 for two, NaN for two unknowns, of any class."""
    same = (nodes.classes[:, None] == nodes.classes[None, :]).astype(np.float64)
    unknown = nodes.classes == n_classes
    same[np.ix_(unknown, unknown)] = np.nan
    return np.asarray(same)


def pair_means(values: Matrix, nodes: GraphNodes, n_classes: int) -> PairMeans:
    """Take means over pairs of one class, of two, and of unknown and known."""
    truth = true_edges(nodes, n_classes)
    unknown = nodes.classes == n_classes
    mixed = unknown[:, None] ^ unknown[None, :]
    apart = ~np.eye(len(unknown), dtype=bool)
    same, different = (truth == 1) & apart, (truth == 0) & ~mixed
    groups = [values[pairs] for pairs in (same, different, mixed)]
    same_mean, different_mean, mixed_mean = (
        float(group.mean()) if len(group) else math.nan for group in groups
    )
    return PairMeans(
        same_mean, different_mean, mixed_mean, share_above(values[same], values[different | mixed])
    )


def share_above(higher: Matrix, lower: Matrix) -> float:
    """Share of the pairs in which the first is larger; a tie counts half."""
    if not len(higher) or not len(lower):
        return math.nan
    ordered = np.sort(lower)
    below = np.searchsorted(ordered, higher, "left") + np.searchsorted(ordered, higher, "right")
    return float(below.mean() / (2 * len(lower)))
