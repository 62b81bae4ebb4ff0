"""Class means that move from the source to the most confident targets, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.base import Scores
from opensetda.baselines.shared.rival import Domains, Rival
from opensetda.context import FitContext
from opensetda.openness.held_out import cosine_without_nearest
from opensetda.openness.tracker import OpennessTracker
from opensetda.pgl.pseudo_labels import rank_pseudo_labels
from opensetda.rejection.base import Vector
from opensetda.rows import FloatArray, IntArray, unit_rows

Matrix = npt.NDArray[np.float32]

# Cosines of neighbouring classes differ by a few hundredths: as logits they need a scale.
COSINE_SCALE = 16.0


@dataclass(frozen=True)
class Moves:
    """How the class means move."""

    progress: Sequence[float]
    """Share of the targets that have pseudo-labels, at each scoring of the targets; first 0."""
    reach: float = 1.0
    """How far the means are from the source when all targets have pseudo-labels; 1 leaves it."""
    class_balance: float = 0.0
    """See `rank_pseudo_labels`."""


@dataclass(eq=False, repr=False, kw_only=True)
class MovingMeans(Rival):
    """Base of the rivals that compare unit rows with class means `means_`, by the cosine."""

    def _start_at_source(self, source_unit: FloatArray, y: IntArray) -> None:
        self.means_ = unit_rows(class_sums(source_unit, y, len(self.classes_)))

    def _move_to_targets(
        self,
        units: tuple[Matrix, Matrix],
        domains: Domains,
        moves: Moves,
        openness: OpennessTracker,
        context: FitContext,
    ) -> Scores:
        """Move the means, and return the scores of the targets; `units` are unit rows of both."""
        source_unit, target_unit = units
        n_classes, n_steps = len(self.classes_), len(moves.progress)
        source_sums = class_sums(source_unit, domains.y, n_classes)
        source_counts = np.bincount(domains.y, minlength=n_classes).astype(np.float64)
        source_means = target_means = self.means_ = unit_rows(source_sums)
        moved, step_labels = 0.0, []
        for step in range(n_steps):
            similarity = target_unit @ self.means_.T
            hidden = (target_unit, similarity.argmax(axis=1), source_sums, source_counts)
            held_out = cosine_without_nearest(*hidden, target_means, np.full(n_classes, moved))
            scores = cosine_scores(similarity, held_out)
            share = openness.update(scores.known, scores.held_out)
            ranked = (scores.known, scores.nearest, share)
            step_labels.append(rank_pseudo_labels(*ranked, 1.0, n_classes))
            entry = {"openness": share, "openness_estimate": openness.estimates[-1]}
            self._finish_step(scores.known, context, n_steps, **entry)
            if step + 1 < n_steps:
                progress = moves.progress[step + 1]
                labels = rank_pseudo_labels(*ranked, progress, n_classes, moves.class_balance)
                target_means = _means(target_unit, labels, source_means)
                moved = moves.reach * progress
                self.means_ = unit_rows((1 - moved) * source_means + moved * target_means)
        self.step_labels_ = np.stack(step_labels)[:, np.argsort(domains.target.index)]
        return scores

    def _compare(self, unit: FloatArray) -> Scores:
        """Score later samples, unit rows in double precision."""
        return cosine_scores(unit @ self.means_.T.astype(np.float64))


def cosine_scores(similarity: npt.NDArray[Any], held_out: Vector | None = None) -> Scores:
    """Return scores from cosines to the class means: (n, C)."""
    similarity = similarity.astype(np.float64)
    if held_out is None:
        held_out = np.full(len(similarity), np.nan)
    return Scores(similarity * COSINE_SCALE, similarity.max(axis=1), held_out)


def class_sums(unit: FloatArray, labels: IntArray, n_classes: int) -> Matrix:
    """Sum of the rows of each class: (n, d) -> (C, d)."""
    sums = np.zeros((n_classes, unit.shape[1]), dtype=np.float32)
    for label in range(n_classes):
        sums[label] = unit[labels == label].sum(axis=0)
    return sums


def _means(unit: Matrix, labels: IntArray, source_means: FloatArray) -> FloatArray:
    """Return unit means of labelled rows (C, d); a class without a row keeps its source mean."""
    n_classes = len(source_means)
    found = np.bincount(labels[labels >= 0], minlength=n_classes)[:n_classes] > 0
    sums = class_sums(unit, labels, n_classes)
    return np.where(found[:, None], unit_rows(sums), source_means)
