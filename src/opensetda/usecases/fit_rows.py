"""Fit a method to rows of two domains, label targets beyond memory, and write the run folder.

Of targets beyond memory a random sample is learned from, drawn by the content of the rows, so
their order has no effect. Every target is then scored as later samples are. The threshold is
where the share of unknowns, estimated on the sample, cuts the sorted scores of all targets.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from opensetda import __version__
from opensetda.context import FitContext
from opensetda.labels import encode_classes
from opensetda.methods.base import OpenSetClassifier
from opensetda.progress import CountingProgress
from opensetda.rows import (
    Domains,
    IntArray,
    Rows,
    check_finite,
    content_keys,
    moderated,
    row_chunks,
)
from opensetda.runs import folder as files
from opensetda.runs.integrity import Manifest
from opensetda.runs.options import SAMPLE, SMALLEST_SAMPLE
from opensetda.runs.predictions import IMAGE_ID, PredictionTable, PredictionWriter, row_numbers
from opensetda.runs.sample_map import RunView
from opensetda.share.confidence import right_range
from opensetda.share.decision import rejection_cut
from opensetda.share.report import OpennessReport
from opensetda.system.files import in_shell, plain, write_json
from opensetda.system.memory import peak_megabytes
from opensetda.system.sizes import FitSize
from opensetda.usecases.corrections import Corrections

_PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "pyarrow", "timm", "pillow")
# Largest size of the table of probabilities of a sample: with many classes it is smaller.
SAMPLE_CELLS = 2**25
# Numbers of features, or of probabilities, that are in memory at a time; rows at most.
CHUNK_CELLS = 2**22
CHUNK_ROWS = 2**13


@dataclass(frozen=True)
class FittedMethod:
    """A method that was fitted to two domains, and what a run keeps of that."""

    classifier: OpenSetClassifier
    report: OpennessReport
    history: list[dict[str, Any]]
    """One entry per step."""
    step_labels: IntArray | None
    """The labels of all targets after each step, if the method keeps them."""
    seconds: float

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know about the labels."""
        return self.report.warnings

    def naming(self, run: Path) -> FittedMethod:
        """Return the same with warnings that name the run, so that commands can be pasted."""
        command = f"osda review {in_shell(run)}"
        lines = (line.replace("osda review RUN", command) for line in self.report.warnings)
        return replace(self, report=replace(self.report, warnings=tuple(lines)))


def read_rows_of(
    source: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    target: npt.NDArray[Any],
    unknown_label: str = "unknown",
    sample: IntArray | None = None,
    corrections: Corrections | None = None,
) -> Domains:
    """Read rows of both domains into memory, as a value that methods are fitted to.

    Both may be memory maps, of any type of number; `sample` are the target rows to read, ascending
    and with those of all corrections, None for all.
    """
    chosen = np.arange(len(target)) if sample is None else sample
    classes, y = encode_classes(np.asarray(labels), unknown_label)
    FitSize(len(source), len(chosen), source.shape[1], len(classes)).check()
    X = np.empty((len(source) + len(chosen), source.shape[1]), dtype=np.float32)
    for part, chunk in Rows(source, np.arange(len(source))).chunks():
        X[part] = chunk
    of_target = X[len(source) :]
    for part, chunk in Rows(target, chosen).chunks():
        of_target[part] = chunk
    low, high = check_finite(X)
    rows = moderated(X, low, high)
    marks = None
    if corrections is not None:
        said = corrections.marks(classes)
        marks = said._replace(rows=len(source) + np.searchsorted(chosen, said.rows))
    return Domains.of(
        source=Rows(rows, np.arange(len(source))),
        y=y,
        target=Rows(rows, np.arange(len(source), len(X))),
        classes=classes,
        marks=marks,
    )


