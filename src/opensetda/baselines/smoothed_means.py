"""The simple rival of the graph: rows smoothed by their neighbours, and moving class means."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

from sklearn.utils._param_validation import Interval

from opensetda.base import SCORED_ROWS, Scores
from opensetda.baselines.shared.moving_means import Matrix, Moves, MovingMeans
from opensetda.baselines.shared.rival import (
    COUNT,
    NO_SCORES,
    AlignedRival,
    Domains,
    checked,
    join_scores,
)
from opensetda.context import FitContext
from opensetda.nn.alignment import Alignment
from opensetda.nn.settings import AlignmentSettings
from opensetda.openness.smoothing import move_to_neighbours
from opensetda.openness.tracker import OpennessTracker
from opensetda.rejection.base import Vector
from opensetda.rows import FloatArray, Rows

SHARE = Interval(Real, 0, 1, closed="both")

# Rows that later samples find their neighbours among.
STORED_ROWS = 2048


@dataclass(eq=False, repr=False, kw_only=True)
class SmoothedMeans(MovingMeans, AlignedRival):
    r"""Class means of rows that are smoothed by their neighbours; no network, no training.

    Rows are aligned as for PGL (`opensetda.nn.alignment`). Every row x then moves towards its
    nearest rows N(x) of its own domain, by the cosine,

    .. math::
        z = \operatorname{unit}\Big((1 - w)\, x
            + w \operatorname{unit}\big(\textstyle\sum_{x' \in N(x)} x'\big)\Big),

    where rows that are equal to x do not count. The mean of class c starts as the source's,
    and at step m of M it is

    .. math::
        \mu_c = \operatorname{unit}\Big(\big(1 - v \tfrac{m}{M}\big)\, \mu_c^s
            + v \tfrac{m}{M}\, \mu_c^t\Big)

    with :math:`\mu_c^t` the unit mean of the targets that are pseudo-labelled c
    (`opensetda.pgl.pseudo_labels`, progress m/M). A sample's score is its cosine to the nearest
    class mean. Later samples have their neighbours among the first 2,048 targets.

    The other parameters are those of `Rival`.

    Parameters
    ----------
    steps : int, default=10
        M, how often the means move; targets are scored before each move and after the last.
    neighbours : int, default=10
        The number of nearest rows.
    message : float, default=0.5
        w, how far a row moves towards the mean of its neighbours.
    move : float, default=0.5
        v, how far the class means move towards the targets.
    class_balance : float, default=0.5
        0 ranks the confidence of targets over all classes, 1 within each class.

    Attributes
    ----------
    step_labels_ : array of int of shape (steps + 1, n_targets)
        The label of every target at every scoring, as an index into `classes_`; C is unknown.
    """

    steps: int = checked(10, COUNT)
    neighbours: int = checked(10, COUNT)
    message: float = checked(0.5, SHARE)
    move: float = checked(0.5, SHARE)
    class_balance: float = checked(0.5, SHARE)

    alignment_settings: ClassVar[AlignmentSettings] = AlignmentSettings()

    def _adapt(self, domains: Domains, openness: OpennessTracker, context: FitContext) -> Scores:
        source, y, target = domains
        self._alignment = Alignment(self.alignment_settings).fit(source, target)
        source_rows = self._alignment.source(source)
        source_unit = self._smooth(source_rows, source_rows)
        if not len(target):
            self.rows_ = source_rows[:STORED_ROWS]
            self._start_at_source(source_unit, y)
            return NO_SCORES
        target_rows = self._alignment.target(target)
        # A copy: a view would keep all rows in memory.
        self.rows_ = target_rows[:STORED_ROWS].copy()
        units = (source_unit, self._smooth(target_rows, target_rows))
        progress = [step / self.steps for step in range(self.steps + 1)]
        moves = Moves(progress, self.move, self.class_balance)
        return self._move_to_targets(units, domains, moves, openness, context)

    def _smooth(self, rows: FloatArray, others: FloatArray) -> Matrix:
        return move_to_neighbours(rows, others, self.neighbours, self.message)

    def _known_as_later(self, target: Rows, known_score: Vector) -> Vector:
        parts = target.first(STORED_ROWS).chunks(SCORED_ROWS)
        return join_scores(self._score_rows(part) for _, part in parts).known

    def _score_rows(self, X: FloatArray) -> Scores:
        return self._compare(self._smooth(self._alignment.later(X), self.rows_))

    def _saved(self) -> tuple[str, ...]:
        return "rows_", "means_"
