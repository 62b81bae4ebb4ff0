"""The run folder: its files, opened for reading, and whether a new run may take its place.

``docs/run-folder.md`` describes every file. A folder appears whole or not at
all, and nothing in it is ever unpickled: JSON, Parquet, safetensors. Every file that is read
is compared with its checksum first (`opensetda.runs.manifest`), then with what it should hold.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from opensetda.backbones.recipe import Recipe
from opensetda.data.tables.preparation import ColumnPlan
from opensetda.errors import InputError
from opensetda.runs import schemas
from opensetda.runs.checked import CheckedTable, damaged, parse_json, parse_tensors, reading
from opensetda.runs.manifest import MANIFEST, Manifest
from opensetda.runs.manifest import SETTINGS as SETTINGS
from opensetda.runs.methods import method_class
from opensetda.runs.predictions import PredictionTable
from opensetda.runs.view import RunView
from opensetda.system.files import check_writable, is_partial, json_bytes, read_json, sweep

if TYPE_CHECKING:
    from torch import Tensor

    from opensetda.base import OpenSetClassifier

FORMAT = "opensetda-run"
VERSION = 4

ENVIRONMENT = "environment.json"
HISTORY = "history.jsonl"
ESTIMATES = "estimates.json"
PREDICTIONS = "predictions.parquet"
PREDICTIONS_FOR_PEOPLE = "predictions.csv"
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
    *(
        MANIFEST,
        SETTINGS,
        ENVIRONMENT,
        HISTORY,
        ESTIMATES,
        PREDICTIONS,
        PREDICTIONS_FOR_PEOPLE,
        STEPS,
    ),
    *(MODEL, WEIGHTS, BACKBONE, BROKEN, METRICS, COMPARISON, VIEW, IMAGES, THUMBNAILS),
    *(MAP, TRUTH, REPORT),
)

StepLabels = dict[int, npt.NDArray[Any]]

STEP_PREFIX = "step_"
_ROUNDING = 1e-3


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
            raise InputError(
                f"{path / SETTINGS}: version {version!r} is not {VERSION}; "
                "fit again with this release"
            )
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
        """Open a Parquet file of the run."""
        with self.manifest.open(name) as stream:
            return CheckedTable(stream, self.path / name, columns)

    def predictions(self) -> PredictionTable:
        """Return the labels of the targets, with scores and probabilities."""
        table, classes = self.table(PREDICTIONS), self.settings["classes"]
        found = PredictionTable.of_table(table, classes)
        self._check_labels(PREDICTIONS, found.labels, found.nearest)
        if found.classes != tuple(classes):
            raise damaged(self.path / PREDICTIONS, f"its classes are not those of {SETTINGS}")
        totals = found.proba.sum(axis=1)
        # Of many classes only the likeliest are there.
        least = 0 if "top_1" in table.names else 1
        if (totals > 1 + _ROUNDING).any() or (totals < least - _ROUNDING).any():
            raise damaged(self.path / PREDICTIONS, "probabilities do not add up to 1")
        return replace(found, unknown_label=self.unknown_label)

    def _check_labels(self, name: str, *columns: npt.NDArray[Any]) -> None:
        known = {*self.settings["classes"], self.unknown_label}
        for labels in columns:
            if strange := set(np.unique(labels).tolist()) - known:
                problem = f"the label {min(strange)!r} is no class of {SETTINGS}"
                raise damaged(self.path / name, problem)

    def labels(self) -> npt.NDArray[Any]:
        """Return the labels of the targets alone."""
        return self.table(PREDICTIONS, ["label"]).text("label")

    @cached_property
    def _n_targets(self) -> int:
        return len(self.labels())

    def steps(self) -> StepLabels:
        """Return the labels of the targets after each step that has been kept, by its number."""
        table = self._table_of_targets(STEPS)
        with reading(self.path / STEPS):
            names = {
                int(name.removeprefix(STEP_PREFIX)): name
                for name in table.names
                if name.startswith(STEP_PREFIX)
            }
        found = {number: table.text(name) for number, name in names.items()}
        self._check_labels(STEPS, *found.values())
        return found

    def view(self) -> RunView:
        """Return the samples that the report shows, with their embedding."""
        view = RunView.parse(self.manifest.content(VIEW), self.path / VIEW)
        with reading(self.path / VIEW):
            view.check(self._n_targets, len(self.settings["classes"]))
        return view

    def truth(self) -> npt.NDArray[Any] | None:
        """Return the true labels of the targets, if the run was evaluated."""
        if not self.manifest.has(TRUTH):
            return None
        return self._table_of_targets(TRUTH).text("label")

    def _table_of_targets(self, name: str) -> CheckedTable:
        table = self.table(name)
        if len(table) != self._n_targets:
            raise damaged(self.path / name, f"{len(table)} rows for {self._n_targets} targets")
        return table

    def model(self) -> OpenSetClassifier:
        """Return the fitted classifier, for later samples."""
        return restored(self.manifest, self.settings["method"], self._saved_model()["state"])

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


def restored(manifest: Manifest, method: str, state: Mapping[str, Any]) -> OpenSetClassifier:
    """Return a classifier from its state and the arrays that a manifest lists."""
    path = manifest.folder / MODEL
    arrays = parse_tensors(manifest.content(WEIGHTS), manifest.folder / WEIGHTS)
    cls = method_class(method)
    with reading(path):
        try:
            classifier = cls.from_state(state, arrays)
        except InputError as error:
            raise InputError(f"{path}, with {WEIGHTS}: {error}") from error
        # Arrays that do not fit together are found here, and not by the first sample.
        with warnings.catch_warnings():
            # These columns have no names.
            warnings.simplefilter("ignore", UserWarning)
            classifier.predict_proba(np.zeros((1, classifier.n_features_in_), dtype=np.float32))
        return classifier


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
        for name in (REVIEW, CORRECTIONS):
            if (path / name).exists():
                raise InputError(
                    f"{path}: holds {name!r}, decisions of a review, which are not overwritten; "
                    "move them away or choose another --out"
                )
        names = {entry.name for entry in path.iterdir()}
        # Partial files of a killed report or review may go.
        strangers = sorted(name for name in names - set(FILES) if not is_partial(name))
        if strangers:
            raise InputError(
                f"{path}: holds {strangers[0]!r}, which is no file of a run, so it is not "
                "overwritten; move it away or choose another --out"
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
