"""Which step to keep, and whether to go on, without target labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class KeptStep:
    """The step whose network and labels are kept.

    Attributes
    ----------
    step : int
        Its number, from 1.
    steps : int
        How many were run.
    reason : str
        Why this one, in words.
    """

    step: int
    steps: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {"step": self.step, "steps": self.steps, "reason": self.reason}


class StableStepRule:
    """Keep the last step before the method begins to follow its own mistakes.

    Step by step, more targets carry pseudo-labels, and the labels get better. Where
    classes overlap, it can turn: mistaken targets pull the class means to them, score
    higher for it, and bring their neighbours. It shows without labels in the share of
    unknowns that each step's scores speak for: it runs away from what the steps
    agreed on. So the latest step counts whose own estimate lies within `band` of
    the median of all steps.

    Parameters
    ----------
    band : float
        How far from the median an estimate may be; 1 keeps the last step always.
    early : bool
        Stop after two steps in a row outside of the band.
    """

    def __init__(self, band: float, early: bool = False) -> None:
        self.band, self.early = band, early
        self.estimates: list[float] = []

    def add(self, estimate: float) -> None:
        """Take in the share of unknowns that the next step's scores speak for."""
        self.estimates.append(estimate)

    @property
    def should_stop(self) -> bool:
        """Whether the steps have left the band for good."""
        return self.early and len(self.estimates) > 2 and not self._stable()[-2:].any()

    def kept(self) -> KeptStep:
        """Return the step to keep, of those so far."""
        steps = len(self.estimates)
        step = int(np.flatnonzero(self._stable())[-1]) + 1
        if self.band >= 1 or steps == 1:
            return KeptStep(step, steps, "the last step")
        if step == steps:
            return KeptStep(step, steps, "the last step: its estimate agrees with the others'")
        median, last = np.median(self.estimates), self.estimates[-1]
        return KeptStep(
            step,
            steps,
            f"the last stable step: later ones speak for other shares of unknowns "
            f"({last:.2f} at the end) than the steps together ({median:.2f})",
        )

    def _stable(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        estimates = np.asarray(self.estimates)
        # With an even number the median lies between two: the nearest are always stable.
        apart = np.abs(estimates - np.median(estimates))
        return np.asarray(apart <= max(self.band, float(apart.min())) + 1e-9)
