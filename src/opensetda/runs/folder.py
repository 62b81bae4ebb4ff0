"""The run folder: its files, opened for reading, and whether a new run may take its place.

``docs/run-folder.md`` describes every file. A folder appears whole or not at
all, and nothing in it is ever unpickled: JSON, Parquet, CSV, safetensors. Every file that is read
is compared with its checksum first (`opensetda.runs.manifest`). `save` and `load` are for a
model alone.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import safetensors.numpy

from opensetda.backbones.recipe import Recipe
from opensetda.data.tables.preparation import ColumnPlan
from opensetda.errors import InputError
from opensetda.runs import schemas
from opensetda.runs.checked import CheckedTable, parse_json, parse_tensors, reading
from opensetda.runs.manifest import MANIFEST, Manifest
from opensetda.runs.manifest import SETTINGS as SETTINGS
from opensetda.runs.methods import method_class, method_name
from opensetda.runs.predictions import PredictionTable
from opensetda.runs.view import RunView
from opensetda.system.files import (
    check_writable,
    is_partial,
    json_bytes,
    new_folder,
    read_json,
    sweep,
    write_json,
)

if TYPE_CHECKING:
    from torch import Tensor

    from opensetda.base import OpenSetClassifier

FORMAT = "opensetda-run"
VERSION = 5

ENVIRONMENT = "environment.json"
HISTORY = "history.jsonl"
ESTIMATES = "estimates.json"
PREDICTIONS = "predictions.csv"
LARGE_PREDICTIONS = "predictions.parquet"
STEPS = "steps.parquet"
MODEL = "model.json"
WEIGHTS = "model.safetensors"
BACKBONE = "backbone.safetensors"
BROKEN = "broken.csv"
METRICS = "metrics.json"
COMPARISON = "comparison.json"
VIEW = "view.safetensors"
IMAGES = "images.parquet"
THUMBNAILS = "thumbnails.parquet"
MAP = "map.parquet"
TRUTH = "truth.parquet"
REPORT = "report.html"

# Manual work: not among the files below, which a new run may replace.
REVIEW = "review.jsonl"
CORRECTIONS = "corrections.csv"

FILES = (
    *(MANIFEST, SETTINGS, ENVIRONMENT, HISTORY, ESTIMATES, PREDICTIONS, LARGE_PREDICTIONS),
    *(STEPS, MODEL, WEIGHTS, BACKBONE, BROKEN, METRICS, COMPARISON, VIEW, IMAGES, THUMBNAILS),
    *(MAP, TRUTH, REPORT),
)

StepLabels = dict[int, npt.NDArray[Any]]

STEP_PREFIX = "step_"
# With more targets, the predictions are a Parquet file: text would take gigabytes.
MOST_ROWS_AS_TEXT = 1_000_000


class RunFolder:
    """A complete run, opened for reading; `open` checks the folder first."""

    def __init__(self, path: Path, manifest: Manifest, settings: schemas.Settings) -> None:
        self.path, self.manifest, self.settings = path, manifest, settings

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a run folder, or raise an `InputError` that says what is wrong with it."""
        path = Path(path)
        if not path.exists():
            raise InputError(f"{path}: no such run folder; make one with 'osda fit'")
        if not path.is_dir():
            raise InputError(f"{path}: a file, not a run folder; give the folder of 'osda fit'")
        if not (path / SETTINGS).exists():
            raise InputError(f"{path}: not a run folder (no {SETTINGS}); make one with 'osda fit'")
        version = _read_settings(path).get("version")
        if version != VERSION:
            problem = f"version {version!r} is not {VERSION}"
            raise InputError(f"{path / SETTINGS}: {problem}; fit again with this release")
        # What an evaluation or a report left behind that was killed.
        sweep(path)
        manifest = Manifest.read(path)
        content = manifest.content(SETTINGS)
        return cls(path, manifest, parse_json(content, schemas.Settings, path / SETTINGS))

    @property
    def unknown_label(self) -> str:
        """The label of unknowns."""
        return self.settings["unknown_label"]

    @property
    def has_ids(self) -> bool:
        """Whether the samples have names."""
        return self.settings["has_ids"]

    def column(self, name: str) -> Any:
        """Return the name that a column (``label``, ``id``, ``features``) had in `fit`."""
        return self.settings["columns"].get(name)

    def column_plan(self) -> ColumnPlan:
        """Return what `fit` did with the columns of its tables."""
        columns = self.settings["columns"]
        return ColumnPlan(
            columns.get("left_out", {}), columns.get("medians", {}), columns.get("categories", {})
        )

    @property
    def has_images(self) -> bool:
        """Whether the samples are images."""
        return self.settings["backbone"] is not None

    @property
    def is_finetuned(self) -> bool:
        """Whether the backbone was trained, too."""
        return bool((self.settings["backbone"] or {}).get("finetuned"))

    def recipe(self) -> Recipe:
        """Return the recipe of the features."""
        entries = dict(self.settings["backbone"] or {})
        entries.pop("finetuned", None)
        try:
            return Recipe.from_dict(entries)
        except InputError as error:
            raise InputError(f"{self.path / SETTINGS}: {error}; fit again") from error

    def backbone_state(self) -> dict[str, Tensor] | None:
        """Return the weights of a backbone that was fine-tuned; None if it was not."""
        if not self.is_finetuned:
            return None
        import torch

        found = parse_tensors(self.manifest.content(BACKBONE), self.path / BACKBONE)
        return {name: torch.from_numpy(values) for name, values in found.items()}

    def history(self) -> list[schemas.Step]:
        """Return one dict per step, with numbers that need no target label."""
        lines = self.manifest.content(HISTORY).splitlines()
        return [parse_json(line, schemas.Step, self.path / HISTORY) for line in lines]

    def estimates(self) -> schemas.Estimates:
        """Return what was estimated without labels: openness and rejection."""
        content = self.manifest.content(ESTIMATES)
        return parse_json(content, schemas.Estimates, self.path / ESTIMATES)

    def environment(self) -> schemas.Environment:
        """Return the machine and the versions that the run was made with."""
        content = self.manifest.content(ENVIRONMENT)
        return parse_json(content, schemas.Environment, self.path / ENVIRONMENT)

    def table(self, name: str, columns: Sequence[str] | None = None) -> CheckedTable:
        """Open a Parquet or CSV file of the run."""
        with self.manifest.open(name) as stream:
            return CheckedTable(stream, self.path / name, columns)

    def predictions(self) -> PredictionTable:
        """Return the labels of the targets, with scores and probabilities."""
        table = self.table(self._predictions_name())
        found = PredictionTable.of_table(table, self.settings["classes"])
        return replace(found, unknown_label=self.unknown_label)

    def _predictions_name(self) -> str:
        return LARGE_PREDICTIONS if self.manifest.has(LARGE_PREDICTIONS) else PREDICTIONS

    def labels(self) -> npt.NDArray[Any]:
        """Return the labels of the targets alone."""
        return self.table(self._predictions_name(), ["label"]).text("label")

    def steps(self) -> StepLabels:
        """Return the labels of the targets after each step that has been kept, by its number."""
        table = self.table(STEPS)
        with reading(self.path / STEPS):
            names = [name for name in table.names if name.startswith(STEP_PREFIX)]
            return {int(name.removeprefix(STEP_PREFIX)): table.text(name) for name in names}

    def view(self) -> RunView:
        """Return the samples that the report shows, with their embedding."""
        return RunView.parse(self.manifest.content(VIEW), self.path / VIEW)

    def truth(self) -> npt.NDArray[Any] | None:
        """Return the true labels of the targets, if the run was evaluated."""
        return self.table(TRUTH).text("label") if self.manifest.has(TRUTH) else None

    def model(self) -> OpenSetClassifier:
        """Return the fitted classifier, for later samples."""
        return _restored(self.manifest, self.settings["method"], self._saved_model()["state"])

    def feature_names(self) -> tuple[str, ...] | None:
        """Return the names of the features, if they have names."""
        names = self._saved_model()["feature_names"]
        return None if names is None else tuple(names)

    def _saved_model(self) -> schemas.Model:
        return parse_json(self.manifest.content(MODEL), schemas.Model, self.path / MODEL)

    def write_metrics(self, metrics: Mapping[str, Any], truth: npt.NDArray[Any]) -> None:
        """Write an evaluation into the folder; the true labels are kept for the report alone."""
        column = pa.array(truth.tolist(), pa.string()).dictionary_encode()
        truth_table = parquet_bytes(pa.table({"label": column}))
        self.manifest.replace({METRICS: json_bytes(metrics), TRUTH: truth_table})


