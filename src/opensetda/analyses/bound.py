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

where the second part of :math:`\lambda` is :math:`(1 - \pi_\alpha) R_s(\tilde h)`. At the last
step :math:`\pi_\alpha = 1`: source risk and discrepancy have left the bound, and
:math:`\tilde\Delta_o = \Delta_o`. The paper does not say what `const` is; it is left out.

Features are the node embeddings of the step, the classifier is the one that labels the targets.
Everything but the source risk and `a_distance_of_accepted` needs true target labels: this is
evaluation, and never used in training.
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

from opensetda.analyses.contract import (
    AnalysisRequest,
    AnalysisResult,
    Column,
    PGLRun,
    ResultTable,
    Spread,
    spreads_by_step,
)
from opensetda.analyses.observed import ObservedTraining, observe
from opensetda.pgl.pseudo_labels import UNLABELLED
from opensetda.report.plots import LinePanel, Series, draw_lines
from opensetda.rows import FloatArray, IntArray
from opensetda.runs.figure_style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY

TERMS = {
    "labelled": "pseudo-labelled",
    "target_error": "error",
    "source_risk": "source risk",
    "a_distance": "A-distance",
    "a_distance_of_accepted": "A-distance, accepted",
    "discrepancy": "discrepancy",
    "shared_error": "shared error",
    "open_set_risk": "open-set risk",
    "progressive_open_set_risk": "progressive",
    "bound": "Theorem 1",
    "progressive_bound": "Theorem 2",
}
_DETAILS = ("labelled", "a_distance", "a_distance_of_accepted")
_NOTES = (
    "With π the true share of unknowns and p the share of targets that have a pseudo-label "
    "(pseudo-labelled): error = R_t / (1 - π), the left side of both theorems. "
    "Theorem 1 = source risk + discrepancy + shared error + open-set risk. "
    "Theorem 2 = (1 - p) (source risk + discrepancy) + shared error, its source part times "
    "1 - p, + progressive open-set risk; its constant, which the paper does not give, is left out, "
    "so the error may lie above it.",
    "Risks are shares of wrong labels (0-1 loss). The discrepancy is half the proxy A-distance "
    "2 (1 - 2 e) of the source and the true known targets, e the error of a logistic regression "
    "that tells the domains apart by the step's node embeddings; 'accepted' has the targets "
    "that the step calls known instead, which needs no label. The shared error is that of one "
    "logistic regression for both domains, with true labels.",
)
_FOLDS = 5


@dataclass(frozen=True)
class BoundTerms:
    r"""The terms after one step.

    Attributes
    ----------
    share, labelled : float
        :math:`\pi_{C+1}^t`, the true share of unknowns, and :math:`\pi_\alpha`, the share of
        targets that have a pseudo-label.
    target_risk, source_risk : float
        :math:`R_t`, the error over all targets, and :math:`R_s(\tilde h)`, over the source.
    a_distance, a_distance_of_accepted : float
        Proxy A-distance, in [0, 2], of the source and the true known targets, or the targets
        that the step labels known, which needs no true labels.
    unknown_risk, pseudo_unknown_risk : float
        :math:`R_{t,C+1}(h)`, unknowns that are not rejected, and :math:`R_{t,C+1}(h_b)`: of the
        unknowns that have a pseudo-label, those that got a known class; NaN of none.
    joint_source_risk, joint_target_risk : float
        Errors of one classifier for both domains, on the source and on the true known
        targets: the two parts of :math:`\lambda`.
    """

    share: float
    labelled: float
    target_risk: float
    source_risk: float
    a_distance: float
    a_distance_of_accepted: float
    unknown_risk: float
    pseudo_unknown_risk: float
    joint_source_risk: float
    joint_target_risk: float

    @property
    def discrepancy(self) -> float:
        """Half the proxy A-distance: the largest difference of two shares lies in [0, 1]."""
        return self.a_distance / 2

    @property
    def open_set_risk(self) -> float:
        r""":math:`\Delta_o = \pi / (1 - \pi) R_{t,C+1}(h)`."""
        return _weighted(_ratio(self.share, 1 - self.share), self.unknown_risk)

    @property
    def progressive_open_set_risk(self) -> float:
        r""":math:`\tilde\Delta_o = \pi_\alpha \pi / (1 - \pi) R_{t,C+1}(h_b)`."""
        odds = _ratio(self.share, 1 - self.share)
        return _weighted(self.labelled * odds, self.pseudo_unknown_risk)

    @property
    def shared_error(self) -> float:
        r""":math:`\lambda` of Theorem 1."""
        return self.joint_target_risk + self.joint_source_risk

    @property
    def target_error(self) -> float:
        r"""The left side: :math:`R_t / (1 - \pi)`."""
        return _ratio(self.target_risk, 1 - self.share)

    @property
    def bound(self) -> float:
        """The right side of Theorem 1 (Eq. 4)."""
        return self.source_risk + self.discrepancy + self.shared_error + self.open_set_risk

    @property
    def progressive_bound(self) -> float:
        """The right side of Theorem 2 (Eq. 7), without its constant."""
        rest = 1 - self.labelled
        shared = self.joint_target_risk + rest * self.joint_source_risk
        leaving = rest * (self.source_risk + self.discrepancy)
        return leaving + shared + self.progressive_open_set_risk


