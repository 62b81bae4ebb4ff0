"""Progress of a training, and what a run reports while it works."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from opensetda.errors import InputError


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


P = ParamSpec("P")
T = TypeVar("T")


def worded(use_case: Callable[P, T]) -> Callable[P, T]:
    """Let a use case raise its errors in the words of its `listener`: a decorator."""

    @wraps(use_case)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        listener: Any = kwargs.get("listener") or RunListener()
        try:
            return use_case(*args, **kwargs)
        except InputError as error:
            error.args = (listener.worded(str(error)),)
            raise

    return run


class RunListener:
    """Receives the notes, warnings and progress of a run; override what you want to handle.

    This one logs notes to the logger ``opensetda`` at level INFO, passes warnings to
    `warnings.warn`, and ignores progress. Those of `opensetda.listeners` send numbers to a tracker.
    Options have their names in Python in what it passes on.
    """

    def note(self, line: str) -> None:
        """Receive a line about the data or about what is being done."""
        logging.getLogger("opensetda").info(self.worded(line))

    def warn(self, message: str) -> None:
        """Receive a warning about the data or the result."""
        warnings.warn(self.worded(message), UserWarning, stacklevel=3)

    def stage(self, name: str) -> None:
        """Receive what begins: reading, estimating, ..."""

    def worded(self, message: str) -> str:
        """Return a message in the words of its reader: options as Python has them."""
        from opensetda.runs.options import in_python

        return in_python(message)

    def started(self, settings: Mapping[str, Any]) -> None:
        """Receive the settings of a fit, all that its result depends on besides the data."""

    def finished(self, folder: Path) -> None:
        """Receive the path of the complete run folder."""

    def counting(self, title: str, noun: str = "image") -> AbstractContextManager[CountingProgress]:
        """Return a context whose value receives how many images or rows (`noun`) are done."""
        return nullcontext(lambda done, total: None)

    def training(self, method: str) -> AbstractContextManager[ProgressListener]:
        """Return a context whose value receives the progress events of a training."""
        return nullcontext(lambda event: None)
