"""One folder a run: what was asked, with what, what came out, and the model.

``docs/run-folder.md`` describes every file. A folder appears whole or not at
all, and nothing in it is ever unpickled: JSON, Parquet, safetensors, PNG.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.runs.files import check_writable, new_file, plain, read_json, write_json

if TYPE_CHECKING:
    from opensetda.base import OpenSetClassifier
    from opensetda.runs.predictions import PredictionTable

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
METRICS = "metrics.json"
COMPARISON = "comparison.json"
CURVES = "curves.png"

FILES = (
    SETTINGS,
    ENVIRONMENT,
    HISTORY,
    ESTIMATES,
    PREDICTIONS,
    PREDICTIONS_FOR_PEOPLE,
    STEPS,
    MODEL,
    WEIGHTS,
    METRICS,
    COMPARISON,
    CURVES,
)

StepLabels = dict[int, npt.NDArray[Any]]

_STEP_PREFIX = "step_"
_PACKAGES = ("opensetda", "numpy", "scipy", "scikit-learn", "torch", "pyarrow", "safetensors")


@dataclass(frozen=True)
class RunRecord:
    """What was asked for and with what, written to ``settings.json`` and ``environment.json``.

    Attributes
    ----------
    method : str
        A name of `opensetda.runs.methods.METHODS`.
    openness : float or "auto"
        Share of unknowns as it was asked for; what was used is in ``estimates.json``.
    unknown_label : str
        What unknowns are called.
    preset : str
        Preset of the settings.
    settings : mapping
        Every setting as it was used.
    seed : int
        The seed.
    inputs : mapping
        Source and target: path, rows, SHA-256 and what else tells them apart.
    columns : mapping
        Names of the label and id columns and the like.
    feature_names : tuple of str or None
        Names of the features, if they have names.
    has_ids : bool
        Whether the samples have names, or only row numbers.
    command : tuple of str
        The command line.
    seconds : float
        How long `fit` took.
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


