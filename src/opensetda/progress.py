"""How an estimator tells what it is doing, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ProgressEvent:
    """One sign of life of a training.

    Attributes
    ----------
    step : int
        The step m that is under way, counted from 1.
    steps : int
        M, the number of steps.
    iteration : int
        Training iterations of this step that are done.
    iterations : int
        Training iterations of a step; 0 if the step has none.
    loss : float or None
        The training loss, if there is one.
    message : str
        What is being done, in a few words, for example "labelling the targets".
    updates : int or None
        Training iterations of all steps so far, if one of them has just been done; also those
        that were done before the training was interrupted.
    entry : mapping or None
        What `history_` holds of the step, if it has just been finished; not to be changed.
    """

    step: int
    steps: int
    iteration: int = 0
    iterations: int = 0
    loss: float | None = None
    message: str = ""
    updates: int | None = None
    entry: Mapping[str, Any] | None = None

    @property
    def fraction(self) -> float:
        """Share of the whole training that is done, in [0, 1]."""
        return self._share(self.iteration)

    @property
    def fraction_before(self) -> float:
        """Share of the whole training that was done before what this event tells of."""
        return self._share(self.iteration - 1, whole_step=0.0)

    def _share(self, iteration: int, whole_step: float = 1.0) -> float:
        within = iteration / self.iterations if self.iterations else whole_step
        return min(max((self.step - 1 + within) / max(self.steps, 1), 0.0), 1.0)


ProgressListener = Callable[[ProgressEvent], None]


def finish_step(
    history: list[dict[str, Any]],
    listener: ProgressListener | None,
    entry: dict[str, Any],
    steps: int = 1,
    iterations: int = 0,
) -> None:
    """Add what is said of a step to the history, and tell who listens.

    `steps` is how many there are at most, `iterations` how many a step has.
    """
    history.append(entry)
    if listener is not None:
        listener(ProgressEvent(entry["step"], steps, iterations, iterations, entry=entry))