def predictions_name(n_targets: int) -> str:
    """Return the name of the file of predictions."""
    return PREDICTIONS if n_targets <= MOST_ROWS_AS_TEXT else LARGE_PREDICTIONS


def parquet_bytes(table: Any, **options: Any) -> bytes:
    """Return a table as the content of a Parquet file."""
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, **options)
    return buffer.getvalue()


def _read_settings(path: Path) -> dict[str, Any]:
    """Read ``settings.json`` of a run of any release."""
    settings = read_json(path / SETTINGS)
    if not isinstance(settings, dict) or settings.get("format") != FORMAT:
        raise InputError(f"{path / SETTINGS}: not the settings of a run; fit again")
    return settings


def check_destination(path: Path, overwrite: bool) -> None:
    """Raise an `InputError` if a run must not or cannot be written to `path`."""
    if path.exists():
        if not path.is_dir():
            raise InputError(f"{path}: a file is in the way; choose another --out")
        if not overwrite:
            raise InputError(f"{path}: exists already; choose another --out or add --overwrite")
        names = {entry.name for entry in path.iterdir()}
        # Partial files of a killed report or review may go.
        strangers = [name for name in sorted(names - {*FILES}) if not is_partial(name)]
        if strangers:
            strangers.sort(key=lambda name: name != REVIEW)
            is_review = strangers[0] in (REVIEW, CORRECTIONS)
            what = "decisions of a review" if is_review else "which is no file of a run"
            raise InputError(
                f"{path}: holds {strangers[0]!r}, {what}, so it is not overwritten; "
                "move it away or choose another --out"
            )
        try:
            # A run of another release may be replaced, though it cannot be read.
            if names:
                _read_settings(path)
        except InputError as error:
            raise InputError(
                f"{path}: not a run folder that can be read, so it is not overwritten; "
                "remove it yourself or choose another --out"
            ) from error
    check_writable(path)


