"""Can these features tell the classes apart across the two domains? A diagnosis without labels."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from opensetda.rows import FloatArray, IntArray, unit_rows

NEIGHBOURS = 10
# Below, the answer is no.
TOLD_APART = 0.75
AGREED = 0.7


@dataclass(frozen=True)
class Separation:
    """Three figures from 0 to 1, of which each may be the reason for bad labels."""

    accuracy: float
    """The accuracy of the nearest class mean on the source, each row held out in turn."""
    mixing: float
    """Source rows among the neighbours of targets, over those among rows drawn at random."""
    agreement: float
    """How many members agree with a label, on average."""

    @property
    def sentence(self) -> str:
        """The answer, and what to do."""
        told = f"{self.accuracy:.0%} of the source rows are nearest to their own class"
        alike = f"members agree on {self.agreement:.0%} of the labels"
        figures = f"{told}, {alike}, domains mix to {self.mixing:.0%}"
        if self.accuracy < TOLD_APART:
            return f"features hardly separate the classes of the source ({figures}): {ADVICE}"
        if self.agreement < AGREED:
            return f"features hardly separate the classes of the target ({figures}): {ADVICE}"
        return f"features separate the classes across the domains ({figures})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {**asdict(self), "sentence": self.sentence}


ADVICE = "try another backbone or other columns, or mark targets"


def held_out_accuracy(rows: FloatArray, y: IntArray) -> float | None:
    """Return the accuracy of the nearest class mean, of which no row is part; classes count alike.

    None if no class has several rows.
    """
    sums = np.stack([rows[y == label].sum(axis=0) for label in range(int(y.max()) + 1)])
    cosine = rows @ unit_rows(sums).T
    cosine[np.arange(len(y)), y] = (rows * unit_rows(sums[y] - rows)).sum(axis=1)
    right = cosine.argmax(axis=1) == y
    several = np.flatnonzero(np.bincount(y) > 1)
    return float(np.mean([right[y == label].mean() for label in several])) if len(several) else None


def mixing(source: FloatArray, target: FloatArray) -> float:
    """Return how far aligned rows of the domains mix: 0 apart, 1 as if drawn from one."""
    both = np.concatenate([source, target])
    cosine = target @ both.T
    own = np.arange(len(target))
    cosine[own, len(source) + own] = -np.inf
    count = min(NEIGHBOURS, len(both) - 1)
    nearest = np.argpartition(-cosine, count - 1, axis=1)[:, :count]
    return min(float((nearest < len(source)).mean()) * len(both) / len(source), 1.0)
