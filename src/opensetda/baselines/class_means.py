"""The simple rival: class means that move to the target step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.base import Scores
from opensetda.baselines.shared.rival import COUNT, NO_SCORES, Domains, Rival, checked
from opensetda.context import FitContext
from opensetda.openness.held_out import cosine_without_nearest
from opensetda.openness.tracker import OpennessTracker
from opensetda.pgl.pseudo_labels import rank_pseudo_labels
from opensetda.rejection.base import Vector
from opensetda.rows import FloatArray, IntArray, Rows, unit_rows

Matrix = npt.NDArray[np.float32]

# Cosines of neighbouring classes differ by a few hundredths: as logits they need a scale.
COSINE_SCALE = 16.0


@dataclass(eq=False, repr=False, kw_only=True)
class ProgressiveClassMeans(Rival):
    """Cosine to class means that move from the source to the most confident targets.

    Rows are L2-normalised, each domain is centred on its own mean, and rows are normalised again.
    A sample's score is its cosine to the nearest class mean. At step m of M the mean of a class
    lies m/M of the way from its source mean to the mean of those of the most confident
    (1 - openness) (m/M) n_t targets that were assigned to it. At the end the openness * n_t
    targets of the lowest scores are unknown.

    The other parameters are those of `Rival`; "auto" estimates the openness at every step.

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
        source, y, target = domains
        n_classes = len(self.classes_)
        centre, source_unit = _centre_and_normalise(source)
        source_sums = _class_sums(source_unit, y, n_classes)
        source_counts = np.bincount(y, minlength=n_classes).astype(np.float64)
        source_means = unit_rows(source_sums)
        self.centre_, self.means_ = centre, source_means
        if not len(target):
            return NO_SCORES
        self.centre_, target_unit = _centre_and_normalise(target)
        target_means, moved = source_means, 0.0
        step_labels = []
        for step in range(self.steps):
            similarity = target_unit @ self.means_.T
            hidden = (target_unit, similarity.argmax(axis=1), source_sums, source_counts)
            held_out = cosine_without_nearest(*hidden, target_means, np.full(n_classes, moved))
            scores = self._scores(similarity, held_out)
            share = openness.update(scores.known, scores.held_out, scores.nearest)
            ranked = (scores.known, scores.nearest, share)
            step_labels.append(rank_pseudo_labels(*ranked, 1.0, n_classes))
            entry = {"openness": share, "openness_estimate": openness.estimates[-1]}
            self._finish_step(scores.known, context, self.steps, **entry)
            if step + 1 < self.steps:
                moved = (step + 1) / self.steps
                labels = rank_pseudo_labels(*ranked, moved, n_classes)
                sums = _class_sums(target_unit, labels, n_classes)
                # A class without a target keeps its source mean.
                found = np.bincount(labels[labels >= 0], minlength=n_classes)[:n_classes] > 0
                target_means = np.where(found[:, None], unit_rows(sums), source_means)
                self.means_ = unit_rows((1 - moved) * source_means + moved * target_means)
        self.step_labels_ = np.stack(step_labels)[:, np.argsort(target.index)]
        return scores

    def _score_rows(self, X: FloatArray) -> Scores:
        unit = unit_rows(unit_rows(X.astype(np.float64)) - self.centre_)
        return self._scores(unit @ self.means_.T.astype(np.float64))

    def _saved(self) -> tuple[str, ...]:
        return "centre_", "means_"

    def _scores(self, similarity: npt.NDArray[Any], held_out: Vector | None = None) -> Scores:
        similarity = similarity.astype(np.float64)
        if held_out is None:
            held_out = np.full(len(similarity), np.nan)
        return Scores(similarity * COSINE_SCALE, similarity.max(axis=1), held_out)


def _centre_and_normalise(rows: Rows) -> tuple[Matrix, Matrix]:
    unit = np.empty((len(rows), rows.width), dtype=np.float32)
    for place, chunk in rows.chunks():
        unit[place] = unit_rows(chunk)
    centre = unit.mean(axis=0)
    return centre, unit_rows(unit - centre)


def _class_sums(unit: Matrix, labels: IntArray, n_classes: int) -> Matrix:
    """Sum of the rows of each class: (n, d) -> (C, d)."""
    sums = np.zeros((n_classes, unit.shape[1]), dtype=np.float32)
    for label in range(n_classes):
        sums[label] = unit[labels == label].sum(axis=0)
    return sums