def analyse(request: AnalysisRequest) -> AnalysisResult:
    """Run PGL on every task and seed, and measure the terms after every step."""
    runs = request.pgl_runs()
    measured = request.run_each(terms_of_run, runs)
    table = ResultTable(
        f"Terms of the error bound over the steps: PGL, {request.preset}, on {request.what()}",
        [
            *(Column("task", "task"), Column("step", "step")),
            *(Column(name, TERMS[name], "number", name in _DETAILS) for name in TERMS),
            Column("kept", "kept in"),
        ],
        notes=list(_NOTES),
    )
    for task in request.tasks.tasks:
        own = [found for run, found in zip(runs, measured, strict=True) if run.task == task]
        for step, values in spreads_by_step([terms for _, terms in own], TERMS).items():
            kept = sum(number == step for number, _ in own)
            said = f"{kept} of {len(own)}" if kept else ""
            table.add(marked=kept > 0, task=task, step=step, kept=said, **values)
    everywhere = spreads_by_step([terms for _, terms in measured], TERMS)
    title = f"The error bound over the steps: {request.what()}"
    return AnalysisResult(table, draw_lines(_panels(everywhere), title, columns=2))


def terms_of_run(run: PGLRun) -> tuple[int, list[dict[str, float]]]:
    """Train, and measure all steps; returns the step kept and the terms of each."""
    training = observe(run, run.tasks.load(run.task))
    measured = measure_steps(training)
    return training.kept_step, [{name: getattr(t, name) for name in TERMS} for t in measured]


def measure_steps(training: ObservedTraining) -> list[BoundTerms]:
    """Measure the terms after each step of a training."""
    measured = []
    for step in training.steps():
        embedded = training.embed(step)
        source = embedded.source, training.source_labels, embedded.source_classes
        truth, n_classes = training.target_truth, training.n_classes
        labels = step.labels, step.pseudo_labels
        measured.append(bound_terms(*source, embedded.target, truth, *labels, n_classes))
    return measured


def _panels(rows: dict[float, dict[str, Spread]]) -> list[LinePanel]:
    def line(term: str, color: str, marker: str, width: float = 1.6) -> Series:
        means = {float(step): row[term].mean for step, row in rows.items() if row[term].n}
        return Series(TERMS[term], means, color, marker, width)

    terms = [
        line("source_risk", BLUE, "o"),
        line("discrepancy", PURPLE, "D"),
        line("shared_error", GREEN, "s"),
        line("open_set_risk", ORANGE, "^"),
        line("progressive_open_set_risk", SKY, "v", 2.4),
    ]
    sides = [
        line("bound", ORANGE, "^"),
        line("progressive_bound", SKY, "v"),
        line("target_error", BLACK, "o", 2.4),
    ]
    return [
        LinePanel("The terms", "step", "share", terms),
        LinePanel("Both sides: the error and its bounds", "step", "share", sides),
    ]


# The terms ----------------------------------------------------------------------------------


def bound_terms(
    source: FloatArray,
    source_labels: IntArray,
    source_classes: IntArray,
    target: FloatArray,
    target_truth: IntArray,
    labels: IntArray,
    pseudo_labels: IntArray,
    n_classes: int,
) -> BoundTerms:
    """Measure the risks (Eq. 1, Eq. 2) and the other terms on the features and labels of a step.

    Shapes: source (n_s, h), its true and its predicted classes (n_s,); target (n_t, h), its true
    classes, its labels and its pseudo-labels h_b (n_t,). C is unknown, -1 no pseudo-label.
    """
    known, accepted = target_truth < n_classes, labels < n_classes
    known_targets = target[known], target_truth[known]
    joint_source, joint_target = joint_risks(source, source_labels, *known_targets)
    return BoundTerms(
        share=_mean(~known),
        labelled=_mean(pseudo_labels != UNLABELLED),
        target_risk=_mean(labels != target_truth),
        source_risk=_mean(source_classes != source_labels),
        a_distance=proxy_a_distance(source, target[known]),
        a_distance_of_accepted=proxy_a_distance(source, target[accepted]),
        unknown_risk=_mean(accepted[~known]),
        pseudo_unknown_risk=unknown_risk_of(pseudo_labels, target_truth, n_classes),
        joint_source_risk=joint_source,
        joint_target_risk=joint_target,
    )


def unknown_risk_of(pseudo_labels: IntArray, target_truth: IntArray, n_classes: int) -> float:
    """R_{t,C+1}(h_b): of the unknowns with a pseudo-label, the share that got a known class."""
    concerned = (target_truth == n_classes) & (pseudo_labels != UNLABELLED)
    return _mean(pseudo_labels[concerned] != n_classes)


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


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _weighted(weight: float, risk: float) -> float:
    """Weigh a risk; without any sample it is 0."""
    return 0.0 if weight == 0 or math.isnan(risk) else weight * risk