def save(classifier: OpenSetClassifier, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a fitted classifier into a folder, for `load`.

    What is kept is what `predict` needs; labels of the targets of `fit` and the history are not.
    `overwrite` replaces an earlier saved model.
    """
    place, method = Path(path), method_name(classifier)
    state, arrays = classifier.get_state()
    names = {MODEL, WEIGHTS, MANIFEST}
    is_saved = place.is_dir() and {entry.name for entry in place.iterdir()} == names
    if place.exists() and not (overwrite and is_saved):
        how = "add overwrite=True" if is_saved else "move it away"
        raise InputError(f"{place}: exists already; choose another path or {how}")
    check_writable(place)
    content = {"format": "opensetda-model", "version": 1, "method": method, "state": state}
    with new_folder(place) as aside:
        write_json(aside / MODEL, content)
        contiguous = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
        (aside / WEIGHTS).write_bytes(safetensors.numpy.save(contiguous))
        Manifest.of(aside).write()


def load(path: str | Path) -> OpenSetClassifier:
    """Return the classifier that `save` wrote, or that of a run folder; it predicts the same."""
    place = Path(path)
    if (place / SETTINGS).exists():
        return RunFolder.open(place).model()
    if not (place / MANIFEST).exists():
        raise InputError(f"{place}: not a saved model; make one with opensetda.save(clf, path)")
    manifest = Manifest.read(place)
    saved = parse_json(manifest.content(MODEL), schemas.SavedModel, place / MODEL, "save it again")
    return _restored(manifest, saved["method"], saved["state"])


def _restored(manifest: Manifest, method: str, state: Mapping[str, Any]) -> OpenSetClassifier:
    """Return a classifier from its state and the arrays that a manifest lists."""
    path = manifest.folder / MODEL
    arrays = parse_tensors(manifest.content(WEIGHTS), manifest.folder / WEIGHTS)
    cls = method_class(method)
    with reading(path):
        try:
            return cls.from_state(state, arrays)
        except InputError as error:
            raise InputError(f"{path}, with {WEIGHTS}: {error}") from error