class RunFolder:
    """A complete run, opened for reading.

    Parameters
    ----------
    path : Path
        The folder; `open` checks it first.
    settings : dict
        The content of ``settings.json``.
    """

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
        """What unknowns are called."""
        return str(self.settings["unknown_label"])

    @property
    def has_ids(self) -> bool:
        """Whether the samples have names."""
        return bool(self.settings["has_ids"])

    def column(self, name: str) -> Any:
        """Return the name that a column (``label``, ``id``, ``features``) had in `fit`."""
        return self.settings["columns"].get(name)

    def history(self) -> list[dict[str, Any]]:
        """Return one dict a step, with numbers that need no target label."""
        path = self.path / HISTORY
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except FileNotFoundError:
            raise InputError(f"{path}: missing; the run is not complete, fit again") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: damaged ({error}); fit again") from error

    def estimates(self) -> dict[str, Any]:
        """Return what was found out without labels: openness, the step kept, the rejection."""
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
        """Return the labels of the targets."""
        from opensetda.runs.predictions import PredictionTable

        return PredictionTable.read_parquet(self.path / PREDICTIONS)

    def steps(self) -> StepLabels:
        """Return the labels of the targets after each step that has been kept, by its number."""
        from opensetda.runs.predictions import read_parquet

        table = read_parquet(self.path / STEPS)
        return {
            int(name.removeprefix(_STEP_PREFIX)): np.array(table[name].to_pylist(), dtype=np.str_)
            for name in table.column_names
            if name.startswith(_STEP_PREFIX)
        }

    def model(self) -> OpenSetClassifier:
        """Return the fitted classifier, for later samples."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        from opensetda.runs.methods import method_class

        saved = read_json(self.path / MODEL)
        weights = self.path / WEIGHTS
        try:
            arrays = load_file(weights)
        except FileNotFoundError:
            raise InputError(f"{weights}: missing; the run is not complete, fit again") from None
        except (OSError, SafetensorError) as error:
            raise InputError(f"{weights}: damaged ({error}); fit again") from error
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

    def write_metrics(self, metrics: Mapping[str, Any], curves: bytes) -> None:
        """Put the outcome of an evaluation into the folder, in place of an earlier one."""
        with new_file(self.path / METRICS) as json_path, new_file(self.path / CURVES) as png_path:
            write_json(json_path, metrics)
            png_path.write_bytes(curves)


def check_destination(path: Path, overwrite: bool) -> None:
    """Raise an `InputError` if a run must not or cannot be written to `path`."""
    if path.exists():
        if not path.is_dir():
            raise InputError(f"{path}: a file is in the way; choose another --out")
        if not overwrite:
            raise InputError(f"{path}: exists already; choose another --out or add --overwrite")
        strangers = sorted({entry.name for entry in path.iterdir()} - set(FILES))
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
        # A run of another release counts: it may be replaced, if not read.
        _read_settings(path)
    except InputError as error:
        raise InputError(
            f"{path}: not a run folder that can be read, so it is not overwritten; "
            "remove it yourself or choose another --out"
        ) from error


def _read_settings(path: Path) -> dict[str, Any]:
    settings = read_json(path / SETTINGS)
    if not isinstance(settings, dict) or settings.get("format") != FORMAT:
        raise InputError(f"{path / SETTINGS}: not the settings of a run; fit again")
    return settings


def write_run(
    folder: Path,
    classifier: OpenSetClassifier,
    record: RunRecord,
    ids: npt.NDArray[Any] | None,
    curves: bytes,
) -> RunFolder:
    """Write every file of a run into an empty folder, one that `new_folder` gave."""
    from safetensors.numpy import save

    from opensetda.runs.predictions import PredictionTable

    state, arrays = classifier.get_state()
    write_json(folder / MODEL, {"feature_names": record.feature_names, "state": state})
    contiguous = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    # Not save_file: it makes files that only their owner may read.
    (folder / WEIGHTS).write_bytes(save(contiguous))
    write_json(folder / ENVIRONMENT, environment(record))
    lines = [json.dumps(plain(entry), allow_nan=False) + "\n" for entry in classifier.history_]
    (folder / HISTORY).write_text("".join(lines), encoding="utf-8")
    write_json(folder / ESTIMATES, _estimates(classifier, state))
    predictions = PredictionTable.of_targets(classifier, ids)
    predictions.write(folder / PREDICTIONS)
    predictions.write(folder / PREDICTIONS_FOR_PEOPLE)
    _write_steps(folder / STEPS, predictions, step_labels(classifier))
    (folder / CURVES).write_bytes(curves)
    settings = {
        "format": FORMAT,
        "version": VERSION,
        "method": record.method,
        "openness": record.openness,
        "unknown_label": record.unknown_label,
        "preset": record.preset,
        "seed": record.seed,
        "settings": dict(record.settings),
        "classes": list(predictions.classes),
        "has_ids": record.has_ids,
        "columns": dict(record.columns),
        "inputs": dict(record.inputs),
        "command": list(record.command),
    }
    # Last: a folder without it is no run.
    write_json(folder / SETTINGS, settings)
    return RunFolder(folder, settings)


def _estimates(classifier: OpenSetClassifier, state: Mapping[str, Any]) -> dict[str, Any]:
    kept = getattr(classifier, "kept_step_", None)
    return {
        "openness": plain(classifier.openness_report_.to_dict()),
        "kept_step": None if kept is None else plain(kept.to_dict()),
        # As the model has them, where infinity is a word.
        "rejection": {
            "threshold": state["rejection_threshold"],
            "slope": state["rejection_slope"],
        },
    }


def step_labels(classifier: OpenSetClassifier) -> StepLabels:
    """Return the targets' labels after each step; a method that keeps none has the last only."""
    indices = getattr(classifier, "step_labels_", None)
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
        "fit_seconds": round(record.seconds, 3),
    }


def _write_steps(path: Path, predictions: PredictionTable, steps: StepLabels) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    columns = {"id": pa.array(predictions.ids.tolist(), pa.string())}
    for step, labels in steps.items():
        column = pa.array(labels.tolist(), pa.string()).dictionary_encode()
        columns[f"{_STEP_PREFIX}{step}"] = column
    pyarrow.parquet.write_table(pa.table(columns), path)
