"""Event files for TensorBoard: the loss of every iteration, and the numbers of every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from opensetda.errors import InputError
from opensetda.progress import ProgressEvent
from opensetda.system.files import check_writable, near

_EVENT_FILES = "*tfevents*"
_FLUSH_SECONDS = 10
# Entries of a step that are the axis of the curves.
_PLACE = ("step", "steps", "progress")


def check_log(folder: Path) -> None:
    """Raise an `InputError` if no event file could be written to `folder`."""
    if find_spec("tensorboard") is None:
        raise InputError(
            "--tensorboard: needs the package tensorboard; pip install 'opensetda[tensorboard]'"
        )
    if folder.exists() and not folder.is_dir():
        raise InputError(
            f"--tensorboard {near(folder)}: a file is in the way; choose another folder"
        )
    check_writable(folder / "events")


def check_new_log(folder: Path, overwrite: bool) -> None:
    """Raise an `InputError` if `folder` has another run's curves: two in one would mislead."""
    if not overwrite and next(folder.glob(_EVENT_FILES), None) is not None:
        raise InputError(
            f"--tensorboard {folder}: holds the event files of another run; choose another "
            "folder or add --overwrite"
        )


class EventLog:
    """Writes the events of a training: the loss by iteration, everything else by step.

    The event files of another training are removed, unless this one `goes_on`: then iterations
    since its last checkpoint are there twice, with the same numbers.
    """

    def __init__(self, folder: Path, goes_on: bool) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if not goes_on:
            for earlier in folder.glob(_EVENT_FILES):
                earlier.unlink()
        make_writer: Any = SummaryWriter
        self._writer = make_writer(str(folder), flush_secs=_FLUSH_SECONDS)

    def __call__(self, event: ProgressEvent) -> None:
        """Write the numbers of an event."""
        if event.entry is None and event.loss is not None:
            done = (event.step - 1) * event.iterations + event.iteration
            self._writer.add_scalar("iteration/loss", event.loss, done)
        if event.entry is not None:
            for name, value in numbers(event.entry):
                self._writer.add_scalar(f"step/{name}", value, event.step)
            self._writer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()


def numbers(entry: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of an entry of a history: "n_known", "loss/node"."""
    for name, value in entry.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{above}{name}/")
        elif name not in _PLACE and isinstance(value, int | float):
            yield above + name, value
