"""How well features keep classes together, domains mixed and unknowns apart: in numbers.

Measured in the features' own space, by the cosine, not in the plane of a t-SNE, which shows
neighbourhoods and nothing else. The truth of the targets is the evaluator's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from opensetda.analyses.bound_terms import proxy_a_distance
from opensetda.analyses.edge_maps import share_above
from opensetda.rows import FloatArray, IntArray, unit_rows

# Silhouettes need the distances of all pairs.
_SILHOUETTE_ROWS = 2000


@dataclass(frozen=True)
class EmbeddingQuality:
    """What the features of one method are like.

    Attributes
    ----------
    silhouette : float
        Of the known classes, both domains together, in [-1, 1]: how much nearer a sample is
        to its own class than to the next one.
    purity : float
        Share of the known targets whose nearest source sample is of their class.
    auroc : float
        Known before unknown targets, by the cosine to the nearest class mean of the source.
    a_distance : float
        Proxy A-distance of source and known targets, in [0, 2]: 0 if nobody can tell them apart.
    """

    silhouette: float
    purity: float
    auroc: float
    a_distance: float


def embedding_quality(
    source: FloatArray, source_labels: IntArray, target: FloatArray, truth: IntArray, n_classes: int
) -> EmbeddingQuality:
    """Measure features of both domains; `truth` has C for unknown.

    Shapes: source (n_s, h), source_labels (n_s,), target (n_t, h), truth (n_t,).
    """
    source_unit, target_unit = unit_rows(source), unit_rows(target)
    known = truth < n_classes
    means = unit_rows(
        np.stack([source_unit[source_labels == label].mean(axis=0) for label in range(n_classes)])
    )
    score = (target_unit @ means.T).max(axis=1)
    return EmbeddingQuality(
        silhouette=_silhouette(
            np.concatenate([source_unit, target_unit[known]]),
            np.concatenate([source_labels, truth[known]]),
        ),
        purity=_purity(source_unit, source_labels, target_unit[known], truth[known]),
        auroc=share_above(score[known], score[~known]),
        a_distance=proxy_a_distance(source, target[known]),
    )


def _silhouette(rows: FloatArray, labels: IntArray) -> float:
    from sklearn.metrics import silhouette_score

    if not 1 < len(np.unique(labels)) < len(labels):
        return math.nan
    most = min(_SILHOUETTE_ROWS, len(rows))
    return float(silhouette_score(rows, labels, metric="cosine", sample_size=most, random_state=0))


def _purity(
    source: FloatArray,
    source_labels: IntArray,
    target: FloatArray,
    truth: IntArray,
) -> float:
    if not len(target):
        return math.nan
    nearest = np.concatenate(
        [
            (target[start : start + 1024] @ source.T).argmax(axis=1)
            for start in range(0, len(target), 1024)
        ]
    )
    return float((source_labels[nearest] == truth).mean())
