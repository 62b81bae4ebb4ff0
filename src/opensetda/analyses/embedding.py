"""Features of several methods in a plane, by t-SNE (the paper's Figure 5), and their quality.

Raw rows, which a classifier of the source alone works on, beside what methods return from
``transform``. The quality is measured in the space of the features, by the cosine, with the true
labels of the targets.
"""

from __future__ import annotations

import math

import numpy as np
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import pairwise_distances_argmin, silhouette_score

from opensetda.analyses.bound import proxy_a_distance
from opensetda.analyses.request import (
    AnalysisRequest,
    AnalysisResult,
    Column,
    share_above,
    true_classes,
)
from opensetda.report.scatter import ScatterPanel, draw_scatter
from opensetda.rows import FloatArray, IntArray, unit_rows

RAW = "raw rows"
# t-SNE's time grows faster than its samples, and a picture holds no more.
MOST_SAMPLES = 1500
_COMPONENTS = 50
# Silhouettes need the distances of all pairs.
_SILHOUETTE_ROWS = 2000
_NOTE = (
    "By the cosine, in the features' own space. Silhouette of the known classes, both "
    "domains together; purity: known targets, in %, whose nearest source sample is of "
    "their class; AUROC, in %: known before unknown targets by the cosine to the nearest "
    "class mean of the source; A-distance of source and known targets: 0 if they "
    "cannot be told apart, 2 if they always can."
)


def analyse(request: AnalysisRequest) -> AnalysisResult:
    """Get the features of each method, measure them, and draw them."""
    request.check_features()
    task, names = request.task, sorted(request.task.split.known)
    labels, truth = (
        true_classes(values, np.array(names)) for values in (task.source_labels, task.target_truth)
    )
    shown = np.arange(len(labels) + len(truth))
    if len(shown) > MOST_SAMPLES:
        rng = np.random.default_rng(request.seed)
        shown = np.sort(rng.choice(len(shown), MOST_SAMPLES, replace=False))
    rows, panels = [], []
    features = {RAW: (task.source_features, task.target_features)}
    features |= {variant.label: request.fit(variant).features() for variant in request.variants}
    for method, (source, target) in features.items():
        quality = embedding_quality(source, labels, target, truth, len(names))
        rows.append({"method": method, **quality})
        purity, auroc = 100 * quality["purity"], 100 * quality["auroc"]
        places = _plane(np.concatenate([source, target])[shown], request.seed)
        panels.append(ScatterPanel(method, places, f"purity {purity:.1f} %, AUROC {auroc:.1f} %"))
    columns = {
        "method": Column("features of"),
        "silhouette": Column("silhouette", 3),
        "purity": Column("purity %", 1, 100),
        "auroc": Column("AUROC %", 1, 100),
        "a_distance": Column("A-distance", 3),
    }
    title = f"t-SNE of features: {request.what}"
    classes, is_target = np.concatenate([labels, truth])[shown], shown >= len(labels)
    figure = draw_scatter(panels, classes, is_target, names, title)
    return AnalysisResult(title, columns, rows, figure, (_NOTE,))


def _plane(rows: FloatArray, seed: int) -> FloatArray:
    unit = unit_rows(rows.astype(np.float64))
    components = min(_COMPONENTS, *unit.shape)
    reduced = PCA(components, random_state=seed).fit_transform(unit)
    perplexity = min(30.0, (len(reduced) - 1) / 3)
    plane = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(reduced)
    return np.asarray(plane)


def embedding_quality(
    source: FloatArray, source_labels: IntArray, target: FloatArray, truth: IntArray, n_classes: int
) -> dict[str, float]:
    """Measure features of both domains, as `_NOTE` says; `truth` has C for unknown.

    Shapes: source (n_s, h), source_labels (n_s,), target (n_t, h), truth (n_t,).
    """
    source_unit, target_unit = unit_rows(source), unit_rows(target)
    known = truth < n_classes
    means = [source_unit[source_labels == label].mean(axis=0) for label in range(n_classes)]
    score = (target_unit @ unit_rows(np.stack(means)).T).max(axis=1)
    both = np.concatenate([source_unit, target_unit[known]])
    nearest = pairwise_distances_argmin(target_unit[known], source_unit)
    return {
        "silhouette": _silhouette(both, np.concatenate([source_labels, truth[known]])),
        "purity": float((source_labels[nearest] == truth[known]).mean()),
        "auroc": share_above(score[known], score[~known]),
        "a_distance": proxy_a_distance(source, target[known]),
    }


def _silhouette(rows: FloatArray, labels: IntArray) -> float:
    if not 1 < len(np.unique(labels)) < len(labels):
        return math.nan
    most = min(_SILHOUETTE_ROWS, len(rows))
    return float(silhouette_score(rows, labels, metric="cosine", sample_size=most, random_state=0))
