"""How each method scores rows, as nodes of a graph; the formulas are those of `_score_rows`."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from opensetda.base import OpenSetClassifier
from opensetda.baselines.ati import ATI
from opensetda.baselines.class_means import ProgressiveClassMeans
from opensetda.baselines.daod import DAOD, VALUE_SCALE
from opensetda.baselines.oslpp import OSLPP
from opensetda.baselines.ovanet import OVANet
from opensetda.baselines.shared import moving_means
from opensetda.baselines.shared.network import (
    ROW_SCALE,
    ClosedSetRival,
    ExtraClassRival,
    NetworkRival,
)
from opensetda.baselines.smoothed_means import SmoothedMeans
from opensetda.baselines.source_only import SourceOnly
from opensetda.baselines.uniot import ENTROPY, MARGINALS, TEMPERATURE, UniOT
from opensetda.errors import InputError
from opensetda.export.network_steps import SHORTEST, apply, array
from opensetda.export.onnx_graph import Value
from opensetda.export.pgl_scores import GraphScores, support_scores
from opensetda.export.rejector_scores import rejector_scores
from opensetda.export.row_steps import aligned_rows, logsumexp, spread, squares, top_rows, unit_rows
from opensetda.openness.smoothing import SAME
from opensetda.pgl.estimator import PGLClassifier


@singledispatch
def method_scores(classifier: OpenSetClassifier, x: Value) -> GraphScores:
    """Score scaled rows in double precision: (n, D) -> logits (n, C), known scores (n, 1).

    A method is exported once it is registered here.
    """
    name = type(classifier).__name__
    raise InputError(f"{name} cannot be exported to ONNX; register it in opensetda.export")


@method_scores.register
def _pgl(classifier: PGLClassifier, x: Value) -> GraphScores:
    return support_scores(classifier._support, aligned_rows(x, classifier._alignment))


def _cosines(classifier: moving_means.MovingMeans, unit: Value) -> GraphScores:
    cosine = unit @ classifier.means_.T
    return GraphScores(cosine * moving_means.COSINE_SCALE, cosine.max())


@method_scores.register
def _class_means(classifier: ProgressiveClassMeans, x: Value) -> GraphScores:
    return _cosines(classifier, unit_rows(unit_rows(x) - classifier.centre_))


@method_scores.register
def _smoothed_means(classifier: SmoothedMeans, x: Value) -> GraphScores:
    rows, others = aligned_rows(x, classifier._alignment), classifier.rows_
    cosine = rows @ others.T
    cosine = (cosine.op("Greater", SAME, dtype=bool)).where(-np.inf, cosine)
    largest, places = top_rows(cosine, min(classifier.neighbours, len(others)))
    counts = (largest >= -2.0).cast(np.float64)
    means = unit_rows(spread(counts, places, cosine) @ others)
    share = classifier.message
    return _cosines(classifier, unit_rows(rows * (1 - share) + means * share))


@method_scores.register
def _source_only(classifier: SourceOnly, x: Value) -> GraphScores:
    unit, logits = unit_rows(x), None
    if classifier.rejector_.needs_logits:
        logits = unit @ classifier.coef_.T + classifier.intercept_
        if len(classifier.coef_) == 1:
            logits = logits * [[-0.5, 0.5]]
    return rejector_scores(classifier.rejector_, unit, logits)


@method_scores.register
def _ati(classifier: ATI, x: Value) -> GraphScores:
    centred = unit_rows(unit_rows(x) - classifier.centre_)
    rows, logits = unit_rows(centred @ classifier.projection_.T), None
    if classifier.rejector_.needs_logits:
        logits = rows @ classifier.weights_.T + classifier.offsets_
    return rejector_scores(classifier.rejector_, rows, logits)


@method_scores.register
def _daod(classifier: DAOD, x: Value) -> GraphScores:
    rows, others = aligned_rows(x, classifier._alignment), classifier._rows
    lengths = squares(rows) + (others**2).sum(axis=1)
    values = (rows @ others.T - lengths / 2.0).op("Exp") @ classifier._coefficients
    return _against_last(values, VALUE_SCALE)


@method_scores.register
def _oslpp(classifier: OSLPP, x: Value) -> GraphScores:
    reduced = unit_rows((unit_rows(x) - classifier.mean_) @ classifier.components_)
    embedded = unit_rows(reduced @ classifier.projection_ - classifier.centre_)
    cosine = embedded @ classifier.means_.T
    logits = -(cosine * -2.0 + 2.0).maximum(0.0).op("Sqrt")
    confidence = logits.max() - logsumexp(logits) + np.log(len(classifier.classes_))
    return GraphScores(logits, confidence)


def _against_last(values: Value, scale: float = 1.0) -> GraphScores:
    """Score by the largest of the first C values, less the last one, of unknown."""
    classes, last = values.columns(0, -1), values.columns(-1, np.iinfo(np.int64).max)
    return GraphScores(classes * scale, classes.max() - last)


def _features(classifier: NetworkRival, x: Value) -> Value:
    network: Any = classifier._network
    rows = apply(network.backbone, aligned_rows(x, classifier._alignment))
    return apply(network.bottleneck, rows * ROW_SCALE)


@method_scores.register
def _extra_class(classifier: ExtraClassRival, x: Value) -> GraphScores:
    network: Any = classifier._network
    return _against_last(apply(network.classifier, _features(classifier, x)))


@method_scores.register
def _closed_set(classifier: ClosedSetRival, x: Value) -> GraphScores:
    network: Any = classifier._network
    features = _features(classifier, x)
    logits = apply(network.classifier, features)
    return rejector_scores(classifier.rejector_, unit_rows(features, SHORTEST), logits)


@method_scores.register
def _ovanet(classifier: OVANet, x: Value) -> GraphScores:
    network: Any = classifier._network
    features = _features(classifier, x)
    closed = apply(network.closed, features)
    nearest = closed.op("ArgMax", axis=1, keepdims=1, dtype=np.int64)
    return GraphScores(closed, apply(network.one_vs_all, features).take(nearest))


@method_scores.register
def _uniot(classifier: UniOT, x: Value) -> GraphScores:
    network: Any = classifier._network
    embedded = unit_rows(_features(classifier, x), SHORTEST)
    classes = array(network.classes)
    similarity = embedded @ (classes / np.linalg.norm(classes, axis=1, keepdims=True)).T
    logs = similarity / ENTROPY + classifier._potential
    share = MARGINALS / (MARGINALS + ENTROPY)
    mass = logs.max() - (logsumexp(logs) + np.log(classifier._rows)) * share
    known = mass + np.log(classifier._rows / classifier._mass)
    logits = (similarity + ENTROPY * classifier._potential) / TEMPERATURE
    return GraphScores(logits, known.maximum(np.log(np.finfo(np.float64).tiny)))
