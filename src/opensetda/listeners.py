"""Listeners that send the numbers of a run to a tracker: MLflow, Weights & Biases, TensorBoard.

Each is a `RunListener`, the interface to write another one to; notes, warnings and progress go on
to the listener behind it.
"""

from __future__ import annotations

import importlib
import secrets
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from opensetda.errors import InputError
from opensetda.progress import CountingProgress, ProgressEvent, ProgressListener, RunListener


class TrackingListener(RunListener):
    """Base of those that track a run: a subclass says where its numbers go.

    Parameters
    ----------
    behind : RunListener, optional
        Receives what a tracker does not: notes, warnings and progress.
    """

    def __init__(self, behind: RunListener | None = None) -> None:
        self.behind = behind or RunListener()

    @abstractmethod
    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Keep the numbers of a step; they need no target label."""

    def note(self, line: str) -> None:
        """Pass a note on."""
        self.behind.note(line)

    def warn(self, message: str) -> None:
        """Pass a warning on."""
        self.behind.warn(message)

    def worded(self, message: str) -> str:
        """Return a message in the words of the reader behind."""
        return self.behind.worded(message)

    def counting(self, title: str, noun: str = "image") -> AbstractContextManager[CountingProgress]:
        """Pass the progress of a count on."""
        return self.behind.counting(title, noun)

    @contextmanager
    def training(self, method: str) -> Iterator[ProgressListener]:
        """Log the numbers of each step, and pass its events on."""
        with self.behind.training(method) as told:

            def listen(event: ProgressEvent) -> None:
                told(event)
                if event.entry is not None:
                    self.log(step_numbers(event.entry), event.step)

            yield listen


class MLflowListener(TrackingListener):
    """Logs to MLflow's active run, or else to a new one: settings, numbers of steps, the folder."""

    def started(self, settings: Mapping[str, Any]) -> None:
        """Log the settings as parameters."""
        _tracker("mlflow").log_params(flat(settings))

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Log metrics."""
        _tracker("mlflow").log_metrics(dict(numbers), step=step)

    def finished(self, folder: Path) -> None:
        """Log the run folder as an artifact."""
        _tracker("mlflow").log_artifacts(str(folder), artifact_path=folder.name)


class WandbListener(TrackingListener):
    """Logs to the current run of Weights & Biases (`wandb.init`), as `MLflowListener` does."""

    def started(self, settings: Mapping[str, Any]) -> None:
        """Log the settings as configuration."""
        if _tracker("wandb").run is None:
            raise InputError("WandbListener: no run is open; call wandb.init() before")
        _tracker("wandb").run.config.update(flat(settings), allow_val_change=True)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Log numbers."""
        _tracker("wandb").run.log(dict(numbers), step=step)

    def finished(self, folder: Path) -> None:
        """Log the run folder as an artifact."""
        artifact = _tracker("wandb").Artifact(folder.name, type="opensetda-run")
        artifact.add_dir(str(folder))
        _tracker("wandb").run.log_artifact(artifact)


class TensorBoardListener(TrackingListener):
    """Writes the numbers of steps to a folder of TensorBoard (`osda fit --tensorboard`)."""

    def __init__(self, folder: str | Path, behind: RunListener | None = None) -> None:
        super().__init__(behind)
        from torch.utils.tensorboard import SummaryWriter

        # A name that nobody can foresee: it is opened for writing whatever is there.
        suffix = f".{secrets.token_hex(8)}"
        self.writer: Any = SummaryWriter(str(folder), filename_suffix=suffix)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write scalars."""
        for name, number in numbers.items():
            self.writer.add_scalar(f"step/{name}", number, step)
        self.writer.flush()


def step_numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an entry of `history_`, those of its parts as ``loss/class``."""
    return {name: value for name, value in flat(entry).items() if isinstance(value, int | float)}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values under one name each."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}/")
        else:
            found[prefix + name] = value
    return found


def _tracker(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f"{name}: not installed; pip install 'opensetda[{name}]'") from None
