"""The simple rival: class means that move to the target step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.base import OpenSetClassifier, Scores
from opensetda.errors import InputError
from opensetda.pgl.alignment import unit_rows
from opensetda.pgl.pseudo_labels import rank_pseudo_labels
from opensetda.rows import FloatArray, IntArray, Rows

Matrix = npt.NDArray[np.float32]


class ProgressiveClassMeans(OpenSetClassifier):
    """Cosine to class means that move from the source to the surest targets.

    Rows are L2-normalised, each domain is centred on its own mean, and rows are
    normalised again. A sample's score is its cosine to the nearest class mean. At
    step m the mean of a class lies m/M of the way from its source mean to the
    mean of the surest (1 - openness) (m/M) n_t targets that were assigned to it. At the
    end the least similar openness * n_t targets are unknown.

    Parameters
    ----------
    openness : float, default=0.5
        Share of the target that is unknown, in [0, 1).
    steps : int, default=10
        M, the number of steps.
    unknown_label : default="unknown"
        What unknowns are called.

    Attributes
    ----------
    step_labels_ : array of int of shape (steps, n_targets)
        The label of every target at every step, as an index into `classes_`; C is unknown.
    """

    def __init__(
        self, openness: float = 0.5, steps: int = 10, unknown_label: Any = "unknown"
    ) -> None:
        self.openness = openness
        self.steps = steps
        self.unknown_label = unknown_label

    # Cosines of neighbouring classes differ by a few hundredths: as logits they need a scale.
    _margin_scale = 16.0

    def _fit_domains(self, source: Rows, y: IntArray, target: Rows) -> Scores:
        if self.steps < 1:
            raise InputError(f"steps={self.steps!r}: give a whole number above 0")
        n_classes = len(self.classes_)
        centre, source_unit = _centre_and_normalise(source)
        source_means = unit_rows(_class_means(source_unit, y, n_classes))
        self.centre_, self.means_ = centre, source_means
        similarity = source_unit @ self.means_.T
        if not len(target):
            return self._scores(similarity)
        self.centre_, target_unit = _centre_and_normalise(target)
        step_labels = []
        for step in range(self.steps):
            similarity = target_unit @ self.means_.T
            known_score = similarity.max(axis=1).astype(np.float64)
            ranked = (known_score, similarity.argmax(axis=1), self.openness_)
            step_labels.append(rank_pseudo_labels(*ranked, 1.0, n_classes))
            self.history_.append({"step": step + 1, "mean_score": float(known_score.mean())})
            if step + 1 < self.steps:
                moved = (step + 1) / self.steps
                labels = rank_pseudo_labels(*ranked, moved, n_classes)
                target_means = _class_means(target_unit, labels, n_classes, empty=source_means)
                self.means_ = unit_rows(
                    (1 - moved) * source_means + moved * unit_rows(target_means)
                )
        self.step_labels_ = np.stack(step_labels)[:, np.argsort(target.index)]
        return self._scores(similarity)

    def _score_rows(self, X: FloatArray) -> Scores:
        unit = unit_rows(unit_rows(X.astype(np.float64)) - self.centre_)
        similarity = unit @ self.means_.T.astype(np.float64)
        return self._scores(similarity)

    def _fitted_state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        return {}, {"centre": self.centre_, "means": self.means_}

    def _restore_fitted_state(
        self, values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        self.centre_, self.means_ = arrays["centre"], arrays["means"]

    def _scores(self, similarity: npt.NDArray[Any]) -> Scores:
        similarity = similarity.astype(np.float64)
        return Scores(similarity * self._margin_scale, similarity.max(axis=1))


def _centre_and_normalise(rows: Rows) -> tuple[Matrix, Matrix]:
    unit = np.empty((len(rows), rows.width), dtype=np.float32)
    for place, chunk in rows.chunks():
        unit[place] = unit_rows(chunk)
    centre = unit.mean(axis=0)
    return centre, unit_rows(unit - centre)


def _class_means(
    unit: Matrix, labels: IntArray, n_classes: int, empty: Matrix | None = None
) -> Matrix:
    """Mean row of each class; a class without a row keeps its row of `empty`."""
    means = np.zeros((n_classes, unit.shape[1]), dtype=np.float32)
    for label in range(n_classes):
        members = unit[labels == label]
        if len(members):
            means[label] = members.mean(axis=0)
        elif empty is not None:
            means[label] = empty[label]
    return means
