r"""The terms of the target error's upper bound, measured step by step (Theorems 1 and 2).

Luo et al., "Progressive Graph Learning for Open-Set Domain Adaptation", ICML 2020; Theorem 1
goes back to Fang et al., "Open Set Domain Adaptation: Theoretical Bound and Algorithm", 2019.
With :math:`\pi = \pi_{C+1}^t` the share of unknowns in the target and the 0-1 loss, which is
bounded, symmetric and satisfies the triangle inequality:

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

where the second part of :math:`\lambda` is :math:`(1 - \pi_\alpha) R_s(\tilde h)`. Where
:math:`\pi_\alpha = 1`, source risk and discrepancy have left the bound. The paper does not say
what `const` is; it is left out.

The risks of the targets are those of the labels of each step, for :math:`h_b`, too. Source risk,
discrepancy and :math:`\lambda` are those of the fitted method: its own classifier and, for the
last two, the features of ``transform``. Everything but the source risk needs true target labels:
this is evaluation, and never used in training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from opensetda.analyses.request import AnalysisRequest, AnalysisResult, Column, FittedTask
from opensetda.report.content import LinePanel, Series
from opensetda.report.plots import draw_lines
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


@dataclass(frozen=True)
class BoundTerms:
    r"""The terms after one step.

    `share` is :math:`\pi_{C+1}^t`, `labelled` :math:`\pi_\alpha`, the share of targets that have
    a pseudo-label; `target_risk` is :math:`R_t`, `source_risk` :math:`R_s(\tilde h)`;
    `discrepancy` half the proxy A-distance, in [0, 1]; `unknown_risk` is :math:`R_{t,C+1}`, the
    share of unknowns that are not rejected, NaN of none; the joint risks are the two parts of
    :math:`\lambda`, the errors of one classifier for both domains.
    """

    share: float
    labelled: float
    target_risk: float
    source_risk: float
    discrepancy: float
    unknown_risk: float
    joint_source_risk: float
    joint_target_risk: float

    @property
    def open_set_risk(self) -> float:
        r""":math:`\Delta_o = \pi / (1 - \pi) R_{t,C+1}`."""
        odds = self.share / (1 - self.share) if self.share < 1 else math.nan
        return 0.0 if math.isnan(self.unknown_risk) else odds * self.unknown_risk

    @property
    def progressive_risk(self) -> float:
        r""":math:`\tilde\Delta_o = \pi_\alpha \pi / (1 - \pi) R_{t,C+1}`."""
        return self.labelled * self.open_set_risk

    @property
    def shared_error(self) -> float:
        r""":math:`\lambda` of Theorem 1."""
        return self.joint_target_risk + self.joint_source_risk

    @property
    def target_error(self) -> float:
        r"""The left side: :math:`R_t / (1 - \pi)`."""
        return self.target_risk / (1 - self.share) if self.share < 1 else math.nan

    @property
    def bound(self) -> float:
        """The right side of Theorem 1 (Eq. 4)."""
        return self.source_risk + self.discrepancy + self.shared_error + self.open_set_risk

    @property
    def progressive_bound(self) -> float:
        """The right side of Theorem 2 (Eq. 7), without its constant."""
        rest = 1 - self.labelled
        shared = self.joint_target_risk + rest * self.joint_source_risk
        return rest * (self.source_risk + self.discrepancy) + shared + self.progressive_risk


def analyse(request: AnalysisRequest) -> AnalysisResult:
    """Fit a method, and measure the terms after every step."""
    request.check_features()
    fitted = request.fit()
    rows = [
        {"step": step, **{name: getattr(terms, name) for name in ("labelled", *TERMS, *SIDES)}}
        for step, terms in enumerate(measure_steps(fitted), start=1)
    ]
    lines = {}
    for name, (heading, color, marker, width) in (TERMS | SIDES).items():
        points = {row["step"]: row[name] for row in rows if row[name] == row[name]}
        lines[name] = Series(heading, points, color, marker, width)
    kinds = {"The terms": TERMS, "Both sides: the error and its bounds": SIDES}
    panels = [
        LinePanel(words, "step", "share", [lines[name] for name in kind])
        for words, kind in kinds.items()
    ]
    title = f"The error bound over the steps of {fitted.method}: {request.what}"
    columns = {"step": Column("step"), "labelled": Column("pseudo-labelled", 3)}
    columns |= {name: Column(look[0], 3) for name, look in (TERMS | SIDES).items()}
    return AnalysisResult(title, columns, rows, draw_lines(panels, title, columns=2), (_NOTE,))


def measure_steps(fitted: FittedTask) -> list[BoundTerms]:
    """Measure the risks (Eq. 1, Eq. 2) and the other terms after each step."""
    truth, labels, n_classes = fitted.truth, fitted.source_labels, fitted.n_classes
    known, steps = truth < n_classes, fitted.step_labels
    source, target = fitted.features()
    joint = joint_risks(source, labels, target[known], truth[known])
    discrepancy = proxy_a_distance(source, target[known]) / 2
    return [
        BoundTerms(
            share=_mean(~known),
            labelled=(entry["n_known"] + entry["n_unknown"]) / len(truth),
            target_risk=_mean(step != truth),
            source_risk=_mean(fitted.source_classes() != labels),
            discrepancy=discrepancy,
            unknown_risk=_mean(step[~known] != n_classes),
            joint_source_risk=joint[0],
            joint_target_risk=joint[1],
        )
        for step, entry in zip(steps, fitted.classifier.history_, strict=True)
    ]


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
