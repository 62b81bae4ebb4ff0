"""The use case evaluate: compare labels with the truth. Nothing else reads target labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.images.loading import (
    MANIFEST_SUFFIXES,
    ImageColumns,
    header_of,
    is_image_data,
    read_image_truth,
)
from opensetda.data.names import reading, shown, twins
from opensetda.data.tables.loading import TableColumns, TruthTable, read_truth
from opensetda.errors import InputError
from opensetda.methods.base import OpenSetClassifier
from opensetda.metrics import open_set
from opensetda.metrics.intervals import (
    Interval,
    binomial_interval,
    intervals_to_dict,
    metric_intervals,
)
from opensetda.metrics.open_set import OpenSetMetrics
from opensetda.runs.folder import RunFolder, StepLabels
from opensetda.runs.integrity import CheckedTable
from opensetda.runs.options import ARRAY
from opensetda.runs.predictions import IMAGE_ID, PredictionTable, row_numbers
from opensetda.system.files import file_record, open_regular
from opensetda.usecases.predict_samples import Run, with_run
from opensetda.usecases.read_domains import GivenArrays, content_digest

Labels = npt.NDArray[Any]
Columns = Mapping[str, Any]

STEP_METRICS = ("all", "os", "os_star", "unk", "hos")
# Ten for each of the 15 bins: of fewer, the calibration errors are mostly chance.
_LABELS_TO_CALIBRATE = 150
_DRAWN = (
    "The intervals hold if the samples with a true label were drawn at random, not chosen as "
    "easy, hard or corrected ones."
)
# A file with these columns holds predictions: its column "label" is not the truth.
_PREDICTED = {"label", "p_unknown", "known_score", "nearest_class"}


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a run, or of later samples.

    `final` and `steps`, by number, are metrics of the predictions, and of the labels after each
    step, of samples whose truth is known; `truth` has the true label of each prediction, "" if it
    is not known. The nearest class of `n_nearest` samples is right. `notes` say what the truth
    lacks, and what does not match.
    """

    final: OpenSetMetrics
    steps: dict[int, OpenSetMetrics]
    truth: Labels
    n_nearest: int
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
            "notes": list(self.notes),
            "true_openness": self.true_openness,
            "final": final,
            "intervals": intervals_to_dict(self.intervals),
            "steps": steps,
        }


