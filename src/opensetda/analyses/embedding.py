"""Features of several methods in a plane, by t-SNE (the paper's Figure 5), and their quality.

Raw rows, which a classifier of the source alone works on, beside what methods return from
``transform``. The quality is measured in the space of the features, by the cosine, with the true
labels of the targets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from sklearn.metrics import pairwise_distances_argmin

from opensetda.analyses.bound import proxy_a_distance
from opensetda.analyses.request import (
    AnalysisRequest,
    AnalysisResult,
    Column,
    share_above,
    true_classes,
)
from opensetda.report.plane import Plane, lay_out
from opensetda.rows import FloatArray, IntArray, unit_rows
from opensetda.runs import figure_style as style
from opensetda.runs.view import principal_components

RAW = "raw rows"
# A picture holds no more.
MOST_SAMPLES = 1500
# With more than ten classes, the marker changes with every ten.
_OKABE_ITO = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.YELLOW, style.SKY)
_COLORS = (*_OKABE_ITO, "#7B3F00", "#B2DF3A", "#5B2C83", "#F0E442")
_MARKERS, _UNKNOWN = ("^", "s", "D", "v", "P", "h"), "#A8A8A8"
# Classes that the legend names, and how long a name may be.
_NAMED, _LONGEST_NAME = 40, 26
# Up to so many samples are drawn at full size.
_FEW = 500
_NOTE = (
    "By the cosine, in the features' own space. Purity: known targets, in %, whose nearest source "
    "sample is of their class; AUROC, in %: known before unknown targets by the cosine to the "
    "nearest class mean of the source; A-distance of source and known targets: 0 if they cannot be "
    "told apart, 2 if they always can."
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
    rows, planes = [], {}
    features = {RAW: (task.source_features, task.target_features)}
    features |= {variant.label: request.fit(variant).features() for variant in request.variants}
    for method, (source, target) in features.items():
        quality = embedding_quality(source, labels, target, truth, len(names))
        rows.append({"method": method, **quality})
        unit = unit_rows(np.concatenate([source, target])[shown].astype(np.float64))
        planes[method] = lay_out(principal_components(unit))
    columns = {
        "method": Column("features of"),
        "purity": Column("purity %", 1, 100),
        "auroc": Column("AUROC %", 1, 100),
        "a_distance": Column("A-distance", 3),
    }
    title = f"t-SNE of features: {request.what}"
    classes, is_target = np.concatenate([labels, truth])[shown], shown >= len(labels)
    figure = draw_planes(planes, classes, is_target, names, title)
    for axes, row in zip(figure.axes, rows, strict=True):
        purity, auroc = (columns[name].text(row[name]) for name in ("purity", "auroc"))
        axes.set_xlabel(f"purity {purity} %, AUROC {auroc} %", fontsize=9)
    return AnalysisResult(title, columns, rows, figure, (_NOTE,))


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
    nearest = pairwise_distances_argmin(target_unit[known], source_unit)
    return {
        "purity": float((source_labels[nearest] == truth[known]).mean()),
        "auroc": share_above(score[known], score[~known]),
        "a_distance": proxy_a_distance(source, target[known]),
    }


def draw_planes(
    planes: Mapping[str, Plane],
    classes: IntArray,
    is_target: npt.NDArray[np.bool_],
    names: Sequence[str],
    title: str,
) -> Figure:
    """Draw the same samples in one panel per method: (n, 2) positions within [0, 1].

    `classes` (n,) are places in `names`, or their number for unknown. Sources are hollow.
    """
    columns = min(len(planes), 3)
    rows = math.ceil(len(planes) / columns)
    figure = style.new_figure(max(4.0 * columns, 6.4), 4.3 * rows + 1.2, title)
    size = 16 * min(1.0, (_FEW / len(classes)) ** 0.5)
    is_unknown, is_source = classes == len(names), ~is_target
    for number, (method, plane) in enumerate(planes.items(), start=1):
        axes = figure.add_subplot(rows, columns, number)
        axes.set_title(method, fontsize=10.5, loc="left", fontweight="bold")
        axes.set(xticks=[], yticks=[], xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
        axes.spines[:].set_color(style.PALE)
        look: dict[str, Any] = {"s": size, "linewidths": 0.9}
        x, y = plane[is_unknown].T
        axes.scatter(x, y, marker="^", color=_UNKNOWN, alpha=0.6, label="unknown", **look)
        for label, name in enumerate(names):
            color, marker = _look(label)
            x, y = plane[is_source & (classes == label)].T
            hollow = "o" if marker == _MARKERS[0] else marker
            axes.scatter(x, y, marker=hollow, edgecolors=color, facecolors="none", **look)
            x, y = plane[is_target & (classes == label)].T
            named = style.figure_name(str(name), _LONGEST_NAME) if len(names) <= _NAMED else None
            axes.scatter(x, y, marker=marker, color=color, label=named, **look)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    longest = max(map(len, labels))
    figure.legend(
        handles=handles,
        title="targets; source samples are hollow",
        loc="outside lower left",
        ncols=max(3, int(figure.get_figwidth() / (0.4 + 0.075 * longest))),
        frameon=False,
        fontsize=9,
        title_fontsize=9,
        alignment="left",
    )
    return figure


def _look(label: int) -> tuple[str, str]:
    """Return colour and marker of a class."""
    return _COLORS[label % len(_COLORS)], _MARKERS[label // len(_COLORS) % len(_MARKERS)]
