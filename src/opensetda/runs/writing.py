"""Write a run folder: what was asked, with what, what came out, and the model."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from opensetda.data.images.lists import printable
from opensetda.errors import InputError
from opensetda.runs import folder as run_folder
from opensetda.runs.folder import RunFolder, StepLabels, read_settings
from opensetda.system.files import check_writable, is_partial, plain, write_json
from opensetda.system.memory import peak_megabytes

if TYPE_CHECKING:
    from torch import nn

    from opensetda.backbones.extraction import Broken
    from opensetda.base import OpenSetClassifier
    from opensetda.runs.corrections import Corrections
    from opensetda.runs.large import LabelledTargets
    from opensetda.runs.predictions import PredictionTable
    from opensetda.runs.view import RunView

_PACKAGES = (
    *("opensetda", "numpy", "scipy", "scikit-learn", "torch", "pyarrow", "safetensors", "timm"),
    *("pillow", "onnxruntime"),
)


@dataclass(frozen=True)
class RunRecord:
    """What ``settings.json`` and ``environment.json`` record of a run.

    Attributes
    ----------
    openness : float or "auto"
        As it was asked for; the share that was used is in ``estimates.json``.
    settings : mapping
        Every setting as it was used.
    inputs : mapping
        Source and target: path, rows, SHA-256.
    columns : mapping
        Names of the label and id columns and the like.
    has_ids : bool
        Whether the samples have names, or only row numbers.
    seconds, data_seconds : float
        How long `fit` took, and reading the data and extracting features.
    backbone : mapping or None
        The recipe of the features of images, and whether the backbone was ``finetuned``.
    identity : str or None
        Distinguishes the run from any other.
    sample : int or None
        How many of the targets were learned from, if not all.
    """

    method: str
    openness: float | str
    unknown_label: str
    preset: str
    settings: Mapping[str, Any]
    seed: int
    inputs: Mapping[str, Any]
    columns: Mapping[str, Any] = field(default_factory=dict)
    feature_names: tuple[str, ...] | None = None
    has_ids: bool = False
    command: tuple[str, ...] = ()
    seconds: float = 0.0
    data_seconds: float = 0.0
    backbone: Mapping[str, Any] | None = None
    identity: str | None = None
    sample: int | None = None


@dataclass(frozen=True)
class ShownSamples:
    """What the report shows: a sample of both domains, and image files.

    `source_images` are those of the view's sources by row, `target_images` those of all targets.
    """

    view: RunView
    source_images: Mapping[int, str] = field(default_factory=dict)
    target_images: Sequence[str] = ()


def check_destination(path: Path, overwrite: bool) -> None:
    """Raise an `InputError` if a run must not or cannot be written to `path`."""
    if path.exists():
        if not path.is_dir():
            raise InputError(f"{path}: a file is in the way; choose another --out")
        if not overwrite:
            raise InputError(f"{path}: exists already; choose another --out or add --overwrite")
        for name in (run_folder.REVIEW, run_folder.CORRECTIONS):
            if (path / name).exists():
                raise InputError(
                    f"{path}: holds {name!r}, decisions of a review, which are not overwritten; "
                    "move them away or choose another --out"
                )
        strangers = sorted(
            # Partial files of a killed report or review may go.
            {entry.name for entry in path.iterdir() if not is_partial(entry.name)}
            - set(run_folder.FILES)
        )
        if strangers:
            raise InputError(
                f"{path}: holds {strangers[0]!r}, which is no file of a run, so it is not "
                "overwritten; move it away or choose another --out"
            )
        if any(path.iterdir()):
            _check_is_run(path)
    check_writable(path)


def _check_is_run(path: Path) -> None:
    try:
        # A run of another release may be replaced, though it cannot be read.
        read_settings(path)
    except InputError as error:
        raise InputError(
            f"{path}: not a run folder that can be read, so it is not overwritten; "
            "remove it yourself or choose another --out"
        ) from error


def write_run(
    folder: Path,
    classifier: OpenSetClassifier,
    record: RunRecord,
    ids: npt.NDArray[Any] | None,
    curves: bytes,
    broken: Sequence[Broken] = (),
    backbone: nn.Module | None = None,
    shown: ShownSamples | None = None,
    corrections: Corrections | None = None,
    labelled: LabelledTargets | None = None,
) -> RunFolder:
    """Write every file of a run into an empty folder, one that `new_folder` gave.

    `broken` are images that were left out, `backbone` is a fine-tuned one, `shown` the samples
    for the report; `labelled` has the labels of all targets, where the classifier has seen only
    a sample of them.
    """
    from safetensors.numpy import save

    from opensetda.runs.pictures import write_images
    from opensetda.runs.predictions import class_names

    state, arrays = classifier.get_state()
    write_json(folder / run_folder.MODEL, {"feature_names": record.feature_names, "state": state})
    contiguous = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    # Not save_file: it makes files that only their owner may read.
    (folder / run_folder.WEIGHTS).write_bytes(save(contiguous))
    if backbone is not None:
        from safetensors.torch import save as save_tensors

        tensors = {name: value.cpu().contiguous() for name, value in backbone.state_dict().items()}
        (folder / run_folder.BACKBONE).write_bytes(save_tensors(tensors))
    if broken:
        write_broken(folder / run_folder.BROKEN, broken)
    write_json(folder / run_folder.ENVIRONMENT, environment(record))
    lines = [json.dumps(plain(entry), allow_nan=False) + "\n" for entry in classifier.history_]
    (folder / run_folder.HISTORY).write_text("".join(lines), encoding="utf-8")
    write_json(folder / run_folder.ESTIMATES, _estimates(classifier, state))
    if shown is not None:
        shown.view.write(folder / run_folder.VIEW)
        if shown.target_images:
            write_images(folder / run_folder.IMAGES, shown.source_images, shown.target_images)
    if labelled is not None:
        labelled.write(folder, step=max(len(classifier.history_), 1))
    else:
        _write_predictions(folder, classifier, record, ids, corrections)
    (folder / run_folder.CURVES).write_bytes(curves)
    settings = {
        "format": run_folder.FORMAT,
        "version": run_folder.VERSION,
        "method": record.method,
        "openness": record.openness,
        "unknown_label": record.unknown_label,
        "preset": record.preset,
        "seed": record.seed,
        "settings": dict(record.settings),
        "classes": list(class_names(classifier)),
        "has_ids": record.has_ids,
        "columns": dict(record.columns),
        "inputs": dict(record.inputs),
        "backbone": None if record.backbone is None else dict(record.backbone),
        "command": list(record.command),
        "identity": record.identity,
        "sample": record.sample,
    }
    # Last: a folder without it is not a run.
    write_json(folder / run_folder.SETTINGS, settings)
    return RunFolder(folder, settings)


def _write_predictions(
    folder: Path,
    classifier: OpenSetClassifier,
    record: RunRecord,
    ids: npt.NDArray[Any] | None,
    corrections: Corrections | None,
) -> None:
    from opensetda.runs.predictions import IMAGE_ID, PredictionTable

    id_name = "id" if record.backbone is None else IMAGE_ID
    predictions = PredictionTable.of_targets(classifier, ids, id_name)
    if corrections is not None:
        predictions = corrections.applied_to(predictions)
    predictions.write(folder / run_folder.PREDICTIONS)
    predictions.write(folder / run_folder.PREDICTIONS_FOR_PEOPLE)
    _write_steps(folder / run_folder.STEPS, predictions, step_labels(classifier))


def write_broken(path: Path, broken: Sequence[Broken]) -> None:
    """Write a CSV file that lists images and why they cannot be used."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "reason"])
        writer.writerows([printable(image.path), image.reason] for image in broken)


