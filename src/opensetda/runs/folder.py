"""The run folder: its files, opened for reading, and whether a new run may take its place.

``docs/run-folder.md`` describes every file. A folder appears whole or not at all. Every file that
is read is compared with its checksum first (`opensetda.runs.integrity`), and nothing is unpickled.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import safetensors.numpy
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from opensetda.backbones.recipe import Recipe
from opensetda.data.tables.preparation import ColumnPlan
from opensetda.errors import InputError, one_line
from opensetda.runs.integrity import (
    MANIFEST,
    CheckedTable,
    Manifest,
    check_value,
    read_json,
    reading,
)
from opensetda.runs.kept import KEPT, Kept
from opensetda.runs.place import CORRECTIONS as CORRECTIONS
from opensetda.runs.place import REVIEW as REVIEW
from opensetda.runs.place import SETTINGS as SETTINGS
from opensetda.runs.place import Stamp, changing_run, check_is_run, put_run_in_place, stamp_of
from opensetda.runs.predictions import PredictionTable
from opensetda.runs.registry import method_class, method_name
from opensetda.runs.sample_map import RunView
from opensetda.system.files import (
    check_new_folder,
    is_being_written,
    json_bytes,
    new_folder,
    write_json,
)

if TYPE_CHECKING:
    from torch import Tensor

    from opensetda.methods.base import OpenSetClassifier

FORMAT = "opensetda-run"
VERSION = 7

ENVIRONMENT = "environment.json"
HISTORY = "history.jsonl"
ESTIMATES = "estimates.json"
PREDICTIONS = "predictions.csv"
LARGE_PREDICTIONS = "predictions.parquet"
STEPS = "steps.parquet"
BROKEN = "broken.csv"
METRICS = "metrics.json"
TRUTH = "truth.parquet"
MODEL = "model.json"
WEIGHTS = "model.safetensors"
BACKBONE = "backbone.safetensors"
VIEW = "view.safetensors"
IMAGES = "images.parquet"
THUMBNAILS = "thumbnails.parquet"
MAP = "map.parquet"
REPORT = "report.html"
COMPARISON = "comparison.json"
FILES = (
    *(MANIFEST, SETTINGS, ENVIRONMENT, HISTORY, ESTIMATES, PREDICTIONS, LARGE_PREDICTIONS),
    *(STEPS, MODEL, WEIGHTS, BACKBONE, BROKEN, METRICS, COMPARISON, VIEW, IMAGES, THUMBNAILS),
    *(MAP, TRUTH, REPORT, KEPT),
)

STEP_PREFIX = "step_"
# With more targets, the predictions are a Parquet file: text would take gigabytes.
MOST_ROWS_AS_TEXT = 1_000_000

Name = Annotated[str, Field(min_length=1)]
StepLabels = dict[int, npt.NDArray[Any]]

_TRIES = 20
_MOVING_SECONDS = 0.02


class Settings(TypedDict):
    """``settings.json``; further entries are kept as they are."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    method: str
    scaling: Literal["none", "standard", "ranks"]
    unknown_label: Name
    settings: dict[str, Any]
    classes: Annotated[list[Name], Field(min_length=1)]
    has_ids: bool
    columns: dict[str, Any]
    inputs: dict[str, dict[str, Any]]
    backbone: dict[str, Any] | None
    command: list[str] | None
    identity: str | None


class _Model(TypedDict):
    """``model.json``; the method checks its state."""

    method: str
    feature_names: list[str] | None
    state: dict[str, Any]


