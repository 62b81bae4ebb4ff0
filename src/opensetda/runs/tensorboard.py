"""Event files for TensorBoard: the loss of every iteration, and the numbers of every step."""

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

    If the training goes on after an interruption, what the folder holds is not written again;
    otherwise its event files are removed.
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
        """Write the numbers of an event."""
        updates = event.updates or 0
        if event.loss is not None and updates > self._updates:
            self._writer.add_scalar(LOSS, event.loss, updates)
            self._updates = updates
        if event.entry is not None and event.step > self._step:
            for name, value in numbers(event.entry):
                self._writer.add_scalar(f"{STEP}/{name}", value, event.step)
            # The checkpoint of the step follows: a resumed run must find the step here.
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
    """Return the last iteration and the last step in the event files of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if next(folder.glob(_EVENT_FILES), None) is None:
        return 0, 0
    # The last point of each curve is enough.
    written = EventAccumulator(str(folder), size_guidance={"scalars": 1}).Reload()
    last = {tag: written.Scalars(tag)[-1].step for tag in written.Tags()["scalars"]}
    steps = [step for tag, step in last.items() if tag != LOSS]
    return last.get(LOSS, 0), max(steps, default=0)
