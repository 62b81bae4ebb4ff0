"""No adaptation: a classifier trained on the source, and a rejector."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import Normalizer

from opensetda.base import Scores
from opensetda.baselines.shared import rival
from opensetda.context import FitContext
from opensetda.openness.tracker import OpennessTracker
from opensetda.rows import FloatArray, moderate_rows


@dataclass(eq=False, repr=False, kw_only=True)
class SourceOnly(rival.RejectingRival):
    """Logistic regression on L2-normalised source rows; the least confident targets are unknown.

    The rejectors "osnn" and "osvm" are classifiers themselves and replace the regression.

    The other parameters are those of `RejectingRival`; the default of `rejector` is "quantile".

    Parameters
    ----------
    C : float, default=10.0
        Inverse strength of the regression's regularisation.
    """

    C: float = rival.checked(10.0, rival.POSITIVE_OR_INFINITE)
    rejector: str = "quantile"

    def _adapt(
        self, domains: rival.Domains, openness: OpennessTracker, context: FitContext
    ) -> Scores:
        rows = np.concatenate([chunk for _, chunk in domains.source.chunks()])
        unit = Normalizer().transform(moderate_rows(rows))
        self._fit_rejector(unit, domains.y)
        if self.rejector_.needs_logits:
            regression = LogisticRegression(C=self.C, max_iter=1000).fit(unit, domains.y)
            self.coef_, self.intercept_ = regression.coef_, regression.intercept_
        scores = rival.join_scores(self._score_rows(chunk) for _, chunk in domains.target.chunks())
        if len(domains.target):
            self.history_.append({"step": 1, "mean_score": float(scores.known.mean())})
        return scores

    def _score_rows(self, X: FloatArray) -> Scores:
        unit = Normalizer().transform(moderate_rows(X.astype(np.float64)))
        logits = np.zeros((len(unit), len(self.classes_)))
        if self.rejector_.needs_logits:
            logits = unit @ self.coef_.T + self.intercept_
            if len(self.coef_) == 1:
                logits = np.column_stack([-logits, logits]) / 2
        return self.rejector_.scores(unit, logits)

    def _saved(self) -> tuple[str, ...]:
        return ("coef_", "intercept_") if self.rejector_.needs_logits else ()
