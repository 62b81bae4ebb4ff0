"""The use case evaluate: compare a run with true labels. Nothing else reads target labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.base import OpenSetClassifier
from opensetda.data.images.lists import ImageColumns
from opensetda.data.images.loading import is_image_data, read_image_truth
from opensetda.data.tables.loading import TableColumns, TruthTable, read_truth
from opensetda.errors import InputError
from opensetda.metrics import open_set
from opensetda.metrics.open_set import OpenSetMetrics
from opensetda.runs.curves import draw_curves
from opensetda.runs.fit_data import array_record, label_text
from opensetda.runs.folder import RunFolder, StepLabels
from opensetda.runs.predicting import Run, open_run
from opensetda.runs.predictions import PredictionTable
from opensetda.system.files import file_record

STEP_METRICS = ("all", "os", "os_star", "unk", "hos")


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a run.

    Attributes
    ----------
    final, steps : OpenSetMetrics, and dict of them
        Metrics of the predictions, and of the labels after each step, by its number.
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
        steps = []
        for number, metrics in self.steps.items():
            values = metrics.to_dict()
            steps.append({"step": number, **{name: values[name] for name in STEP_METRICS}})
        final = self.final.to_dict()
        return {"true_openness": self.true_openness, "final": final, "steps": steps}


def evaluate(
    run: Run, labels: Any, *, label_column: str | None = None, id_column: str | None = None
) -> Evaluation:
    """Compare a run with true labels, and write metrics.json and curves.png into its folder.

    A label that is not a class of the source counts as unknown.

    Parameters
    ----------
    run : str, Path, RunFolder or FittedRun
        The run.
    labels : str, Path or array of shape (n_t,)
        True labels of the targets: a table or images with classes, matched by id if the run
        has ids, else by row; or one label per target, in the order of the target.
    label_column, id_column : str, optional
        Columns of a table or manifest; by default as in `fit`.
    """
    folder = open_run(run)
    if id_column is not None and not folder.has_ids:
        raise InputError(
            f"--id-column {id_column}: {folder.path} has no ids, its rows are matched by number; "
            "fit with --id-column to have them"
        )
    record: dict[str, Any]
    if isinstance(labels, str | Path):
        path = Path(labels)
        truth = _read_truth(folder, path, label_column, id_column)
        record = file_record(path) if path.is_file() else {"path": str(path.resolve())}
        record["rows"] = len(truth.labels)
    else:
        text = label_text(labels, "labels", "write the true class, or the word for unknown")
        truth = TruthTable(text, None, Path("labels"))
        record = array_record(None, text)
        del record["classes"]
    evaluation = evaluate_run(folder, truth)
    title = f"{folder.settings['method']}: {folder.path.name}"
    write_evaluation(folder, evaluation, record, title)
    return evaluation


def write_evaluation(
    folder: RunFolder, evaluation: Evaluation, truth: Mapping[str, Any], title: str
) -> None:
    """Write metrics.json and curves.png into a run folder; `truth` is where the labels are from."""
    kept = folder.estimates()["kept_step"]
    curves = draw_curves(
        folder.history(),
        evaluation.steps,
        title,
        kept_step=None if kept is None else int(kept["step"]),
        true_share=evaluation.true_openness,
    )
    folder.write_metrics({"truth": truth, **evaluation.to_dict()}, curves, evaluation.truth)


def _read_truth(
    folder: RunFolder, labels: Path, label_column: str | None, id_column: str | None
) -> TruthTable:
    label = label_column or folder.column("label")
    # A manifest may have the usual names of columns, or those of the manifest of `fit`.
    for path in (id_column, folder.column("path")) if folder.has_images else ():
        columns = ImageColumns(path=path, label=label)
        if is_image_data(labels, columns):
            return read_image_truth(labels, columns)
    names = (id_column or folder.column("id")) if folder.has_ids else None
    return read_truth(labels, TableColumns(label=label or "y", id=names))


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
    n_ignored: int = 0,
) -> Evaluation:
    """Compare predictions, and the labels after each step, with true labels in their order."""
    classes = list(predictions.classes)
    final = open_set.evaluate(
        truth,
        predictions.labels,
        classes,
        unknown_label=unknown_label,
        known_score=predictions.known_scores,
        nearest_class=predictions.nearest,
        probabilities=predictions.proba,
    )
    by_step = {
        step: open_set.evaluate(truth, labels, classes, unknown_label=unknown_label)
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
                "give one per target row, in the same order"
            )
        return truth.labels, 0
    place, names = {name: row for row, name in enumerate(truth.ids)}, predictions.ids.tolist()
    missing = [name for name in names if name not in place]
    if missing:
        raise InputError(
            f"{truth.path}: no label for {len(missing)} of {len(predictions)} samples of "
            f"{run.path}, the first is {missing[0]!r}; add them"
        )
    rows = [place[name] for name in names]
    return truth.labels[rows], len(truth.labels) - len(predictions)
