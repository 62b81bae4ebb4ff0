"""The contract of every rejector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from opensetda.base import Scores
from opensetda.rows import FloatArray, IntArray

Matrix = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]
State = tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]
Saved = Mapping[str, Any]


class Rejector(ABC):
    """Scores how likely samples are of a known class, and may have a boundary of its own."""

    needs_logits: ClassVar[bool] = True
    """Whether `scores` uses the logits of a classifier. If not, none needs to be trained."""

    @abstractmethod
    def fit(self, features: FloatArray, y: IntArray, n_classes: int) -> None:
        """Learn from adapted source rows (n, d) in canonical order and their class indices."""

    @abstractmethod
    def scores(self, features: FloatArray, logits: Matrix) -> Scores:
        """Score adapted rows (m, d), each on its own, with a classifier's logits (m, C).

        A rejector that is a classifier itself returns class scores of its own.
        """

    def own_cut(self, scores: Scores) -> float | None:
        """Return the known score below which a sample is unknown, given the targets' scores.

        None if there is no boundary: then the share of unknowns decides.
        """
        return None

    def state(self) -> State:
        """Return what `scores` needs: JSON-safe values, and arrays (none of objects)."""
        return {}, {}

    def restore(self, values: Saved, arrays: Saved) -> None:
        """Set what `scores` needs from what `state` returned; a missing key is a `KeyError`."""
        return