class RunFolder:
    """A complete run, opened for reading; `open` checks the folder first."""

    def __init__(
        self, path: Path, manifest: Manifest, settings: Settings, stamp: Stamp | None = None
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.settings = settings
        self.stamp = stamp

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a run folder, or raise an `InputError` that says what is wrong with it.

        A run that is replaced at this moment is read again.
        """
        place = Path(path)
        for _ in range(_TRIES):
            stamp = stamp_of(place)
            try:
                return cls._open(place, stamp)
            except InputError:
                is_being_replaced = stamp is None and is_being_written(place)
                if is_being_replaced:
                    time.sleep(_MOVING_SECONDS)
                if stamp_of(place) == stamp and not is_being_replaced:
                    raise
        return cls._open(place, stamp_of(place))

    @classmethod
    def _open(cls, path: Path, stamp: Stamp | None) -> Self:
        check_is_run(path)
        place = path / SETTINGS
        written = read_json(place)
        version = written.get("version") if isinstance(written, dict) else None
        if version != VERSION:
            problem = f"version {version!r} is not {VERSION}"
            raise InputError(f"{place}: {problem}; fit again with this release")
        manifest = Manifest.read(place.parent)
        return cls(place.parent, manifest, manifest.json(SETTINGS, Settings), stamp)

    @property
    def was_replaced(self) -> bool:
        """Whether another run is in its place now, or none."""
        return stamp_of(self.path) != self.stamp

    def replace_files(self, contents: Mapping[str, bytes]) -> None:
        """Write files into the folder, in the place of earlier ones, if it is still this run's."""
        with changing_run(self.path, self.stamp) as place:
            self.manifest.folder = place
            self.manifest.replace(contents)

    @property
    def unknown_label(self) -> str:
        """The label of unknowns."""
        return self.settings["unknown_label"]

    def column(self, name: str) -> Any:
        """Return the name that a column (``label``, ``id``, ``features``) had in `fit`."""
        return self.settings["columns"].get(name)

    def column_plan(self) -> ColumnPlan:
        """Return what `fit` did with the columns of its tables."""
        return check_value(self.settings["columns"], ColumnPlan, self.path / SETTINGS)

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

        found = self.manifest.tensors(BACKBONE)
        return {name: torch.from_numpy(values) for name, values in found.items()}

    def history(self) -> list[dict[str, Any]]:
        """Return one dict per step, with numbers that need no target label."""
        with reading(self.path / HISTORY):
            return [json.loads(line) for line in self.manifest.content(HISTORY).splitlines()]

    def estimates(self) -> dict[str, Any]:
        """Return what was estimated without labels: openness and rejection."""
        return self.manifest.json(ESTIMATES, dict[str, Any])

    def environment(self) -> dict[str, Any]:
        """Return the machine and the versions that the run was made with."""
        return self.manifest.json(ENVIRONMENT, dict[str, Any])

    def table(self, name: str, columns: Sequence[str] | None = None) -> CheckedTable:
        """Open a Parquet or CSV file of the run."""
        return CheckedTable(self.manifest.content(name), self.path / name, columns)

    def predictions(self) -> PredictionTable:
        """Return the labels of the targets, with scores and probabilities."""
        table = self.table(self._predictions_name())
        found = PredictionTable.of_table(table)
        return replace(found, unknown_label=self.unknown_label)

    def _predictions_name(self) -> str:
        return LARGE_PREDICTIONS if LARGE_PREDICTIONS in self.manifest.files else PREDICTIONS

    def labels(self) -> npt.NDArray[Any]:
        """Return the labels of the targets alone."""
        return self.table(self._predictions_name(), ["label"]).text("label")

    def steps(self) -> StepLabels:
        """Return the labels of the targets after each step that has been kept, by its number."""
        table = self.table(STEPS)
        names = [name for name in table.names if name.startswith(STEP_PREFIX)]
        return {int(name.removeprefix(STEP_PREFIX)): table.text(name) for name in names}

    def view(self) -> RunView:
        """Return the samples that the report shows, with their embedding."""
        return RunView.parse(self.manifest.content(VIEW), self.path / VIEW)

    def kept(self) -> Kept | None:
        """Return what is kept of both domains; None of a run before that was kept."""
        if KEPT not in self.manifest.files:
            return None
        arrays = self.manifest.tensors(KEPT)
        return Kept.of_arrays(arrays, self.settings["classes"], self.path / KEPT)

    @property
    def chain(self) -> list[dict[str, Any]]:
        """The runs that this one was adapted from, the first one first; none of a fit."""
        found: Any = self.settings.get("chain")
        return list(found or [])

    def truth(self) -> npt.NDArray[Any] | None:
        """Return the true labels of the targets, if the run was evaluated."""
        if TRUTH not in self.manifest.files:
            return None
        try:
            return self.table(TRUTH).text("label")
        except InputError:
            # Another process may have evaluated the run since it was opened.
            with changing_run(self.path, self.stamp) as place:
                self.manifest = Manifest.read(place)
                there = TRUTH in self.manifest.files
                return self.table(TRUTH).text("label") if there else None

    def model(self) -> OpenSetClassifier:
        """Return the fitted classifier, for later samples."""
        return _read_model(self.manifest)

    def feature_names(self) -> tuple[str, ...] | None:
        """Return the names of the features, if they have names."""
        names = self.manifest.json(MODEL, _Model)["feature_names"]
        return None if names is None else tuple(names)

    def write_metrics(self, metrics: Mapping[str, Any], truth: npt.NDArray[Any]) -> None:
        """Write an evaluation into the folder; the true labels are kept for the report alone."""
        column = pa.array(truth.tolist(), pa.string()).dictionary_encode()
        truth_table = parquet_bytes(pa.table({"label": column}))
        self.replace_files({METRICS: json_bytes(metrics), TRUTH: truth_table})


def predictions_name(n_targets: int) -> str:
    """Return the name of the file of predictions."""
    return PREDICTIONS if n_targets <= MOST_ROWS_AS_TEXT else LARGE_PREDICTIONS


def parquet_bytes(table: Any, **options: Any) -> bytes:
    """Return a table as the content of a Parquet file."""
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, **options)
    return buffer.getvalue()


