"""The use case evaluate: compare labels with the truth. Nothing else reads target labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.base import OpenSetClassifier
from opensetda.data.tables.loading import TruthTable
from opensetda.errors import InputError
from opensetda.metrics import open_set
from opensetda.metrics.intervals import (
    Interval,
    binomial_interval,
    intervals_to_dict,
    metric_intervals,
)
from opensetda.metrics.open_set import OpenSetMetrics
from opensetda.runs.fit_data import content_digest
from opensetda.runs.folder import RunFolder, StepLabels
from opensetda.runs.options import ARRAY
from opensetda.runs.predicting import Run, WrittenLabels, open_run
from opensetda.runs.predictions import PredictionTable
from opensetda.runs.true_labels import Labelled, align, read_label_file, true_labels
from opensetda.system.files import file_record

STEP_METRICS = ("all", "os", "os_star", "unk", "hos")
# Ten for each of the 15 bins: of fewer, the calibration errors are mostly chance.
_LABELS_TO_CALIBRATE = 150
_DRAWN = (
    "The intervals hold if the samples with a true label were drawn at random, not chosen as "
    "easy, hard or corrected ones."
)


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a run, or of later samples.

    Attributes
    ----------
    final, steps : OpenSetMetrics, and dict of them
        Metrics of the predictions, and of the labels after each step, by its number; of those
        samples whose truth is known.
    truth : array of str of shape (n,)
        The true label of each prediction, "" if it is not known.
    n_nearest : int
        Known samples whose nearest class is right.
    n_ignored : int
        True labels of samples that were not predicted.
    notes : tuple of str
        What the truth lacks, and what does not match, one line each.
    """

    final: OpenSetMetrics
    steps: dict[int, OpenSetMetrics]
    truth: npt.NDArray[Any]
    n_nearest: int
    n_ignored: int = 0
    notes: tuple[str, ...] = ()

    @property
    def n_labelled(self) -> int:
        """How many samples have a true label."""
        return int((self.truth != "").sum())

    @property
    def is_partial(self) -> bool:
        """Whether the truth of some samples is not known."""
        return self.n_labelled < len(self.truth)

    @property
    def true_openness(self) -> float:
        """The share of unknowns among the samples whose truth is known."""
        rows = self.final.per_class
        return sum(row.n for row in rows if row.kind == "unknown") / sum(row.n for row in rows)

    @cached_property
    def intervals(self) -> dict[str, Interval | None]:
        """The 95 % interval of each metric and of `true_openness`; None if there is none."""
        return metric_intervals(self.final, self.n_nearest)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``metrics.json`` holds."""
        steps = []
        for number, metrics in self.steps.items():
            values = metrics.to_dict()
            steps.append({"step": number, **{name: values[name] for name in STEP_METRICS}})
        final = self.final.to_dict()
        for row in final["per_class"]:
            ends = binomial_interval(row["correct"], row["n"]) if row["n"] else None
            row["interval"] = ends and list(ends)
        return {
            "samples": len(self.truth),
            "labelled": self.n_labelled,
            "ignored": self.n_ignored,
            "notes": list(self.notes),
            "true_openness": self.true_openness,
            "final": final,
            "intervals": intervals_to_dict(self.intervals),
            "steps": steps,
        }


def evaluate(
    run: Run | PredictionTable | WrittenLabels,
    labels: Any,
    *,
    label_column: str | None = None,
    id_column: str | None = None,
    made_by: Run | None = None,
) -> Evaluation:
    """Compare labels with the truth of all samples or of some.

    A label that is not a class of the source counts as unknown. The evaluation of a run is written
    into its folder: metrics.json.

    Parameters
    ----------
    run : str, Path, RunFolder, FittedRun, PredictionTable or WrittenLabels
        The run; or labels of later samples: a file of `predict`, or what it returned.
    labels : str, Path or array of shape (n,)
        True labels: a table or images with classes, matched by id if the samples have ids, else by
        row; or one label per sample, in their order. An empty one (None, NaN) is not known.
    label_column, id_column : str, optional
        Columns of a table or manifest; by default as in `fit`.
    made_by : str, Path, RunFolder or FittedRun, optional
        The run that labelled later samples; needed if their file names only the likeliest classes.
    """
    folder, labelled = _labelled(run, made_by)
    truth = true_labels(labelled, labels, label_column, id_column)
    evaluation = _evaluated(labelled, truth)
    if folder is not None:
        if isinstance(labels, str | Path):
            path = Path(labels)
            record = file_record(path) if path.is_file() else {"path": str(path.resolve())}
        else:
            record = {"path": ARRAY, "sha256": content_digest(None, truth.labels)}
        write_evaluation(folder, evaluation, {**record, "rows": len(truth.labels)})
    return evaluation


def _labelled(
    run: Run | PredictionTable | WrittenLabels, made_by: Run | None
) -> tuple[RunFolder | None, Labelled]:
    """Return what is to be evaluated, and its folder if it is a run."""
    if isinstance(run, PredictionTable):
        return None, Labelled.of_later(run)
    if isinstance(run, WrittenLabels):
        run = run.path
    if isinstance(run, str | Path):
        if made_by is not None and Path(run).is_dir():
            raise InputError(f"--run: {run} is a run itself; leave it out")
        if made_by is not None or Path(run).is_file():
            return None, read_label_file(Path(run), None if made_by is None else open_run(made_by))
    folder = open_run(run)
    return folder, Labelled.of_run(folder)


def write_evaluation(folder: RunFolder, evaluation: Evaluation, truth: Mapping[str, Any]) -> None:
    """Write metrics.json into a run folder; `truth` is where the labels are from."""
    folder.write_metrics({"truth": truth, **evaluation.to_dict()}, evaluation.truth)


def evaluate_run(run: RunFolder, truth: TruthTable) -> Evaluation:
    """Compare the predictions and every step of a run with true labels."""
    return _evaluated(Labelled.of_run(run), truth)


def _evaluated(labelled: Labelled, truth: TruthTable) -> Evaluation:
    found, n_ignored, notes = align(labelled, truth)
    predictions, steps = labelled.predictions, labelled.steps
    evaluation = evaluate_labels(predictions, steps, found, predictions.unknown_label)
    return replace(evaluation, n_ignored=n_ignored, notes=(*notes, *evaluation.notes))


def evaluate_targets(classifier: OpenSetClassifier, truth: npt.NDArray[Any]) -> OpenSetMetrics:
    """Score the targets of `fit` against their true labels, in the order of their rows."""
    return open_set.evaluate(
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
) -> Evaluation:
    """Compare predictions, and the labels after each step, with true labels in their order."""
    classes, there, notes = list(predictions.classes), truth != "", []
    proba: npt.NDArray[np.float64] | None = predictions.proba[there]
    if not there.all():
        notes.append(_DRAWN)
        if there.sum() < _LABELS_TO_CALIBRATE:
            proba = None
            notes.append(
                f"ECE and UNK ECE need {_LABELS_TO_CALIBRATE} true labels: of fewer, they are "
                "mostly chance."
            )
    true, nearest = truth[there], predictions.nearest[there]
    final = open_set.evaluate(
        true,
        predictions.labels[there],
        classes,
        unknown_label=unknown_label,
        known_score=predictions.known_scores[there],
        nearest_class=nearest,
        probabilities=None if proba is None else _whole(proba),
    )
    by_step = {
        step: open_set.evaluate(true, labels[there], classes, unknown_label=unknown_label)
        for step, labels in steps.items()
    }
    return Evaluation(final, by_step, truth, int((nearest == true).sum()), notes=tuple(notes))


def _whole(proba: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return probabilities that sum to 1: classes that a file leaves out share the rest."""
    listed = proba > 0
    listed[:, -1] = True
    left = np.maximum(1 - proba.sum(axis=1, keepdims=True), 0)
    return np.where(listed, proba, left / np.maximum((~listed).sum(axis=1, keepdims=True), 1))