def fit_method(
    method: OpenSetClassifier, domains: Domains, context: FitContext | None = None, seed: int = 0
) -> FittedMethod:
    """Fit a method to two domains.

    With images in the context, their backbone is trained: by the method itself, or in rounds (from
    `seed`), which it labels the targets for. `method` stays as it is if there are rounds.
    """
    context = context or FitContext()
    started = time.perf_counter()
    if context.images is None or method.trains_backbone:
        fitted = method.fit_domains(domains, context)
        return FittedMethod(
            classifier=fitted,
            report=fitted.openness_report_,
            history=fitted.history_,
            step_labels=fitted.step_labels_,
            seconds=time.perf_counter() - started,
        )
    from opensetda.training.rounds import UNDONE, fit_in_rounds

    rounds = fit_in_rounds(method, domains, context, seed)
    report = rounds.classifier.openness_report_
    if rounds.was_undone:
        report = replace(report, warnings=(*report.warnings, UNDONE))
    return FittedMethod(
        classifier=rounds.classifier,
        report=report,
        history=rounds.history,
        step_labels=rounds.step_labels,
        seconds=time.perf_counter() - started,
    )


def sample_size(n_classes: int, wanted: int = SAMPLE) -> int:
    """Return the largest number of targets to learn from."""
    return min(wanted, max(SMALLEST_SAMPLE, SAMPLE_CELLS // n_classes))


def draw_sample(X: npt.NDArray[Any], size: int) -> IntArray:
    """Return the rows, ascending, whose content has the smallest hashes.

    Content that occurs several times gets its share, by largest remainders.
    """
    chunk = max(1, min(CHUNK_ROWS, CHUNK_CELLS // X.shape[1]))
    keys = np.concatenate([content_keys(rows) for _, rows in row_chunks(X, chunk)])
    rows = np.flatnonzero(keys <= np.unique(keys)[:size][-1])
    _, content, counts = np.unique(keys[rows], return_inverse=True, return_counts=True)
    exact = counts * (min(size, len(rows)) / len(rows))
    wanted = np.minimum(np.floor(exact).astype(np.intp), counts)
    left = min(size, len(rows)) - int(wanted.sum())
    wanted[np.argsort(wanted - exact, kind="stable")[:left]] += 1
    by_content = np.argsort(content, kind="stable")
    earlier_twins = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(rows[by_content[earlier_twins < np.repeat(wanted, counts)]])


def label_targets(
    classifier: OpenSetClassifier,
    X: npt.NDArray[Any],
    ids: Any | None,
    id_name: str,
    folder: Path,
    progress: CountingProgress = lambda done, total: None,
) -> tuple[OpenSetClassifier, Counter[str]]:
    """Write the predictions of all targets to a folder, and return how many got each label.

    Where a threshold follows from the share of unknowns, each target is scored twice: for the
    threshold, which the classifier that is returned has, and for its label; after the first time it
    is half done.
    """
    n_classes = len(classifier.classes_)
    size = max(1, min(CHUNK_ROWS, CHUNK_CELLS // max(X.shape[1], n_classes)))
    passes = 1
    if classifier.cuts_by_share_:
        passes = 2
        known = np.empty(len(X))
        for start, chunk in row_chunks(X, size):
            known[start : start + len(chunk)] = classifier.open_set_scores(chunk).known
            progress((start + len(chunk)) // 2, len(X))
        share = classifier.rejected_share(classifier.openness_)
        classifier = classifier.rejecting_at(rejection_cut(known, share))
    counts: Counter[str] = Counter()
    step = f"{files.STEP_PREFIX}{max(len(classifier.history_), 1)}"
    name = files.predictions_name(len(X))
    with PredictionWriter(folder / name) as full, PredictionWriter(folder / files.STEPS) as steps:
        for start, chunk in row_chunks(X, size):
            part = slice(start, start + len(chunk))
            own = row_numbers(part.stop, start) if ids is None else np.asarray(ids[part])
            table = PredictionTable.of_samples(classifier, chunk, own, id_name)
            counts.update(table.labels.tolist())
            rows = table.to_arrow()
            full.write(rows)
            steps.write(rows.select([id_name, "label"]).rename_columns(["id", step]))
            progress(len(X) - (len(X) - part.stop) // passes, len(X))
    return classifier, counts


def write_run(
    folder: Path,
    fitted: FittedMethod,
    record: Mapping[str, Any],
    ids: npt.NDArray[Any] | None,
    view: RunView | None = None,
    data_seconds: float = 0.0,
    feature_names: tuple[str, ...] | None = None,
    corrections: Corrections | None = None,
) -> files.RunFolder:
    """Write the files of a run into a folder that `new_folder` gave; what is there belongs to it.

    `record` has entries of ``settings.json``; reading the data took `data_seconds`. Labels that are
    there already are kept: the classifier has seen only a sample of the targets.
    """
    classifier = fitted.classifier
    state = files.write_model(folder, classifier, record["method"], feature_names)
    write_json(folder / files.ENVIRONMENT, environment(data_seconds, fitted.seconds))
    lines = [json.dumps(plain(entry), allow_nan=False) + "\n" for entry in fitted.history]
    (folder / files.HISTORY).write_text("".join(lines), encoding="utf-8")
    estimates = {
        "openness": plain(fitted.report.to_dict()),
        # As the model has them, with infinity as a word; a committee has none.
        "rejection": state["rejection"],
        "right": None,
        "alarms": getattr(classifier, "alarms_", []),
        "separation": getattr(classifier, "separation_", None),
        "marks": getattr(classifier, "marked_", None),
    }
    if estimates["separation"] is not None:
        estimates["right"] = right_range(classifier.transduction_confidence_)
    write_json(folder / files.ESTIMATES, estimates)
    if view is not None:
        view.write(folder / files.VIEW)
    if not (folder / files.STEPS).exists():
        id_name = "id" if record.get("backbone") is None else IMAGE_ID
        predictions = PredictionTable.of_targets(classifier, ids, id_name)
        if corrections is not None:
            predictions = corrections.applied_to(predictions)
        predictions.write(folder / files.predictions_name(len(predictions)))
        _write_steps(folder / files.STEPS, predictions, fitted)
    settings: dict[str, Any] = dict.fromkeys(files.Settings.__annotations__)
    settings["format"] = files.FORMAT
    settings["version"] = files.VERSION
    settings["columns"] = {}
    settings["has_ids"] = ids is not None
    settings.update(record)
    settings["scaling"] = classifier.scaler_.name
    settings["classes"] = [str(name) for name in classifier.classes_]
    write_json(folder / files.SETTINGS, settings)
    # Last: a folder without it is not a run.
    Manifest.of(folder).write()
    return files.RunFolder.open(folder)


def environment(data_seconds: float, fit_seconds: float) -> dict[str, Any]:
    """Return the machine and the versions a run was made with."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "packages": {"opensetda": __version__, **{p: metadata.version(p) for p in _PACKAGES}},
        "data_seconds": round(data_seconds, 3),
        "fit_seconds": round(fit_seconds, 3),
        "peak_megabytes": plain(round(peak_megabytes(), 1)),
    }


def _write_steps(path: Path, predictions: PredictionTable, fitted: FittedMethod) -> None:
    """Write the targets' labels after each step; only the last if the method keeps none."""
    classifier = fitted.classifier
    steps = {max(len(fitted.history), 1): classifier.transduction_}
    if fitted.step_labels is not None:
        decoded = [classifier.decode_labels(labels) for labels in fitted.step_labels]
        steps = dict(enumerate(decoded, start=1))
    columns = {"id": pa.array(predictions.ids.tolist(), pa.string())}
    for step, labels in steps.items():
        column = pa.array(map(str, labels.tolist()), pa.string()).dictionary_encode()
        columns[f"{files.STEP_PREFIX}{step}"] = column
    pyarrow.parquet.write_table(pa.table(columns), path)
