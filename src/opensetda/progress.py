"""Progress events of an estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
