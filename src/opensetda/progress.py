"""How an estimator tells what it is doing, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
    """

    step: int
    steps: int
    iteration: int = 0
    iterations: int = 0
    loss: float | None = None
    message: str = ""

    @property
    def fraction(self) -> float:
        """Share of the whole training that is done, in [0, 1]."""
        within = self.iteration / self.iterations if self.iterations else 1.0
        return min(max((self.step - 1 + within) / max(self.steps, 1), 0.0), 1.0)


ProgressListener = Callable[[ProgressEvent], None]
