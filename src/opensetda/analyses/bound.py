r"""The terms of the target error's upper bound, measured step by step (Theorems 1 and 2).

Luo et al., "Progressive Graph Learning for Open-Set Domain Adaptation", ICML 2020; Theorem 1
goes back to Fang et al., "Open Set Domain Adaptation: Theoretical Bound and Algorithm", 2019.
With :math:`\pi = \pi_{C+1}^t` the share of unknowns in the target and the 0-1 loss:

Theorem 1, for one classifier h of C + 1 answers,

.. math::
    \frac{R_t(h)}{1 - \pi} \le R_s(h) + disc(Q^t_{X|Y \le C}, P^s_X) + \lambda
        + \underbrace{\frac{\pi}{1 - \pi} R_{t,C+1}(h)}_{\Delta_o}, \qquad
    \lambda = \min_h \frac{R_t^*(h)}{1 - \pi} + R_s(h)

Theorem 2, for the shared classifier :math:`\tilde h` and the pseudo-labels
:math:`h_b` of step m, which :math:`\pi_\alpha = m \alpha` of the targets have,

.. math::
    \frac{R_t(\tilde h, h_b)}{1 - \pi} \le
        (1 - \pi_\alpha) (R_s(\tilde h) + disc(Q^t_{X|Y \le C}, P^s_X)) + \lambda
        + \underbrace{\frac{\pi_\alpha \pi}{1 - \pi} R_{t,C+1}(h_b)}_{\tilde\Delta_o} + const

where the second part of :math:`\lambda` is :math:`(1 - \pi_\alpha) R_s(\tilde h)`. The paper does
not say what `const` is; it is left out.

The risks of the targets are those of the labels of each step, for :math:`h_b`, too. Source risk,
discrepancy and :math:`\lambda` are those of the fitted method: its own classifier and, for the
last two, the features of ``transform``. Everything but the source risk needs true target labels:
this is evaluation, and never used in training.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from opensetda.analyses.request import AnalysisRequest, AnalysisResult, Column, FittedTask
from opensetda.report.charts import draw_lines, step_line
from opensetda.report.content import LinePanel
from opensetda.rows import FloatArray, IntArray
from opensetda.runs.figure_style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY

# Heading, colour, marker and width of the line.
TERMS = {
    "source_risk": ("source risk", BLUE, "o", 1.6),
    "discrepancy": ("discrepancy", PURPLE, "D", 1.6),
    "shared_error": ("shared error", GREEN, "s", 1.6),
    "open_set_risk": ("open-set risk", ORANGE, "^", 1.6),
    "progressive_risk": ("progressive", SKY, "v", 2.4),
}
SIDES = {
    "bound": ("Theorem 1", ORANGE, "^", 1.6),
    "progressive_bound": ("Theorem 2", SKY, "v", 1.6),
    "target_error": ("error", BLACK, "o", 2.4),
}
_NOTE = (
    "With π the true share of unknowns and p the share of targets that have a pseudo-label: "
    "error = R_t / (1 - π), the left side of both theorems. "
    "Theorem 1 = source risk + discrepancy + shared error + open-set risk. "
    "Theorem 2 = (1 - p) (source risk + discrepancy) + shared error, its source part times "
    "1 - p, + progressive open-set risk; its constant, which the paper does not give, is left out, "
    "so the error may lie above it. How each term is measured: docs/analyses.md."
)
_FOLDS = 5


def analyse(request: AnalysisRequest) -> AnalysisResult:
    """Fit a method, and measure the terms after every step."""
    request.check_features()
    fitted = request.fit()
    rows = measure_steps(fitted)
    lines = {
        name: step_line(heading, (row[name] for row in rows), *look)
        for name, (heading, *look) in (TERMS | SIDES).items()
    }
    kinds = {"The terms": TERMS, "Both sides: the error and its bounds": SIDES}
    panels = [
        LinePanel(words, "share", [lines[name] for name in kind]) for words, kind in kinds.items()
    ]
    title = f"The error bound over the steps of {fitted.method}: {request.what}"
    columns = {"step": Column("step"), "labelled": Column("pseudo-labelled", 3)}
    columns |= {name: Column(look[0], 3) for name, look in (TERMS | SIDES).items()}
    return AnalysisResult(title, columns, rows, draw_lines(panels, title), (_NOTE,))


def measure_steps(fitted: FittedTask) -> list[dict[str, float]]:
    """Measure the risks (Eq. 1, Eq. 2) and the other terms after each step."""
    truth, labels, n_classes = fitted.truth, fitted.source_labels, fitted.n_classes
    known = truth < n_classes
    source, target = fitted.features()
    joint = joint_risks(source, labels, target[known], truth[known])
    discrepancy = proxy_a_distance(source, target[known]) / 2
    source_risk = _mean(fitted.source_classes() != labels)
    rows: list[dict[str, float]] = []
    for step, entry in zip(fitted.step_labels, fitted.classifier.history_, strict=True):
        labelled = (entry["n_known"] + entry["n_unknown"]) / len(truth)
        risks = _mean(step != truth), source_risk, _mean(step[~known] != n_classes)
        terms = bound_terms(_mean(~known), labelled, *risks, discrepancy, *joint)
        rows.append({"step": len(rows) + 1, "labelled": labelled, **terms})
    return rows


def bound_terms(
    share: float,
    labelled: float,
    target_risk: float,
    source_risk: float,
    unknown_risk: float,
    discrepancy: float,
    joint_source_risk: float,
    joint_target_risk: float,
) -> dict[str, float]:
    r"""Return the terms of both bounds (Eq. 4, Eq. 7), and the error that they bound.

    `share` is :math:`\pi`, `labelled` :math:`\pi_\alpha`; the risks are :math:`R_t`,
    :math:`R_s(\tilde h)` and :math:`R_{t,C+1}`, the share of unknowns that are not rejected, NaN
    of none; the joint risks are the two parts of :math:`\lambda`.
    """
    odds, rest = share / (1 - share) if share < 1 else math.nan, 1 - labelled
    open_set_risk = 0.0 if math.isnan(unknown_risk) else odds * unknown_risk
    shared_error = joint_target_risk + joint_source_risk
    shared = joint_target_risk + rest * joint_source_risk
    return {
        "source_risk": source_risk,
        "discrepancy": discrepancy,
        "shared_error": shared_error,
        "open_set_risk": open_set_risk,
        "progressive_risk": labelled * open_set_risk,
        "bound": source_risk + discrepancy + shared_error + open_set_risk,
        "progressive_bound": rest * (source_risk + discrepancy) + shared + labelled * open_set_risk,
        "target_error": target_risk / (1 - share) if share < 1 else math.nan,
    }


def proxy_a_distance(source: FloatArray, target: FloatArray) -> float:
    r"""How well a classifier tells two domains apart: :math:`2 (1 - 2 \epsilon)`, in [0, 2].

    Ben-David et al., "Analysis of representations for domain adaptation", 2007. The error
    :math:`\epsilon` is the mean of the two domains' errors, so that a larger domain does
    not look more different, of a logistic regression on rows it was not fitted to. Where it
    is worse than chance, the distance is 0. NaN if a domain has fewer than two rows. Half of it
    stands for the discrepancy of Eq. 3.
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
    """Errors of one classifier for both domains, on the source and on the known targets.

    A logistic regression, fitted to both domains with their true labels and evaluated on held-out
    rows, approximates the minimum over all classifiers.
    """
    if not len(target):
        return math.nan, math.nan
    labels = np.concatenate([source_labels, target_labels])
    wrong = _predicted_by_others(np.concatenate([source, target]), labels) != labels
    return _mean(wrong[: len(source)]), _mean(wrong[len(source) :])


def _predicted_by_others(rows: FloatArray, labels: IntArray) -> IntArray:
    """Cross-validated predictions of a logistic regression."""
    folds = max(2, min(_FOLDS, int(np.bincount(labels)[np.unique(labels)].min())))
    regression = LogisticRegression(class_weight="balanced", max_iter=1000)
    model = make_pipeline(StandardScaler(), regression)
    splitter = StratifiedKFold(folds, shuffle=True, random_state=0)
    return np.asarray(cross_val_predict(model, rows, labels, cv=splitter), dtype=np.intp)


def _mean(values: npt.NDArray[np.bool_]) -> float:
    return float(values.mean()) if len(values) else math.nan
