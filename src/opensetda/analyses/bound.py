r"""The terms of the target error's upper bound, measured step by step (Theorems 1 and 2).

Luo et al., "Progressive Graph Learning for Open-Set Domain Adaptation", ICML 2020; Theorem 1
goes back to Fang et al., "Open Set Domain Adaptation: Theoretical Bound and Algorithm", 2019.
The theorems, and how each term is measured, are in docs/analyses.md. The risks of the targets are
those of the labels of each step; source risk, discrepancy and :math:`\lambda` those of the fitted
method and its features. Everything but the source risk needs true target labels: this is
evaluation, and never used in training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from opensetda.analyses.request import AnalysisResult, FittedTask
from opensetda.report.charts import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    Look,
    draw_lines,
    step_line,
)
from opensetda.report.content import LinePanel
from opensetda.rows import FloatArray, IntArray

# Heading and look of the line.
TERMS = {
    "source_risk": ("source risk", Look(BLUE, "o")),
    "discrepancy": ("discrepancy", Look(PURPLE, "D")),
    "shared_error": ("shared error", Look(GREEN, "s")),
    "open_set_risk": ("open-set risk", Look(ORANGE, "^")),
    "progressive_risk": ("progressive", Look(SKY, "v", 2.4)),
}
SIDES = {
    "bound": ("Theorem 1", Look(ORANGE, "^")),
    "progressive_bound": ("Theorem 2", Look(SKY, "v")),
    "target_error": ("error", Look(BLACK, "o", 2.4)),
}
_FOLDS = 5


def analyse(fitted: FittedTask) -> AnalysisResult:
    """Measure the terms after every step."""
    rows = measure_steps(fitted)
    columns = {"step": "step", "labelled": "pseudo-labelled"}
    panels = []
    for words, kind in (("The terms", TERMS), ("Both sides: the error and its bounds", SIDES)):
        lines = []
        for name, (heading, look) in kind.items():
            lines.append(step_line(heading, (row[name] for row in rows), look))
            columns[name] = heading
        panels.append(LinePanel(words, "share", lines))
    title = f"The error bound over the steps of {fitted.method}: {fitted.what}"
    return AnalysisResult(title, columns, rows, draw_lines(panels, title))


def measure_steps(fitted: FittedTask) -> list[dict[str, float]]:
    """Measure the risks (Eq. 1, Eq. 2) and the other terms after each step."""
    truth = fitted.truth
    labels = fitted.source_labels
    n_classes = fitted.n_classes
    known = truth < n_classes
    source, target = fitted.features()
    joint = joint_risks(source, labels, target[known], truth[known])
    discrepancy = proxy_a_distance(source, target[known]) / 2
    source_risk = _mean(_source_classes(fitted) != labels)
    rows: list[dict[str, float]] = []
    for step, entry in zip(fitted.step_labels, fitted.classifier.history_, strict=True):
        labelled = (entry["n_known"] + entry["n_unknown"]) / len(truth)
        risks = _mean(step != truth), source_risk, _mean(step[~known] != n_classes)
        terms = bound_terms(_mean(~known), labelled, risks, discrepancy, joint)
        rows.append({"step": len(rows) + 1, "labelled": labelled, **terms})
    return rows


@torch.no_grad()
def _source_classes(fitted: FittedTask) -> IntArray:
    """Return the class that the method gives to each row of the source: (n_s,)."""
    scorer: Any = fitted.classifier.scorer_
    rows = torch.from_numpy(np.array(fitted.task.source_features))
    x = fitted.classifier.scaler_(rows, of_source=True)
    if hasattr(scorer, "align"):
        logits = scorer(x, of_source=True)[0]
    elif hasattr(scorer, "alignment"):
        logits = scorer.score(scorer.embed(x, True))[0]
    else:
        # Rows of both domains are scored alike.
        logits = scorer(x)[0]
    return np.asarray(logits.argmax(dim=1).numpy())


def bound_terms(
    share: float, labelled: float, risks: Sequence[float], distance: float, joint: Sequence[float]
) -> dict[str, float]:
    r"""Return the terms of both bounds (Eq. 4, Eq. 7), and the error that they bound.

    `share` is :math:`\pi`, `labelled` :math:`\pi_\alpha`, `risks` are :math:`R_t`, :math:`R_s` and
    :math:`R_{t,C+1}`, NaN of no unknowns, `joint` the source and target parts of :math:`\lambda`.
    """
    target_risk, source_risk, unknown_risk = risks
    odds = share / (1 - share) if share < 1 else math.nan
    rest = 1 - labelled
    open_set_risk = 0.0 if math.isnan(unknown_risk) else odds * unknown_risk
    shared_error = joint[1] + joint[0]
    shared = joint[1] + rest * joint[0]
    return {
        "source_risk": source_risk,
        "discrepancy": distance,
        "shared_error": shared_error,
        "open_set_risk": open_set_risk,
        "progressive_risk": labelled * open_set_risk,
        "bound": source_risk + distance + shared_error + open_set_risk,
        "progressive_bound": rest * (source_risk + distance) + shared + labelled * open_set_risk,
        "target_error": target_risk / (1 - share) if share < 1 else math.nan,
    }


def proxy_a_distance(source: FloatArray, target: FloatArray) -> float:
    r"""How well a classifier tells two domains apart: :math:`2 (1 - 2 \epsilon)`, in [0, 2].

    Ben-David et al., "Analysis of representations for domain adaptation", 2007. The error
    :math:`\epsilon` is the mean of both domains' errors; it stands for that of Eq. 3. NaN
    if a domain has fewer than two rows.
    """
    if min(len(source), len(target)) < 2:
        return math.nan
    domain = np.repeat([0, 1], [len(source), len(target)])
    predicted = _predicted_by_others(np.concatenate([source, target]), domain)
    error = np.mean([_mean(predicted[domain == side] != side) for side in (0, 1)])
    return max(0.0, 2 * (1 - 2 * float(error)))


def joint_risks(
    source: FloatArray, source_labels: IntArray, target: FloatArray, target_labels: IntArray
) -> tuple[float, float]:
    """Errors, on the source and on the known targets, of one classifier for both domains."""
    labels = np.concatenate([source_labels, target_labels])
    wrong = _predicted_by_others(np.concatenate([source, target]), labels) != labels
    return _mean(wrong[: len(source)]), _mean(wrong[len(source) :])


def _predicted_by_others(rows: FloatArray, labels: IntArray) -> IntArray:
    """Predictions of a logistic regression on rows that it was not fitted to."""
    folds = max(2, min(_FOLDS, int(np.bincount(labels)[np.unique(labels)].min())))
    regression = LogisticRegression(class_weight="balanced", max_iter=1000)
    model = make_pipeline(StandardScaler(), regression)
    splitter = StratifiedKFold(folds, shuffle=True, random_state=0)
    return np.asarray(cross_val_predict(model, rows, labels, cv=splitter), dtype=np.intp)


def _mean(values: npt.NDArray[np.bool_]) -> float:
    return float(values.mean()) if len(values) else math.nan
