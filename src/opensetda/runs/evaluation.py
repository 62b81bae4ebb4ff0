"""Compare a run with the truth: the only place where target labels meet predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.base import OpenSetClassifier
from opensetda.data.tables.loading import TruthTable
from opensetda.errors import InputError
from opensetda.metrics.open_set import OpenSetMetrics, evaluate
from opensetda.runs.folder import RunFolder, StepLabels
from opensetda.runs.predictions import PredictionTable

STEP_METRICS = ("all", "os", "os_star", "unk", "hos")


@dataclass(frozen=True)
class Evaluation:
    """How good a run is.

    Attributes
    ----------
    final : OpenSetMetrics
        Metrics of the predictions.
    steps : dict of OpenSetMetrics
        Metrics of the labels after each step, by its number.
    truth : array of str of shape (n,)
        The true label of each prediction.
    n_ignored : int
        True labels of samples that the run does not have.
    """

    final: OpenSetMetrics
    steps: dict[int, OpenSetMetrics]
    truth: npt.NDArray[Any]
    n_ignored: int = 0

    @property
    def true_openness(self) -> float:
        """The share of the targets that are unknown."""
        rows = self.final.per_class
        return sum(row.n for row in rows if row.kind == "unknown") / sum(row.n for row in rows)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``metrics.json`` holds."""
        steps = {number: metrics.to_dict() for number, metrics in self.steps.items()}
        return {
            "true_openness": self.true_openness,
            "final": self.final.to_dict(),
            "steps": [
                {"step": number, **{name: values[name] for name in STEP_METRICS}}
                for number, values in steps.items()
            ],
        }


def evaluate_run(run: RunFolder, truth: TruthTable) -> Evaluation:
    """Compare the predictions and every step of a run with true labels."""
    predictions = run.predictions()
    labels, n_ignored = _align(run, predictions, truth)
    if not np.isin(labels, predictions.classes).any():
        raise InputError(
            f"{truth.path}: none of its labels (such as {str(labels[0])!r}) is a known class "
            f"(such as {predictions.classes[0]!r}); spell them as in the source"
        )
    return evaluate_labels(predictions, run.steps(), labels, run.unknown_label, n_ignored)


def evaluate_targets(classifier: OpenSetClassifier, truth: npt.NDArray[Any]) -> OpenSetMetrics:
    """Score the targets of `fit` against their true labels, in the order of their rows."""
    return evaluate(
        truth,
        classifier.transduction_,
        classifier.classes_,
        known_score=classifier.transduction_scores_,
        nearest_class=classifier.transduction_nearest_,
        probabilities=classifier.transduction_proba_,
    )


def evaluate_labels(
    predictions: PredictionTable,
    steps: StepLabels,
    truth: npt.NDArray[Any],
    unknown_label: str,
    n_ignored: int = 0,
) -> Evaluation:
    """Compare predictions, and the labels after each step, with true labels in their order."""
    classes = list(predictions.classes)
    final = evaluate(
        truth,
        predictions.labels,
        classes,
        unknown_label=unknown_label,
        known_score=predictions.known_scores,
        nearest_class=predictions.nearest,
        probabilities=predictions.proba,
    )
    by_step = {
        step: evaluate(truth, labels, classes, unknown_label=unknown_label)
        for step, labels in steps.items()
    }
    return Evaluation(final, by_step, truth, n_ignored)


def _align(
    run: RunFolder, predictions: PredictionTable, truth: TruthTable
) -> tuple[npt.NDArray[Any], int]:
    """Return the true label of each prediction, and how many true labels were left over."""
    if truth.ids is None:
        if len(truth.labels) != len(predictions):
            raise InputError(
                f"{truth.path}: {len(truth.labels)} labels for {len(predictions)} predictions; "
                "give one a target row, in the same order"
            )
        return truth.labels, 0
    place = {name: row for row, name in enumerate(truth.ids.tolist())}
    missing = [name for name in predictions.ids.tolist() if name not in place]
    if missing:
        raise InputError(
            f"{truth.path}: no label for {len(missing)} of {len(predictions)} samples of "
            f"{run.path}, the first is {missing[0]!r}; add them"
        )
    rows = [place[name] for name in predictions.ids.tolist()]
    return truth.labels[rows], len(truth.labels) - len(predictions)
