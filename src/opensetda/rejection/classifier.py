"""The part of a method that a rejector plays, for the methods that are combined with one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from opensetda.base import OpenSetClassifier, Scores
from opensetda.rejection import make_rejector
from opensetda.rejection.base import Arrays, Matrix
from opensetda.rows import FloatArray, IntArray

PREFIX = "rejector."


class RejectingClassifier(OpenSetClassifier):
    """Base of the methods that adapt features and leave the unknowns to a rejector.

    A subclass has a parameter `rejector`, a name of `opensetda.rejection.REJECTORS`. It calls
    `_fit_rejector` once the source is adapted, and makes its scores by `_rejected_scores`. Told
    a share of unknowns, the rejector only ranks; not told, its own boundary is used.

    Attributes
    ----------
    rejector_ : Rejector
        What has been learned.
    """

    rejector: str

    def _fit_rejector(self, features: FloatArray, y: IntArray) -> None:
        """Learn from adapted source rows (n, d) in canonical order, and their class indices."""
        self.rejector_ = make_rejector(self.rejector)
        self.rejector_.fit(features, y, len(self.classes_))

    def _rejected_scores(self, features: FloatArray, logits: Matrix) -> Scores:
        """Score adapted rows (m, d) with a classifier's logits (m, C)."""
        return self.rejector_.scores(features, logits)

    def _own_cut(self, scores: Scores) -> float | None:
        return self.rejector_.own_cut(scores)

    def _rejector_state(self) -> tuple[dict[str, Any], Arrays]:
        """Return the rejector's values and arrays, for `_fitted_state`."""
        values, arrays = self.rejector_.state()
        return (
            {PREFIX + name: value for name, value in values.items()},
            {PREFIX + name: array for name, array in arrays.items()},
        )

    def _restore_rejector(
        self, values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """Restore the rejector from what `_rejector_state` returned."""
        self.rejector_ = make_rejector(self.rejector)
        self.rejector_.restore(_own(values), _own(arrays))


def _own(saved: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name.removeprefix(PREFIX): value for name, value in saved.items() if name.startswith(PREFIX)
    }
