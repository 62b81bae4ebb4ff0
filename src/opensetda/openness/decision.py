"""The scores of samples, and the decision between known and unknown."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax

from opensetda.rows import IntArray

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class Scores(NamedTuple):
    """The scores of n samples."""

    classes: Matrix
    """Logits of the known classes: (n, C)."""
    known: Vector
    """Confidence that the sample is of a known class."""

    @property
    def nearest(self) -> IntArray:
        """The class of each sample, if it is known."""
        return np.asarray(self.classes.argmax(axis=1))


class Rejection(NamedTuple):
    """A sample whose known score lies below `threshold` is unknown.

    The probability of unknown is 1/2 there, and its logit falls with `slope`.
    """

    threshold: float
    slope: float

    def labels(self, known: Vector, nearest: IntArray, n_classes: int) -> IntArray:
        """Return the nearest class, or `n_classes` for unknown: (n,), (n,) -> (n,)."""
        return np.where(known < self.threshold, n_classes, nearest)

    def probability(self, known: Vector) -> Vector:
        """Return the probability of unknown: (n,) -> (n,)."""
        if not np.isfinite(self.threshold):
            return np.zeros(len(known))
        return np.asarray(expit(self.slope * (self.threshold - known)))

    def probabilities(self, scores: Scores) -> Matrix:
        """Return the probabilities of the classes, then of unknown: (n, C + 1)."""
        unknown = self.probability(scores.known)
        classes = softmax(scores.classes, axis=1) * (1 - unknown)[:, None]
        return np.column_stack([classes, unknown])
