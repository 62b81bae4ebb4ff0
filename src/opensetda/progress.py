"""Progress of a training, and what a run reports while it works."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ProgressEvent:
    """One event of a training."""

    step: int  # the current step m of `steps`, counted from 1
    steps: int
    iteration: int = 0  # finished training iterations of this step
    iterations: int = 0  # training iterations per step; 0 if there are none
    loss: float | None = None
    message: str = ""  # the current activity in a few words, for example "labelling"
    entry: Mapping[str, Any] | None = None  # the step's entry in `history_`, if it has finished


ProgressListener = Callable[[ProgressEvent], None]
CountingProgress = Callable[[int, int], None]
"""Called with how many items are done, and how many there are."""


def finish_step(
    history: list[dict[str, Any]],
    listener: ProgressListener | None,
    entry: dict[str, Any],
    steps: int = 1,
    iterations: int = 0,
) -> None:
    """Add the entry of a step to the history, and report it; `steps` is the largest number."""
    history.append(entry)
    if listener is not None:
        listener(ProgressEvent(entry["step"], steps, iterations, iterations, entry=entry))


class RunListener:
    """Receives the notes, warnings and progress of a run; override what you want to handle.

    This one logs notes to the logger ``opensetda`` at level INFO, passes warnings to
    `warnings.warn`, and ignores progress.
    """

    def note(self, line: str) -> None:
        """Receive a line about the data or about what is being done."""
        logging.getLogger("opensetda").info(line)

    def warn(self, message: str) -> None:
        """Receive a warning about the data or the result."""
        warnings.warn(message, UserWarning, stacklevel=3)

    def counting(self, title: str, noun: str = "image") -> AbstractContextManager[CountingProgress]:
        """Return a context whose value receives how many images or rows (`noun`) are done."""
        return nullcontext(lambda done, total: None)

    def training(self, method: str) -> AbstractContextManager[ProgressListener]:
        """Return a context whose value receives the progress events of a training."""
        return nullcontext(lambda event: None)
