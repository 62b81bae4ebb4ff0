"""PGL in a graph: each row is attached to the stored support (`opensetda.pgl.induction`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from opensetda.export.network_steps import SHORTEST, apply, array
from opensetda.export.onnx_graph import Value
from opensetda.export.row_steps import softmax_score, spread, squares, top_rows, unit_rows
from opensetda.pgl.graph import AnchoredLayer, GraphLayer, PaperLayer
from opensetda.pgl.induction import SAME, SupportGraph
from opensetda.pgl.network import COSINE_SCALE, LinearClassifier


class GraphScores(NamedTuple):
    """Logits of the known classes, (n, C), and the known score, (n, 1)."""

    classes: Value
    known: Value


def support_scores(support: SupportGraph, x: Value) -> GraphScores:
    """Score aligned rows as `SupportGraph.score` does: (n, d) -> scores."""
    v, itself = apply(support.network.backbone, x), _same_rows(x, support)
    for layer, (nodes, degree) in zip(support.network.graph_layers, support.layers, strict=True):
        v = _attach(layer, v, nodes, array(degree), itself)
    if support.means is None:
        assert isinstance(support.network.classifier, LinearClassifier)
        logits = apply(support.network.classifier.linear, v)
        return GraphScores(logits, softmax_score(logits))
    cosine = v @ array(support.means.t())
    logits = cosine * COSINE_SCALE
    if support.settings.ranking.confidence == "softmax":
        return GraphScores(logits, softmax_score(logits))
    return GraphScores(logits, cosine.max())


def _same_rows(x: Value, support: SupportGraph) -> Value:
    """Mark which support nodes are the row itself, see `induction.same_rows`: -> bool (n, S)."""
    graph = x.graph
    others = graph.constant(array(support.x))
    # The bound of `same_rows`, in as few passes over the (n, S) as can be.
    least = squares(x) * (1 - 1e-9) + (array(support.x_squares) * (1 - 1e-9) - SAME**2)
    near = (x @ (2 * array(support.x.t()))) >= least
    pairs = near.op("NonZero", dtype=np.int64)
    row, place = (pairs.op("Gather", graph.constant(i, np.int64), axis=0) for i in (0, 1))
    difference = x.op("Gather", row, axis=0) - others.op("Gather", place, axis=0)
    equal = squares(difference).op("Sqrt") < SAME
    return near.op("ScatterND", pairs.op("Transpose", perm=[1, 0]), equal.flat())


def _attach(
    layer: GraphLayer, v: Value, nodes: torch.Tensor, degree: npt.NDArray[np.float64], itself: Value
) -> Value:
    """Update rows by messages of the support, see `induction.attach_queries`."""
    logits = itself.where(-np.inf, _edge_logits(layer, v, nodes))
    count = min(layer.neighbours or len(nodes), len(nodes))
    with torch.no_grad():
        loop = float(layer.self_affinity(nodes[:1])) + 1
    if count < len(nodes):
        strongest, places = top_rows(logits, count)
        strongest = strongest.op("Sigmoid")
        own_degree, affinity = strongest.sum() + loop, spread(strongest, places, logits)
    else:
        affinity = logits.op("Sigmoid")
        own_degree = affinity.sum() + loop
    message = (affinity @ (array(nodes) / np.sqrt(degree)[:, None])) / own_degree.op("Sqrt")
    if isinstance(layer, PaperLayer):
        message = message + v / own_degree * loop
        return apply(layer.node, v.op("Concat", message, axis=1))
    assert isinstance(layer, AnchoredLayer)
    message = unit_rows(message, SHORTEST)
    learned = apply(layer.node, v.op("Concat", message, axis=1))
    moved = v * (1 - layer.message) + message * layer.message + learned
    return unit_rows(moved, SHORTEST)


def _edge_logits(layer: GraphLayer, v: Value, nodes: torch.Tensor) -> Value:
    """Score rows against support nodes: (n, D), (S, D) -> (n, S)."""
    if isinstance(layer, AnchoredLayer):
        with torch.no_grad():
            projected = array(layer._project(nodes))
        own = unit_rows(v + apply(layer.metric, v), SHORTEST)
        sharpness = array(layer.sharpness)
        return own @ (projected.T * sharpness) - array(layer.threshold) * sharpness
    assert isinstance(layer, PaperLayer)
    with torch.no_grad():
        projected = array(layer.projection(nodes))
    pairs, own = layer.pairs, apply(layer.projection, v)
    apart = (own.op("Unsqueeze", own.graph.constant([1], np.int64)) - projected).op("Abs")
    hidden = apply(pairs.first_norm, apply(pairs.first, apart))
    hidden = apply(pairs.second_norm, apply(pairs.second, hidden))
    scores = apply(pairs.last, hidden)
    return scores.op("Squeeze", own.graph.constant([2], np.int64))
