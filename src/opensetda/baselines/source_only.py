"""No adaptation: a classifier trained on the source, and a rejector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import Normalizer

from opensetda.base import Scores
from opensetda.context import FitContext
from opensetda.openness.tracker import OpennessTracker
from opensetda.rejection.classifier import RejectingClassifier
from opensetda.rows import FloatArray, IntArray, Rows


class SourceOnly(RejectingClassifier):
    """Logistic regression on L2-normalised source rows; the least confident targets are unknown.

    The rejectors "osnn" and "osvm" are classifiers themselves: with them there is no regression.

    Parameters
    ----------
    openness : float or "auto", default="auto"
        Share of the target that is unknown, in [0, 1); "auto" estimates it, without labels, or
        leaves it to the boundary of a rejector that has one.
    C : float, default=10.0
        Inverse strength of the regression's regularisation.
    rejector : str, default="quantile"
        Who says what is unknown: "quantile", "mixture", "osnn" or "osvm".
    unknown_label : default="unknown"
        What unknowns are called.
    """

    def __init__(
        self,
        openness: float | str = "auto",
        C: float = 10.0,
        rejector: str = "quantile",
        unknown_label: Any = "unknown",
    ) -> None:
        self.openness = openness
        self.C = C
        self.rejector = rejector
        self.unknown_label = unknown_label

    def _fit_domains(
        self,
        source: Rows,
        y: IntArray,
        target: Rows,
        openness: OpennessTracker,
        context: FitContext,
    ) -> Scores:
        rows = np.concatenate([chunk for _, chunk in source.chunks()])
        unit = Normalizer().transform(rows)
        self._fit_rejector(unit, y)
        if self.rejector_.needs_logits:
            self.regression_ = LogisticRegression(C=self.C, max_iter=1000)
            self.regression_.fit(unit, y)
        if not len(target):
            return self._score_rows(rows)
        parts = [self._score_rows(chunk) for _, chunk in target.chunks()]
        scores = Scores(*(np.concatenate(part) for part in zip(*parts, strict=True)))
        self.history_.append({"step": 1, "mean_score": float(scores.known.mean())})
        return scores

    def _score_rows(self, X: FloatArray) -> Scores:
        unit = Normalizer().transform(X.astype(np.float64))
        logits = np.zeros((len(unit), len(self.classes_)))
        if self.rejector_.needs_logits:
            decision = self.regression_.decision_function(unit)
            logits = decision if decision.ndim == 2 else np.column_stack([-decision, decision]) / 2
        return self._rejected_scores(unit, logits)

    def _fitted_state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        values, arrays = self._rejector_state()
        if self.rejector_.needs_logits:
            arrays["coef"], arrays["intercept"] = (
                self.regression_.coef_,
                self.regression_.intercept_,
            )
        return values, arrays

    def _restore_fitted_state(
        self, values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        self._restore_rejector(values, arrays)
        if self.rejector_.needs_logits:
            self.regression_ = LogisticRegression(C=self.C, max_iter=1000)
            self.regression_.classes_ = np.arange(len(self.classes_))
            self.regression_.n_features_in_ = self.n_features_in_
            self.regression_.coef_ = arrays["coef"]
            self.regression_.intercept_ = arrays["intercept"]
