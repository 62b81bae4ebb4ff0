"""Learned edges of one graph beside the true ones (the paper's Figure 6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opensetda.analyses.contract import AnalysisRequest, AnalysisResult, PGLRun
from opensetda.analyses.edge_maps import (
    GraphNodes,
    Matrix,
    PairMeans,
    draw_nodes,
    edge_maps,
    pair_means,
    true_edges,
)
from opensetda.analyses.observed import ObservedTraining
from opensetda.analyses.table import Column, ResultTable
from opensetda.errors import InputError
from opensetda.pgl.settings import PGLSettings
from opensetda.report.maps import PairMap, draw_maps

# Nodes of each domain in each class, fewer where many classes would make the map too fine.
PER_CLASS = 12
MOST_NODES = 240
# The few strongest edges would make all others look alike.
_HIGHEST_QUANTILE = 0.99


@dataclass(frozen=True)
class StepEdges:
    """The edges of one step: affinities A and normalised edges E."""

    number: int
    affinity: Matrix
    edges: Matrix


def analyse(request: AnalysisRequest) -> AnalysisResult:
    """Train PGL, and draw the edges of one graph at the first and at the kept step."""
    settings = PGLSettings.preset(request.preset).with_changes(dict(request.changes))
    if not settings.graph.enabled:
        raise InputError("setting graph.enabled=False: without a graph there are no edges to draw")
    [run] = request.pgl_runs()
    [(nodes, names, steps)] = request.run_each(edges_of_run, [run])
    n_classes = len(names)
    table = ResultTable(
        f"Edges by what is true of the pair: PGL, {request.preset}, on {request.what()}",
        [
            Column("step", "step"),
            Column("quantity", "quantity"),
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
    highest = _highest([step.edges for step in steps])
    for step in steps:
        kinds = (("A", step.affinity, 1.0), ("E", step.edges, highest))
        for row, (quantity, values, top) in zip(rows, kinds, strict=True):
            means = pair_means(values, nodes, n_classes)
            table.add(marked=step is steps[-1], step=step.number, quantity=quantity, **vars(means))
            row.append(_map(f"{_QUANTITIES[quantity]}, step {step.number}", values, top, means))
    truth = PairMap(
        "True: same class",
        true_edges(nodes, n_classes),
        1.0,
        "of each class the source first; grey: two unknowns",
    )
    sizes = nodes.sizes(n_classes)
    title = f"Edges of PGL: {request.what()}"
    shown = [*names, "unknown"] if sizes[-1] else list(names)
    return AnalysisResult(table, draw_maps(truth, rows, sizes[: len(shown)], shown, title))


_QUANTITIES = {"A": "Affinity A", "E": "Edge E"}


def edges_of_run(run: PGLRun) -> tuple[GraphNodes, list[str], list[StepEdges]]:
    """Train, and return the nodes of one graph, the classes, and the edges of two steps."""
    task = run.tasks.load(run.task)
    training = ObservedTraining(task, run.told(task), run.preset, dict(run.changes), run.seed)
    per_class = max(1, min(PER_CLASS, MOST_NODES // (4 * training.n_classes)))
    nodes = draw_nodes(training, per_class, run.seed)
    steps = [
        StepEdges(number, *edge_maps(training, training.step(number), nodes))
        for number in dict.fromkeys([1, training.kept_step])
    ]
    return nodes, [str(name) for name in training.classifier.classes_], steps


def _map(title: str, values: Matrix, highest: float, means: PairMeans) -> PairMap:
    remark = (
        f"same {means.same:.3f}, other {means.different:.3f}, unknown {means.unknown_known:.3f}"
    )
    return PairMap(title, values, highest, remark)


def _highest(maps: list[Matrix]) -> float:
    """Return the value from which on all edges look alike; loops do not count."""
    strong = []
    for values in maps:
        off = values[~np.eye(len(values), dtype=bool)]
        strong.append(off[off > 0])
    every = np.concatenate(strong)
    return float(np.quantile(every, _HIGHEST_QUANTILE)) if len(every) else 1.0
