"""The simple rival: class means that move to the target step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opensetda.base import Scores
from opensetda.baselines.shared.moving_means import Matrix, Moves, MovingMeans
from opensetda.baselines.shared.rival import COUNT, NO_SCORES, Domains, checked
from opensetda.context import FitContext
from opensetda.openness.tracker import OpennessTracker
from opensetda.rows import FloatArray, Rows, unit_rows


@dataclass(eq=False, repr=False, kw_only=True)
class ProgressiveClassMeans(MovingMeans):
    """Cosine to class means that move from the source to the most confident targets.

    Rows are L2-normalised, each domain is centred on its own mean, and rows are normalised again.
    A sample's score is its cosine to the nearest class mean. At step m of M the mean of a class
    lies m/M of the way from its source mean to the mean of those of the most confident
    (1 - openness) (m/M) n_t targets that were assigned to it. At the end the openness * n_t
    targets of the lowest scores are unknown.

    The other parameters are those of `Rival`.

    Parameters
    ----------
    steps : int, default=10
        M, the number of steps.

    Attributes
    ----------
    step_labels_ : array of int of shape (steps, n_targets)
        The label of every target at every step, as an index into `classes_`; C is unknown.
    """

    steps: int = checked(10, COUNT)

    def _adapt(self, domains: Domains, openness: OpennessTracker, context: FitContext) -> Scores:
        self.centre_, source_unit = _centre_and_normalise(domains.source)
        if not len(domains.target):
            self._start_at_source(source_unit, domains.y)
            return NO_SCORES
        self.centre_, target_unit = _centre_and_normalise(domains.target)
        moves = Moves([step / self.steps for step in range(self.steps)])
        units = (source_unit, target_unit)
        return self._move_to_targets(units, domains, moves, openness, context)

    def _score_rows(self, X: FloatArray) -> Scores:
        return self._compare(unit_rows(unit_rows(X.astype(np.float64)) - self.centre_))

    def _saved(self) -> tuple[str, ...]:
        return "centre_", "means_"


def _centre_and_normalise(rows: Rows) -> tuple[Matrix, Matrix]:
    unit = np.empty((len(rows), rows.width), dtype=np.float32)
    for place, chunk in rows.chunks():
        unit[place] = unit_rows(chunk)
    centre = unit.mean(axis=0)
    return centre, unit_rows(unit - centre)
