"""Features of several methods in a plane, by t-SNE (the paper's Figure 5), and their quality.

The quality is measured in the space of the features, with the true labels of the targets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from sklearn.metrics import pairwise_distances_argmin

from opensetda.analyses.bound import proxy_a_distance
from opensetda.analyses.request import AnalysisResult, FittedTask, share_above, shown
from opensetda.report import charts as style
from opensetda.report.plane import Plane, lay_out
from opensetda.rows import FloatArray, IntArray, unit_rows
from opensetda.runs.sample_map import principal_components

RAW = "raw rows"
# A picture holds no more.
MOST_SAMPLES = 1500
# With more than ten classes, the marker changes with every ten.
_OKABE_ITO = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.YELLOW, style.SKY)
_COLORS = (*_OKABE_ITO, "#7B3F00", "#B2DF3A", "#5B2C83", "#F0E442")
_MARKERS = ("^", "s", "D", "v", "P", "h")
_UNKNOWN = "#A8A8A8"
_COLUMNS = {"method": "features of", "purity": "purity %"}
_COLUMNS |= {"auroc": "AUROC %", "a_distance": "A-distance"}


def analyse(*fits: FittedTask) -> AnalysisResult:
    """Measure the features of each method, and draw them."""
    first = fits[0]
    labels = first.source_labels
    truth = first.truth
    names = first.classifier.classes_
    places = np.arange(len(labels) + len(truth))
    if len(places) > MOST_SAMPLES:
        rng = np.random.default_rng(first.seed)
        places = np.sort(rng.choice(len(places), MOST_SAMPLES, replace=False))
    rows = []
    planes = {}
    features = {RAW: (first.task.source_features, first.task.target_features)}
    features |= {fitted.method: fitted.features() for fitted in fits}
    for method, (source, target) in features.items():
        quality = embedding_quality(source, labels, target, truth, len(names))
        rows.append({"method": method, **quality})
        unit = unit_rows(np.concatenate([source, target])[places].astype(np.float64))
        planes[method] = lay_out(principal_components(unit))
    title = f"t-SNE of features: {first.what}"
    classes = np.concatenate([labels, truth])[places]
    is_target = places >= len(labels)
    figure = draw_planes(planes, classes, is_target, names, title)
    for axes, row in zip(figure.axes, rows, strict=True):
        purity, auroc = (shown(row[name], _COLUMNS[name]) for name in ("purity", "auroc"))
        axes.set_xlabel(f"purity {purity} %, AUROC {auroc} %", fontsize=9)
    return AnalysisResult(title, _COLUMNS, rows, figure)


def embedding_quality(
    source: FloatArray, source_labels: IntArray, target: FloatArray, truth: IntArray, n_classes: int
) -> dict[str, float]:
    """Measure features of both domains, (n_s, h) and (n_t, h); `truth` has C for unknown."""
    source_unit = unit_rows(source)
    target_unit = unit_rows(target)
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
    names: Any,
    title: str,
) -> Figure:
    """Draw the same samples in one panel per method: (n, 2) positions within [0, 1].

    `classes` (n,) are places in `names`, or their number for unknown. Sources are hollow.
    """
    columns = min(len(planes), 3)
    rows = math.ceil(len(planes) / columns)
    figure = style.new_figure(max(4.0 * columns, 6.4), 4.3 * rows + 1.2, title)
    look: dict[str, Any] = {"s": 16 * min(1.0, (500 / len(classes)) ** 0.5), "linewidths": 0.9}
    for number, (method, plane) in enumerate(planes.items(), start=1):
        axes = figure.add_subplot(rows, columns, number)
        axes.set_title(method, fontsize=10.5, loc="left", fontweight="bold")
        axes.set(xticks=[], yticks=[], xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
        axes.spines[:].set_color(style.PALE)
        x, y = plane[classes == len(names)].T
        axes.scatter(x, y, marker="^", color=_UNKNOWN, alpha=0.6, label="unknown", **look)
        for label, name in enumerate(names):
            color = _COLORS[label % len(_COLORS)]
            marker = _MARKERS[label // len(_COLORS) % len(_MARKERS)]
            hollow = {"edgecolors": color, "facecolors": "none"} | look
            x, y = plane[~is_target & (classes == label)].T
            axes.scatter(x, y, marker=marker, **hollow)
            # The legend has room for so many names.
            named = style.figure_name(str(name), 26) if len(names) <= 40 else None
            x, y = plane[is_target & (classes == label)].T
            axes.scatter(x, y, marker=marker, color=color, label=named, **look)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    columns = max(3, int(figure.get_figwidth() / (0.4 + 0.075 * max(map(len, labels)))))
    look = {"title": "targets; source samples are hollow", "frameon": False, "fontsize": 9}
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, **look)
    return figure
