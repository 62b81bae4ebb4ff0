"""Event files for TensorBoard: the loss of every iteration, and what is known of every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from opensetda.errors import InputError
from opensetda.progress import ProgressEvent
from opensetda.system.files import check_writable, near

LOSS = "iteration/loss"
STEP = "step"

_EVENT_FILES = "*tfevents*"
_FLUSH_SECONDS = 10
# Of each step, beside its numbers: they are the axis.
_PLACE = ("step", "steps", "progress")


def check_log(folder: Path) -> None:
    """Raise an `InputError` if no event file could be written to `folder`; before all else."""
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
    """A listener of a training that writes down what it hears; to be closed at the end.

    The loss is written by iteration, everything else by step.

    Parameters
    ----------
    folder : Path
        Folder of the event files.
    goes_on : bool
        Whether the training was interrupted: what the folder holds is not written again.
        Otherwise event files that are there are removed.
    """

    def __init__(self, folder: Path, goes_on: bool) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._updates = self._step = 0
        if goes_on:
            self._updates, self._step = _last_written(folder)
        else:
            for earlier in folder.glob(_EVENT_FILES):
                earlier.unlink()
        make_writer: Any = SummaryWriter
        self._writer = make_writer(str(folder), flush_secs=_FLUSH_SECONDS)

    def __call__(self, event: ProgressEvent) -> None:
        """Write down what an event has to say."""
        updates = event.updates or 0
        if event.loss is not None and updates > self._updates:
            self._writer.add_scalar(LOSS, event.loss, updates)
            self._updates = updates
        if event.entry is not None and event.step > self._step:
            for name, value in numbers(event.entry):
                self._writer.add_scalar(f"{STEP}/{name}", value, event.step)
            # A step is kept right after it is told: a run that goes on must find it here.
            self._writer.flush()
            self._step = event.step

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


def _last_written(folder: Path) -> tuple[int, int]:
    """Return the last iteration and the last step that the event files of a folder tell of."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if next(folder.glob(_EVENT_FILES), None) is None:
        return 0, 0
    # Of each curve the last point will do.
    written = EventAccumulator(str(folder), size_guidance={"scalars": 1}).Reload()
    last = {tag: written.Scalars(tag)[-1].step for tag in written.Tags()["scalars"]}
    steps = [step for tag, step in last.items() if tag != LOSS]
    return last.get(LOSS, 0), max(steps, default=0)
