"""The run folder: its files, opened for reading, and whether a new run may take its place.

``docs/run-folder.md`` describes every file. A folder appears whole or not at
all, and nothing in it is ever unpickled: JSON, Parquet, safetensors, PNG.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import safetensors
import safetensors.numpy

from opensetda.backbones.recipe import Recipe
from opensetda.errors import InputError
from opensetda.nn.scaling import NONE, Scaling, columns_sentence
from opensetda.rows import FloatArray, IntArray, Rows, unit_rows
from opensetda.runs.methods import method_class
from opensetda.runs.predictions import PredictionTable, read_parquet, reading
from opensetda.system.files import check_writable, is_partial, new_file, read_json, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from opensetda.base import OpenSetClassifier

FORMAT = "opensetda-run"
VERSION = 2

SETTINGS = "settings.json"
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
CURVES = "curves.png"
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
    *(SETTINGS, ENVIRONMENT, HISTORY, ESTIMATES, PREDICTIONS, PREDICTIONS_FOR_PEOPLE, STEPS),
    *(MODEL, WEIGHTS, BACKBONE, BROKEN, METRICS, COMPARISON, CURVES, VIEW, IMAGES, THUMBNAILS),
    *(MAP, TRUTH, REPORT),
)

StepLabels = dict[int, npt.NDArray[Any]]

STEP_PREFIX = "step_"
_VIEW_NAMES, _VIEW_STEP = "names", "step-"


class RunFolder:
    """A complete run, opened for reading; `open` checks the folder first."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.settings = settings

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
        settings = _read_settings(path)
        if settings.get("version") != VERSION:
            raise InputError(
                f"{path / SETTINGS}: version {settings.get('version')!r} is not {VERSION}; "
                "fit again with this release"
            )
        missing = {"unknown_label", "has_ids", "columns"} - settings.keys()
        if missing:
            raise InputError(f"{path / SETTINGS}: no {sorted(missing)[0]!r} in it; fit again")
        return cls(path, settings)

    @property
    def unknown_label(self) -> str:
        """The label of unknowns."""
        return str(self.settings["unknown_label"])

    @property
    def has_ids(self) -> bool:
        """Whether the samples have names."""
        return bool(self.settings["has_ids"])

    def column(self, name: str) -> Any:
        """Return the name that a column (``label``, ``id``, ``features``) had in `fit`."""
        return self.settings["columns"].get(name)

    @property
    def has_images(self) -> bool:
        """Whether the samples are images."""
        return self.settings.get("backbone") is not None

    @property
    def is_finetuned(self) -> bool:
        """Whether the backbone was trained, too."""
        return self.has_images and bool(self.settings["backbone"].get("finetuned"))

    def recipe(self) -> Recipe:
        """Return the recipe of the features."""
        entries = dict(self.settings["backbone"])
        entries.pop("finetuned", None)
        try:
            return Recipe.from_dict(entries)
        except InputError as error:
            raise InputError(f"{self.path / SETTINGS}: {error}; fit again") from error

    def backbone_state(self) -> dict[str, Tensor] | None:
        """Return the weights of a backbone that was fine-tuned; None if it was not."""
        if not self.is_finetuned:
            return None
        from safetensors.torch import load

        return self._read_weights(BACKBONE, load)

    def history(self) -> list[dict[str, Any]]:
        """Return one dict per step, with numbers that need no target label."""
        with reading(self.path / HISTORY) as path:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def estimates(self) -> dict[str, Any]:
        """Return what was estimated without labels: openness, step, scaling, rejection."""
        with reading(self.path / ESTIMATES) as path:
            # Runs of earlier releases did not scale.
            estimates: dict[str, Any] = {"scaling": Scaling(NONE).to_dict()} | read_json(path)
            kept, numbers = estimates["kept_step"], [*estimates["rejection"].values()]
            numbers += [estimates["openness"][name] for name in ("share", "low", "high")]
            for number in numbers if kept is None else [*numbers, kept["step"]]:
                float(number)
            columns_sentence(*(estimates["scaling"][name] for name in ("name", "reason")))
        return estimates

    def predictions(self) -> PredictionTable:
        """Return the labels of the targets, with scores and probabilities."""
        classes = [str(name) for name in self.settings.get("classes", [])]
        return PredictionTable.read_parquet(self.path / PREDICTIONS, classes)

    def labels(self) -> npt.NDArray[Any]:
        """Return the labels of the targets alone."""
        return _read_labels(self.path / PREDICTIONS)

    def steps(self) -> StepLabels:
        """Return the labels of the targets after each step that has been kept, by its number."""
        table = read_parquet(self.path / STEPS)
        return {
            int(name.removeprefix(STEP_PREFIX)): np.array(table[name].to_pylist(), dtype=np.str_)
            for name in table.column_names
            if name.startswith(STEP_PREFIX)
        }

    def view(self) -> RunView:
        """Return the samples and embeddings for the report."""
        return RunView.read(self.path / VIEW)

    def truth(self) -> npt.NDArray[Any] | None:
        """Return the true labels of the targets, if the run was evaluated."""
        return _read_labels(self.path / TRUTH) if (self.path / TRUTH).exists() else None

    def model(self) -> OpenSetClassifier:
        """Return the fitted classifier, for later samples."""
        saved = read_json(self.path / MODEL)
        arrays = self._read_weights(WEIGHTS, safetensors.numpy.load)
        cls = method_class(str(self.settings["method"]))
        with reading(self.path / MODEL) as path:
            try:
                return cls.from_state(saved["state"], arrays)
            except InputError as error:
                raise InputError(f"{path}: {error}") from error

    def feature_names(self) -> tuple[str, ...] | None:
        """Return the names of the features, if they have names."""
        names = read_json(self.path / MODEL).get("feature_names")
        return None if names is None else tuple(names)

    def write_metrics(
        self, metrics: Mapping[str, Any], curves: bytes, truth: npt.NDArray[Any]
    ) -> None:
        """Write an evaluation into the folder; the true labels are kept for the report alone."""
        with (
            new_file(self.path / METRICS) as json_path,
            new_file(self.path / CURVES) as png_path,
            new_file(self.path / TRUTH) as truth_path,
        ):
            write_json(json_path, metrics)
            png_path.write_bytes(curves)
            column = pa.array(truth.tolist(), pa.string()).dictionary_encode()
            pyarrow.parquet.write_table(pa.table({"label": column}), truth_path)

    def _read_weights(self, name: str, load: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
        with reading(self.path / name) as path:
            return load(path.read_bytes())


def _read_labels(path: Path) -> npt.NDArray[Any]:
    table = read_parquet(path, ["label"])
    if table.column_names != ["label"]:
        raise InputError(f"{path}: damaged (no column 'label'); fit again")
    return np.array(table["label"].to_pylist(), dtype=np.str_)


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


@dataclass(frozen=True)
class RunView:
    """What the report shows: a sample of both domains, of bounded size.

    Attributes
    ----------
    source, target : arrays of int of shape (k_s,) and (k_t,)
        Rows of the sample in each domain, from 0.
    source_labels : array of int of shape (k_s,)
        Classes of the source sample, as indices.
    source_names : tuple of str
        Ids of the source sample; empty if they have none.
    steps : tuple of arrays of shape (k_s + k_t, components)
        Embeddings after each step, sources first; one only if the method keeps none.
    nodes, affinity : arrays of shape (N,) and (N, N)
        Members of the sample, and the edge network's affinity of their pairs; 255 is 1.
    """

    source: IntArray
    target: IntArray
    source_labels: IntArray
    source_names: tuple[str, ...]
    steps: tuple[npt.NDArray[np.float16], ...]
    nodes: IntArray
    affinity: npt.NDArray[np.uint8]

    def write(self, path: Path) -> None:
        """Write a safetensors file."""
        arrays: dict[str, npt.NDArray[Any]] = {
            name: np.ascontiguousarray(getattr(self, name), dtype=np.int64)
            for name in ("source", "target", "source_labels", "nodes")
        }
        arrays["affinity"] = self.affinity
        for number, rows in enumerate(self.steps, start=1):
            arrays[f"{_VIEW_STEP}{number:03d}"] = np.ascontiguousarray(rows)
        metadata = {_VIEW_NAMES: json.dumps(self.source_names)}
        path.write_bytes(safetensors.numpy.save(arrays, metadata=metadata))

    @classmethod
    def read(cls, path: Path) -> RunView:
        """Read what `write` wrote, or raise an `InputError` that names the file."""
        with (
            reading(path, missing="the run is of an earlier release, fit again"),
            safetensors.safe_open(path, framework="np") as file,
        ):
            names = tuple(json.loads(file.metadata()[_VIEW_NAMES]))
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            steps = sorted(name for name in arrays if name.startswith(_VIEW_STEP))
            of_steps = tuple(arrays.pop(name) for name in steps)
            return cls(steps=of_steps, source_names=names, **arrays)


def kept_place(run: RunFolder, view: RunView) -> int:
    """Return the index of the kept step among the steps of the view."""
    n_steps, kept = len(view.steps), run.estimates()["kept_step"]
    return n_steps - 1 if kept is None else min(int(kept["step"]), n_steps) - 1


def view_of(
    classifier: OpenSetClassifier,
    source: npt.NDArray[np.float32],
    labels: npt.NDArray[Any],
    target: npt.NDArray[np.float32],
    source_ids: Sequence[str] | npt.NDArray[Any] | None = None,
    sample: IntArray | None = None,
) -> RunView:
    """Return the view of a fitted classifier; `sample` are the target rows of fit, if not all."""
    from opensetda.pgl.view import MOST_SOURCES, MOST_TARGETS, principal_components

    shown = classifier.view_
    if shown is not None:
        source_rows, target_rows, steps = shown.source, shown.target, shown.steps
        target_rows = target_rows if sample is None else sample[target_rows]
        nodes, affinity = shown.nodes, shown.affinity
    else:
        source_rows = _drawn(len(source), MOST_SOURCES)
        target_rows = _drawn(len(target), MOST_TARGETS)
        chosen = [Rows(X, rows) for X, rows in ((source, source_rows), (target, target_rows))]
        in_memory = [np.concatenate([chunk for _, chunk in rows.chunks()]) for rows in chosen]
        steps = (principal_components(_features(classifier, *in_memory)),)
        nodes, affinity = np.arange(0), np.zeros((0, 0), dtype=np.uint8)
    names = () if source_ids is None else tuple(str(source_ids[row]) for row in source_rows)
    classes = np.searchsorted(classifier.classes_, labels[source_rows])
    return RunView(source_rows, target_rows, classes, names, tuple(steps), nodes, affinity)


def _drawn(count: int, most: int) -> IntArray:
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def _features(
    classifier: OpenSetClassifier, source: FloatArray, target: FloatArray
) -> npt.NDArray[Any]:
    """Return the features that a method has learned, or centred rows if it learns none."""
    if classifier.transforms_domains:
        domain = np.repeat([0, -1], [len(source), len(target)])
        both = np.concatenate([source, target])
        return np.asarray(classifier.transform(both, sample_domain=domain))
    scaler = classifier.scaler_
    unit = unit_rows(scaler.of_source(source)), unit_rows(scaler.of_target(target))
    # Less their mean, which removes the shift between the domains.
    return np.concatenate([rows - rows.mean(axis=0) for rows in unit])
