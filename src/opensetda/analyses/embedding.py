"""Features of several methods in a plane, by t-SNE (the paper's Figure 5), and their quality.

Raw rows; the rows of progressive class means, each domain centred on its own mean; PGL's node
embeddings at the kept step; and what any other method returns from ``transform``. The quality
is measured in the space of the features, by the cosine, with the true labels of the targets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score

from opensetda.analyses.bound import proxy_a_distance
from opensetda.analyses.contract import (
    AnalysisRequest,
    AnalysisResult,
    Column,
    PGLRun,
    ResultTable,
    written,
)
from opensetda.analyses.edges import share_above
from opensetda.analyses.observed import observe, true_classes
from opensetda.benchmark.grid import fit_task
from opensetda.data.benchmarks.protocols import OpenSetTask
from opensetda.errors import InputError
from opensetda.nn.alignment import Alignment
from opensetda.nn.settings import AlignmentSettings
from opensetda.report.scatter import ScatterPanel, draw_scatter
from opensetda.rows import FloatArray, IntArray, Rows, unit_rows
from opensetda.runs.methods import build_method, method_class

RAW = "raw rows"
_OWN = (RAW, "pgl", "class-means")
# Those of the paper's figure, as far as they are there and tell the domains apart.
_PAPERS = ("class-means", "dann", "osbp", "sta", "pgl")
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


@dataclass(frozen=True)
class EmbeddingQuality:
    """The quality of the features of one method; `_NOTE` says what is measured."""

    silhouette: float
    purity: float
    auroc: float
    a_distance: float


def analyse(request: AnalysisRequest) -> AnalysisResult:
    """Get the features of each method, measure them, and draw them."""
    [run] = request.pgl_runs()
    chosen = request.methods or _PAPERS
    for method in chosen:
        if method not in _OWN and not method_class(method).transforms_domains:
            raise InputError(
                f"--method {method}: it learns no features of its own (it has no transform); "
                "leave it out"
            )
    task = run.tasks.load(run.task)
    names = sorted(task.split.known)
    classes, is_target = _true(task)
    shown = np.arange(len(classes))
    if len(shown) > MOST_SAMPLES:
        rng = np.random.default_rng(request.seeds[0])
        shown = np.sort(rng.choice(len(classes), MOST_SAMPLES, replace=False))
    methods = (RAW, *(method for method in chosen if method != RAW))
    found = request.run_each(embed, [(method, run, shown) for method in methods])
    table = ResultTable(
        f"Features by method on {request.what()}",
        [
            Column("method", "features of"),
            Column("silhouette", "silhouette", "number"),
            Column("purity", "purity", "percent"),
            Column("auroc", "AUROC", "percent"),
            Column("a_distance", "A-distance", "number"),
        ],
        notes=[_NOTE],
    )
    panels = []
    for method, (places, quality) in zip(methods, found, strict=True):
        table.add(method=method, **vars(quality))
        purity, auroc = written(quality.purity, "percent"), written(quality.auroc, "percent")
        panels.append(ScatterPanel(method, places, f"purity {purity} %, AUROC {auroc} %"))
    title = f"t-SNE of features: {request.what()}"
    figure = draw_scatter(panels, classes[shown], is_target[shown], names, title)
    return AnalysisResult(table, figure)


def embed(work: tuple[str, PGLRun, IntArray]) -> tuple[FloatArray, EmbeddingQuality]:
    """Return one method's features in the plane, of the rows that are drawn, and their quality."""
    method, run, shown = work
    task = run.tasks.load(run.task)
    source, target = features_of(method, task, run)
    classes, is_target = _true(task)
    quality = embedding_quality(
        source, classes[~is_target], target, classes[is_target], len(task.split.known)
    )
    return _plane(np.concatenate([source, target])[shown], run.seed), quality


def features_of(method: str, task: OpenSetTask, run: PGLRun) -> tuple[FloatArray, FloatArray]:
    """Return the features that a method has of source and target, in the order of the task."""
    if method == RAW:
        return task.source_features, task.target_features
    if method == "class-means":
        # Rows of unit length, each domain centred on its own mean.
        rows = [Rows(X, np.arange(len(X))) for X in (task.source_features, task.target_features)]
        alignment = Alignment(AlignmentSettings(components=None)).fit(*rows)
        return alignment.source(rows[0]), alignment.target(rows[1])
    if method == "pgl":
        training = observe(run, task)
        embedded = training.embed(training.step(training.kept_step))
        source, target = np.empty_like(embedded.source), np.empty_like(embedded.target)
        source[training.source_order] = embedded.source
        target[training.target_order] = embedded.target
        return source, target
    classifier: Any = build_method(method, openness=run.openness_of(task), seed=run.seed)
    fit_task(classifier, task)
    X = np.concatenate([task.source_features, task.target_features])
    n_source = len(task.source_features)
    # Domains that are centred on means of their own are transformed each in its own way.
    domains = np.repeat([0, -1], [n_source, len(X) - n_source])
    features = np.asarray(classifier.transform(X, sample_domain=domains))
    return features[:n_source], features[n_source:]


def _true(task: OpenSetTask) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return the true class of all rows, source first, C for unknown, and their domain."""
    labels = np.concatenate([task.source_labels, task.target_truth])
    classes = true_classes(labels, np.array(sorted(task.split.known)))
    return classes, np.arange(len(classes)) >= len(task.source_labels)


def _plane(rows: FloatArray, seed: int) -> FloatArray:
    unit = unit_rows(rows.astype(np.float64))
    components = min(_COMPONENTS, *unit.shape)
    reduced = PCA(components, random_state=seed).fit_transform(unit)
    perplexity = min(30.0, (len(reduced) - 1) / 3)
    plane = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(reduced)
    return np.asarray(plane)


# Quality ------------------------------------------------------------------------------------


def embedding_quality(
    source: FloatArray, source_labels: IntArray, target: FloatArray, truth: IntArray, n_classes: int
) -> EmbeddingQuality:
    """Measure features of both domains; `truth` has C for unknown.

    Shapes: source (n_s, h), source_labels (n_s,), target (n_t, h), truth (n_t,).
    """
    source_unit, target_unit = unit_rows(source), unit_rows(target)
    known = truth < n_classes
    means = [source_unit[source_labels == label].mean(axis=0) for label in range(n_classes)]
    score = (target_unit @ unit_rows(np.stack(means)).T).max(axis=1)
    both = np.concatenate([source_unit, target_unit[known]])
    return EmbeddingQuality(
        silhouette=_silhouette(both, np.concatenate([source_labels, truth[known]])),
        purity=_purity(source_unit, source_labels, target_unit[known], truth[known]),
        auroc=share_above(score[known], score[~known]),
        a_distance=proxy_a_distance(source, target[known]),
    )


def _silhouette(rows: FloatArray, labels: IntArray) -> float:
    if not 1 < len(np.unique(labels)) < len(labels):
        return math.nan
    most = min(_SILHOUETTE_ROWS, len(rows))
    return float(silhouette_score(rows, labels, metric="cosine", sample_size=most, random_state=0))


def _purity(
    source: FloatArray, source_labels: IntArray, target: FloatArray, truth: IntArray
) -> float:
    if not len(target):
        return math.nan
    parts = [target[start : start + 1024] for start in range(0, len(target), 1024)]
    nearest = np.concatenate([(part @ source.T).argmax(axis=1) for part in parts])
    return float((source_labels[nearest] == truth).mean())
