"""No adaptation: a classifier trained on the source, its least confident targets rejected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import Normalizer

from opensetda.base import OpenSetClassifier, Scores
from opensetda.held_out import softmax_without_nearest
from opensetda.openness import OpennessTracker
from opensetda.rows import FloatArray, IntArray, Rows


class SourceOnly(OpenSetClassifier):
    """Logistic regression on L2-normalised source rows; the least confident targets are unknown.

    Parameters
    ----------
    openness : float or "auto", default="auto"
        Share of the target that is unknown, in [0, 1); "auto" estimates it, without labels.
    C : float, default=10.0
        Inverse strength of the regression's regularisation.
    unknown_label : default="unknown"
        What unknowns are called.
    """

    def __init__(
        self, openness: float | str = "auto", C: float = 10.0, unknown_label: Any = "unknown"
    ) -> None:
        self.openness = openness
        self.C = C
        self.unknown_label = unknown_label

    def _fit_domains(
        self, source: Rows, y: IntArray, target: Rows, openness: OpennessTracker
    ) -> Scores:
        rows = np.concatenate([chunk for _, chunk in source.chunks()])
        self.regression_ = LogisticRegression(C=self.C, max_iter=1000)
        self.regression_.fit(Normalizer().transform(rows), y)
        if not len(target):
            return self._score_rows(rows)
        parts = [self._score_rows(chunk) for _, chunk in target.chunks()]
        scores = Scores(*(np.concatenate(part) for part in zip(*parts, strict=True)))
        self.history_.append({"step": 1, "mean_score": float(scores.known.mean())})
        return scores

    def _score_rows(self, X: FloatArray) -> Scores:
        unit = Normalizer().transform(X.astype(np.float64))
        decision = self.regression_.decision_function(unit)
        logits = decision if decision.ndim == 2 else np.column_stack([-decision, decision]) / 2
        known = self.regression_.predict_proba(unit).max(axis=1)
        return Scores(logits, known, softmax_without_nearest(logits))

    def _fitted_state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        return {}, {"coef": self.regression_.coef_, "intercept": self.regression_.intercept_}

    def _restore_fitted_state(
        self, values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        self.regression_ = LogisticRegression(C=self.C, max_iter=1000)
        self.regression_.classes_ = np.arange(len(self.classes_))
        self.regression_.n_features_in_ = self.n_features_in_
        self.regression_.coef_ = arrays["coef"]
        self.regression_.intercept_ = arrays["intercept"]
