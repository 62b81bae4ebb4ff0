"""The whole model: rows or an image in, label, confidence, probabilities and known score out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opensetda import __version__
from opensetda.base import OpenSetClassifier
from opensetda.export.method_scores import method_scores
from opensetda.export.onnx_graph import Graph, Value
from opensetda.export.row_steps import scaled_rows
from opensetda.state import json_float

ROWS, IMAGE = "rows", "image"
"""Names of the input: rows of a table, float32 (n, D), or one image, uint8 (height, width, 3)."""
OUTPUTS = ("label", "confidence", "probabilities", "known_score")


def rows_input(
    classifier: OpenSetClassifier, names: Sequence[str] = (), medians: Mapping[str, float] = {}
) -> Value:
    """Return the input of a new graph that takes rows; `medians` fill NaN in columns of names."""
    rows = Graph().input(ROWS, np.float32, ["n", int(classifier.n_features_in_)])
    if not medians:
        return rows
    fill = rows.graph.constant([medians.get(name, np.nan) for name in names], np.float32)
    return rows.op("IsNaN", dtype=bool).where(fill, rows)


def describe(classifier: OpenSetClassifier, **more: Any) -> dict[str, Any]:
    """Return what a user of the model needs to know, as JSON can hold it."""
    threshold, slope = _rejection(classifier)
    return {
        "opensetda_version": __version__,
        "classes": [str(name) for name in classifier.classes_.tolist()],
        "unknown_label": str(classifier.unknown_label),
        "threshold": json_float(threshold),
        "slope": slope,
        "scaling": classifier.scaling_,
        **more,
    }


def assemble(classifier: OpenSetClassifier, rows: Value, description: dict[str, Any]) -> Any:
    """Return the ONNX model of a fitted classifier behind `rows`, float32 (n, D)."""
    graph, n_classes = rows.graph, len(classifier.classes_)
    scores = method_scores(classifier, scaled_rows(rows, classifier.scaler_))
    threshold, slope = _rejection(classifier)
    known, width = scores.known, n_classes + 1
    unknown = known * 0.0
    if np.isfinite(threshold):
        unknown = ((known - threshold) * -slope).op("Sigmoid")
    of_classes = scores.classes.op("Softmax", axis=1) * (-(unknown - 1.0))
    probabilities = of_classes.op("Concat", unknown, axis=1)
    nearest = scores.classes.op("ArgMax", axis=1, keepdims=1, dtype=np.int64)
    # A score that is not a number is not known, either.
    index = (known >= threshold).where(nearest, n_classes, np.int64)
    names = graph.constant([*description["classes"], description["unknown_label"]], np.str_)
    graph.output("label", names.op("Gather", index.flat()), ["n"])
    graph.output("confidence", probabilities.take(index).flat(), ["n"])
    graph.output("probabilities", probabilities, ["n", width])
    graph.output("known_score", known.flat(), ["n"])
    return graph.model(
        {k: v if isinstance(v, str) else json.dumps(v) for k, v in description.items()}
    )


def to_onnx(classifier: OpenSetClassifier) -> bytes:
    """Return a fitted classifier as the content of an ONNX file that takes rows, float32 (n, D).

    Its outputs are those of `osda export`. Without targets in `fit` nothing is unknown.
    """
    names = getattr(classifier, "feature_names_in_", None)
    described = describe(classifier, feature_names=None if names is None else names.tolist())
    model = assemble(classifier, rows_input(classifier), described)
    return bytes(model.SerializeToString())


def _rejection(classifier: OpenSetClassifier) -> tuple[float, float]:
    if not classifier.has_target_:
        return float("-inf"), 0.0
    return tuple(map(float, classifier.rejection))  # type: ignore[return-value]