def _estimates(classifier: OpenSetClassifier, state: Mapping[str, Any]) -> dict[str, Any]:
    kept = classifier.kept_step_
    return {
        "openness": plain(classifier.openness_report_.to_dict()),
        "kept_step": None if kept is None else plain(kept.to_dict()),
        # As the model has them, with infinity as a word.
        "rejection": {
            "threshold": state["rejection_threshold"],
            "slope": state["rejection_slope"],
        },
    }


def step_labels(classifier: OpenSetClassifier) -> StepLabels:
    """Return the targets' labels after each step; only the last if the method keeps none."""
    indices = classifier.step_labels_
    if indices is None:
        return {max(len(classifier.history_), 1): classifier.transduction_.astype(np.str_)}
    names = np.array([*classifier.classes_.tolist(), classifier.unknown_label], dtype=np.str_)
    return {step: np.asarray(names[labels]) for step, labels in enumerate(indices, start=1)}


def environment(record: RunRecord) -> dict[str, Any]:
    """Return the machine and the versions a run was made with."""
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "packages": versions,
        "seed": record.seed,
        "data_seconds": round(record.data_seconds, 3),
        "fit_seconds": round(record.seconds, 3),
        "peak_megabytes": plain(round(peak_megabytes(), 1)),
    }


def _write_steps(path: Path, predictions: PredictionTable, steps: StepLabels) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    columns = {"id": pa.array(predictions.ids.tolist(), pa.string())}
    for step, labels in steps.items():
        column = pa.array(labels.tolist(), pa.string()).dictionary_encode()
        columns[f"{run_folder.STEP_PREFIX}{step}"] = column
    pyarrow.parquet.write_table(pa.table(columns), path)