@contextmanager
def new_run_folder(path: Path) -> Iterator[Path]:
    """Yield a folder for a run, which is moved to `path` when it is complete."""
    with new_folder(path, put_in_place=put_run_in_place) as aside:
        yield aside


def check_destination(path: Path, overwrite: bool) -> None:
    """Raise an `InputError` if a run must not or cannot be written to `path`."""
    check_new_folder("--out", path, FILES, overwrite)
    if path.exists() and any(path.iterdir()) and not (path / SETTINGS).exists():
        raise InputError(f"{path}: not a run folder, so it is not overwritten; move it away")


def save(classifier: OpenSetClassifier, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a fitted classifier into a folder, for `load`.

    What is kept is what `predict` needs; labels of the targets of `fit` and the history are not.
    `overwrite` replaces an earlier saved model.
    """
    place = Path(path)
    method = method_name(classifier)
    check_new_folder("path", place, (MODEL, WEIGHTS, MANIFEST), overwrite)
    with new_folder(place) as aside:
        write_model(aside, classifier, method)
        Manifest.of(aside).write()


def load(path: str | Path) -> OpenSetClassifier:
    """Return the classifier that `save` wrote, or that of a run folder; it predicts the same."""
    if not (Path(path) / MANIFEST).exists():
        raise InputError(f"{path}: not a saved model; make one with opensetda.save(clf, path)")
    return _read_model(Manifest.read(Path(path)))


def write_model(
    folder: Path,
    classifier: OpenSetClassifier,
    method: str,
    feature_names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Write a fitted classifier into a folder, and return the part of it that is JSON."""
    state, arrays = classifier.get_state()
    content = {"method": method, "feature_names": feature_names, "state": state}
    write_json(folder / MODEL, content)
    contiguous = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    # Not save_file: it makes files that only their owner may read.
    (folder / WEIGHTS).write_bytes(safetensors.numpy.save(contiguous))
    return state


def _read_model(manifest: Manifest) -> OpenSetClassifier:
    """Return the classifier of a run or of `save`."""
    saved = manifest.json(MODEL, _Model)
    arrays = manifest.tensors(WEIGHTS)
    try:
        return method_class(saved["method"]).from_state(saved["state"], arrays)
    except (TypeError, ValueError) as error:
        place = manifest.folder / MODEL
        raise InputError(f"{place}, with {WEIGHTS}: {one_line(error)}") from error