def evaluate(
    run: Run | PredictionTable,
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
    run : str, Path, RunFolder, FittedRun or PredictionTable
        The run; or labels of later samples: what `predict` returned, or, with `made_by`, its file.
    labels : str, Path or array of shape (n,)
        True labels: a table or images with classes, matched by id if the samples have ids, else by
        row; or one label per sample, in their order. An empty one (None, NaN) is not known.
    label_column, id_column : str, optional
        Columns of a table or manifest; by default as in `fit`.
    made_by : str, Path, RunFolder or FittedRun, optional
        The run that wrote a file of `predict`.
    """
    if isinstance(run, PredictionTable):
        return _compared(run, {}, labels, _columns({}, label_column), id_column)[0]
    if made_by is not None and isinstance(run, str | Path):
        return with_run(
            made_by, lambda model: _evaluate_file(Path(run), model, labels, label_column, id_column)
        )
    if isinstance(run, str | Path) and Path(run).is_file():
        raise InputError(f"{run}: not a run; for a file of 'osda predict' add --run RUN")
    return with_run(run, lambda folder: _evaluate_run(folder, labels, label_column, id_column))


def _columns(fitted: Columns, label_column: str | None) -> Columns:
    """Return the columns of the fit, with the column of labels that was named since."""
    return fitted if label_column is None else {**fitted, "label": label_column}


def _evaluate_file(
    path: Path, model: RunFolder, labels: Any, label_column: str | None, id_column: str | None
) -> Evaluation:
    """Evaluate a file that `predict` wrote with the model of a run."""
    table = _read_labels(path, model)
    columns = _columns(model.settings["columns"], label_column)
    return _compared(table, {}, labels, columns, id_column)[0]


def _evaluate_run(
    folder: RunFolder, labels: Any, label_column: str | None, id_column: str | None
) -> Evaluation:
    """Evaluate a run, and write the metrics into its folder."""
    columns = _columns(folder.settings["columns"], label_column)
    evaluation, truth = _compared(
        folder.predictions(),
        folder.steps(),
        labels,
        columns,
        id_column,
        has_ids=folder.settings["has_ids"],
    )
    if not isinstance(labels, str | Path):
        record = {"path": ARRAY, "sha256": content_digest(None, truth.labels)}
    elif truth.path.is_file():
        record = file_record(truth.path)
    else:
        record = {"path": str(truth.path.resolve())}
    write_evaluation(folder, evaluation, {**record, "rows": len(truth.labels)})
    return evaluation


def _compared(
    table: PredictionTable,
    steps: StepLabels,
    labels: Any,
    columns: Columns,
    id_column: str | None,
    has_ids: bool = False,
) -> tuple[Evaluation, TruthTable]:
    """Read the truth, match it to the predictions and score them."""
    truth = _true_labels(labels, table, columns, id_column, has_ids)
    found, notes = _matched(table, truth)
    evaluation = evaluate_labels(table, steps, found, table.unknown_label)
    return replace(evaluation, notes=(*notes, *evaluation.notes)), truth


def write_evaluation(folder: RunFolder, evaluation: Evaluation, truth: Mapping[str, Any]) -> None:
    """Write metrics.json into a run folder; `truth` is where the labels are from."""
    folder.write_metrics({"truth": truth, **evaluation.to_dict()}, evaluation.truth)


def evaluate_targets(classifier: OpenSetClassifier, truth: Labels) -> OpenSetMetrics:
    """Score the targets of `fit` against their true labels, in the order of their rows."""
    table = PredictionTable.of_targets(classifier, None)
    return evaluate_labels(table, {}, truth, table.unknown_label).final


def evaluate_labels(
    predictions: PredictionTable, steps: StepLabels, truth: Labels, unknown_label: str
) -> Evaluation:
    """Compare predictions, and the labels after each step, with true labels in their order."""
    classes = list(predictions.classes)
    there = truth != ""
    notes = []
    true = truth[there]
    nearest = predictions.nearest[there]
    proba = predictions.proba[there]
    can_calibrate = bool(there.all() or there.sum() >= _LABELS_TO_CALIBRATE)
    if not there.all():
        notes.append(_DRAWN)
        if not can_calibrate:
            notes.append(f"ECE and UNK ECE need {_LABELS_TO_CALIBRATE} true labels.")
    final = open_set.evaluate(
        true,
        predictions.labels[there],
        classes,
        unknown_label=unknown_label,
        known_score=predictions.known_scores[there],
        nearest_class=nearest,
        probabilities=proba if can_calibrate else None,
    )
    by_step = {
        step: open_set.evaluate(true, labels[there], classes, unknown_label=unknown_label)
        for step, labels in steps.items()
    }
    return Evaluation(final, by_step, truth, int((nearest == true).sum()), notes=tuple(notes))


def _read_labels(path: Path, run: RunFolder) -> PredictionTable:
    """Read a file of `predict`; classes and unknown label are those of the run."""
    with reading(path, "the labels"), open_regular(path) as stream:
        content = stream.read()
    table = CheckedTable(content, path, advice="write it again with 'osda predict'")
    classes = tuple(run.settings["classes"])
    found = PredictionTable.of_table(table)
    labels = {*found.labels.tolist(), *found.nearest.tolist()}
    if found.classes != classes or not labels <= {*classes, run.unknown_label}:
        problem = f"its classes are not those of {run.path}"
        raise InputError(f"{path}: {problem}; give the run that made it")
    return replace(found, unknown_label=run.unknown_label)


def _true_labels(
    labels: Any, table: PredictionTable, columns: Columns, id_column: str | None, has_ids: bool
) -> TruthTable:
    """Read true labels from a file or folder, or take those of an array."""
    if not isinstance(labels, str | Path):
        return read_truth(GivenArrays("labels", y=labels), partial=True)
    path = Path(labels)
    label = columns.get("label")
    is_table = path.suffix.lower() in MANIFEST_SUFFIXES and path.is_file()
    names = header_of(path) if is_table else ()
    if label in (None, "label") and {*names} >= _PREDICTED:
        problem = "its column 'label' holds predictions, not the truth"
        raise InputError(f"{path}: {problem}; name that of the true labels with --label-column")
    if table.id_name == IMAGE_ID:
        usual = columns.get("path")
        manifest = ImageColumns(id_column or (usual if usual in names else None), label)
        # Further columns, such as those of predictions.csv, are ignored.
        if is_image_data(path, manifest) or IMAGE_ID in names:
            return read_image_truth(path, manifest)
    has_ids = has_ids or table.ids.tolist() != row_numbers(len(table)).tolist()
    if id_column is None and has_ids:
        id_column = columns.get("id") or table.id_name
    return read_truth(path, TableColumns(label=label or "y", id=id_column), partial=True)


def _matched(table: PredictionTable, truth: TruthTable) -> tuple[Labels, tuple[str, ...]]:
    """Find the true label of each prediction, by id, else by row; "" where it is not known.

    Returns them, and notes about what does not match.
    """
    names = table.ids.tolist()
    known = table.classes
    others = []
    if truth.ids is None:
        if len(truth.labels) != len(names):
            counts = f"{len(truth.labels)} labels for {len(names)} predictions"
            advice = "give one per row (empty where not known), or name the ids with --id-column"
            raise InputError(f"{truth.path}: {counts}; {advice}")
        found = truth.labels
    else:
        pairs = zip(truth.ids.tolist(), truth.labels.tolist(), strict=True)
        of_name = {name: label for name, label in pairs if label}
        found = np.array([of_name.get(name, "") for name in names], dtype=np.str_)
        others = sorted(of_name.keys() - {*names})
    true_classes = {*np.unique(found).tolist()} - {""}
    if not true_classes:
        problem = f"none of its {len(others):,} ids (such as {shown(others[0])}) is a prediction's"
        advice = "write them as there, or name their column with --id-column"
        raise InputError(f"{truth.path}: {problem} (such as {shown(names[0])}); {advice}")
    if not true_classes & {*known} and true_classes != {table.unknown_label}:
        problem = f"none of its labels (such as {min(true_classes)!r}) is a known class"
        advice = f"spell them as in the source, or write {table.unknown_label!r}"
        raise InputError(f"{truth.path}: {problem} (such as {known[0]!r}); {advice}")
    n_found = int((found != "").sum())
    notes = []
    if n_found < len(found):
        example = shown(names[int((found == "").argmax())])
        line = f"True labels of {n_found:,} of {len(found):,} samples"
        notes.append(f"{line}; none of {example}, for example.")
    if others:
        line = f"True labels of other samples, ignored: {len(others):,}"
        notes.append(f"{line}, such as {shown(others[0])}.")
    return found, (*notes, *twins({*known, *true_classes}))
