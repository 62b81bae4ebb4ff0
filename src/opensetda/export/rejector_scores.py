"""How each rejector scores adapted rows, as nodes of a graph; see `opensetda.rejection`."""

from __future__ import annotations

from functools import singledispatch

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.export.onnx_graph import Value
from opensetda.export.pgl_scores import GraphScores
from opensetda.export.row_steps import softmax_score, squares, top_rows
from opensetda.rejection import osnn, osvm, source_rows
from opensetda.rejection.base import Rejector
from opensetda.rejection.softmax import QuantileRejector


@singledispatch
def rejector_scores(rejector: Rejector, rows: Value, logits: Value | None) -> GraphScores:
    """Score rows (n, d) with a classifier's logits (n, C), as `Rejector.scores` does."""
    name = type(rejector).__name__
    raise InputError(f"{name} cannot be exported to ONNX; register it in opensetda.export")


@rejector_scores.register
def _softmax(rejector: QuantileRejector, rows: Value, logits: Value | None) -> GraphScores:
    assert logits is not None, "this rejector needs them"
    return GraphScores(logits, softmax_score(logits))


def _squared_distances(rows: Value, others: npt.NDArray[np.float64]) -> Value:
    both = squares(rows).op("Add", (others**2).sum(axis=1))
    apart = both - (rows @ others.T) * 2.0
    return (apart < both * source_rows.SAME).where(0.0, apart)


@rejector_scores.register
def _distance_ratio(
    rejector: osnn.DistanceRatioRejector, rows: Value, logits: Value | None
) -> GraphScores:
    graph, apart = rows.graph, _squared_distances(rows, rejector.rows)
    ends = [*rejector.starts[1:], len(rejector.rows)]
    nearest = [
        -(-apart.columns(int(start), int(end))).max()
        for start, end in zip(rejector.starts, ends, strict=True)
    ]
    distances = graph.op("Concat", *nearest, axis=1).op("Sqrt")
    two, _ = top_rows(-distances, 2)
    first, second = -two.columns(0, 1), -two.columns(1, 2)
    ratio = (first < second).where(first / second.maximum(np.finfo(np.float64).tiny), 1.0)
    return GraphScores(distances * (-osnn.DISTANCE_SCALE / rejector.typical), -ratio)


@rejector_scores.register
def _inclusion(rejector: osvm.InclusionRejector, rows: Value, logits: Value | None) -> GraphScores:
    kernel = (_squared_distances(rows, rejector.rows) * -rejector.gamma).op("Exp")
    decisions = kernel @ rejector.machines.weights.T + rejector.machines.offsets
    standardised = (decisions - rejector.weibull.location) / rejector.weibull.scales
    return GraphScores(standardised * osvm.CLASS_SCALE, standardised.max())
