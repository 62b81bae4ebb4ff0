"""The run folder, opened for reading: request, labels, history, estimates and model.

``docs/run-folder.md`` describes every file. A folder appears whole or not at
all, and nothing in it is ever unpickled: JSON, Parquet, safetensors, PNG.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.system.files import new_file, read_json, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from opensetda.backbones.recipe import Recipe
    from opensetda.base import OpenSetClassifier
    from opensetda.runs.predictions import PredictionTable
    from opensetda.runs.view import RunView

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
        settings = read_settings(path)
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
        from opensetda.backbones.recipe import Recipe

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

        return _read_weights(self.path / BACKBONE, load)

    def history(self) -> list[dict[str, Any]]:
        """Return one dict per step, with numbers that need no target label."""
        path = self.path / HISTORY
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except FileNotFoundError:
            raise InputError(f"{path}: missing; the run is not complete, fit again") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: damaged ({error}); fit again") from error

    def estimates(self) -> dict[str, Any]:
        """Return what was estimated without labels: openness, the step kept, the rejection."""
        path = self.path / ESTIMATES
        estimates: dict[str, Any] = read_json(path)
        try:
            kept, numbers = estimates["kept_step"], [*estimates["rejection"].values()]
            numbers += [estimates["openness"][name] for name in ("share", "low", "high")]
            for number in numbers if kept is None else [*numbers, kept["step"]]:
                float(number)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: damaged ({error}); fit again") from error
        return estimates

    def predictions(self) -> PredictionTable:
        """Return the labels of the targets, with scores and probabilities."""
        from opensetda.runs.predictions import PredictionTable

        classes = [str(name) for name in self.settings.get("classes", [])]
        return PredictionTable.read_parquet(self.path / PREDICTIONS, classes)

    def labels(self) -> npt.NDArray[Any]:
        """Return the labels of the targets alone."""
        return _read_labels(self.path / PREDICTIONS)

    def steps(self) -> StepLabels:
        """Return the labels of the targets after each step that has been kept, by its number."""
        from opensetda.runs.predictions import read_parquet

        table = read_parquet(self.path / STEPS)
        return {
            int(name.removeprefix(STEP_PREFIX)): np.array(table[name].to_pylist(), dtype=np.str_)
            for name in table.column_names
            if name.startswith(STEP_PREFIX)
        }

    def view(self) -> RunView:
        """Return the samples and embeddings for the report."""
        from opensetda.runs.view import RunView

        return RunView.read(self.path / VIEW)

    def truth(self) -> npt.NDArray[Any] | None:
        """Return the true labels of the targets, if the run was evaluated."""
        return _read_labels(self.path / TRUTH) if (self.path / TRUTH).exists() else None

    def model(self) -> OpenSetClassifier:
        """Return the fitted classifier, for later samples."""
        from safetensors.numpy import load

        from opensetda.runs.methods import method_class

        saved = read_json(self.path / MODEL)
        arrays = _read_weights(self.path / WEIGHTS, load)
        cls = method_class(str(self.settings["method"]))
        try:
            return cls.from_state(saved["state"], arrays)
        except InputError as error:
            raise InputError(f"{self.path / MODEL}: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.path / MODEL}: damaged ({error}); fit again") from error

    def feature_names(self) -> tuple[str, ...] | None:
        """Return the names of the features, if they have names."""
        names = read_json(self.path / MODEL).get("feature_names")
        return None if names is None else tuple(names)

    def write_metrics(
        self, metrics: Mapping[str, Any], curves: bytes, truth: npt.NDArray[Any]
    ) -> None:
        """Write an evaluation into the folder; the true labels are kept for the report alone."""
        import pyarrow as pa
        import pyarrow.parquet

        with (
            new_file(self.path / METRICS) as json_path,
            new_file(self.path / CURVES) as png_path,
            new_file(self.path / TRUTH) as truth_path,
        ):
            write_json(json_path, metrics)
            png_path.write_bytes(curves)
            column = pa.array(truth.tolist(), pa.string()).dictionary_encode()
            pyarrow.parquet.write_table(pa.table({"label": column}), truth_path)


def kept_place(run: RunFolder, view: RunView) -> int:
    """Return the index of the kept step among the steps of the view."""
    n_steps, kept = len(view.steps), run.estimates()["kept_step"]
    return n_steps - 1 if kept is None else min(int(kept["step"]), n_steps) - 1


def _read_labels(path: Path) -> npt.NDArray[Any]:
    from opensetda.runs.predictions import read_parquet

    table = read_parquet(path, ["label"])
    if table.column_names != ["label"]:
        raise InputError(f"{path}: damaged (no column 'label'); fit again")
    return np.array(table["label"].to_pylist(), dtype=np.str_)


def _read_weights(path: Path, load: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
    from safetensors import SafetensorError

    try:
        return load(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path}: missing; the run is not complete, fit again") from None
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: damaged ({error}); fit again") from error


def read_settings(path: Path) -> dict[str, Any]:
    """Read ``settings.json`` of a run of any release."""
    settings = read_json(path / SETTINGS)
    if not isinstance(settings, dict) or settings.get("format") != FORMAT:
        raise InputError(f"{path / SETTINGS}: not the settings of a run; fit again")
    return settings
