"""Event files for TensorBoard: the loss of every iteration, and the numbers of every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from opensetda.errors import InputError
from opensetda.progress import ProgressEvent, ProgressListener
from opensetda.system.files import check_writable

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
    check_writable(folder / "events")


def check_new_log(folder: Path, overwrite: bool) -> None:
    """Raise an `InputError` if `folder` has another run's curves: two in one would mislead."""
    if not overwrite and next(folder.glob(_EVENT_FILES), None) is not None:
        raise InputError(
            f"--tensorboard {folder}: holds the event files of another run; choose another "
            "folder or add --overwrite"
        )


@contextmanager
def event_log(
    folder: str | None, goes_on: bool, progress: ProgressListener
) -> Iterator[ProgressListener]:
    """Yield what passes the events of a training on to `progress`, and writes them to a folder.

    The event files of another training are removed, unless this one `goes_on`: then iterations
    since its last checkpoint are there twice, with the same numbers.
    """
    if folder is None:
        yield progress
        return
    from torch.utils.tensorboard import SummaryWriter

    for earlier in () if goes_on else Path(folder).glob(_EVENT_FILES):
        earlier.unlink()
    make_writer: Any = SummaryWriter
    writer = make_writer(folder, flush_secs=_FLUSH_SECONDS)

    def write(event: ProgressEvent) -> None:
        progress(event)
        if event.entry is not None:
            for name, value in numbers(event.entry):
                writer.add_scalar(f"step/{name}", value, event.step)
            writer.flush()
        elif event.loss is not None:
            done = (event.step - 1) * event.iterations + event.iteration
            writer.add_scalar("iteration/loss", event.loss, done)

    with closing(writer):
        yield write


def numbers(entry: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of an entry of a history: "n_known", "loss/node"."""
    for name, value in entry.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{above}{name}/")
        elif name not in _PLACE and isinstance(value, int | float):
            yield above + name, value
