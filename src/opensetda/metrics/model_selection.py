"""For searches of scikit-learn and skada: a score, and folds that keep the source whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from sklearn.model_selection import BaseCrossValidator, KFold

from opensetda.errors import InputError
from opensetda.metrics.open_set import evaluate
from opensetda.rows import IntArray, split_domains

# Where meta-estimators of scikit-learn and skada keep the classifier that they fitted.
_INNER = ("best_estimator_", "base_estimator_", "estimator_", "final_estimator_")


def hos_scorer(estimator: Any, X: Any, y: Any) -> float:
    """Return HOS of a fitted classifier on samples with true labels: ``scoring=hos_scorer``.

    `estimator` is a classifier of this package, or a pipeline or search (scikit-learn's or
    skada's) that ends with one. A label outside its ``classes_`` counts as unknown. Score target
    rows only, as `TargetKFold` gives them: without a known or an unknown sample HOS is NaN.
    """
    classifier = estimator
    while not hasattr(classifier, "unknown_label"):
        inner = [getattr(classifier, name) for name in _INNER if hasattr(classifier, name)]
        if hasattr(classifier, "steps"):
            inner = [classifier.steps[-1][1]]
        if not inner:
            kind = type(classifier).__name__
            raise InputError(f"hos_scorer: {kind} has no unknown_label; give a classifier that has")
        classifier = inner[0]
    known, unknown = classifier.classes_, classifier.unknown_label
    return evaluate(y, estimator.predict(X), known, unknown_label=unknown).hos


class TargetKFold(BaseCrossValidator):  # type: ignore[misc]
    """Folds of the target; all source rows are in every training part.

    Each target row is in one test part, and in the training part, as a target, of all other
    folds. No fold depends on labels: `y` is not read.

    With metadata routing (``sklearn.set_config(enable_metadata_routing=True)``, which skada turns
    on) a search passes `sample_domain` by itself. Without routing, give the search the folds:
    ``cv=[*TargetKFold(5).split(X, y, sample_domain)]``.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds, at least 2.
    random_state : int, RandomState or None, default=0
        Seed of the order in which targets are dealt out to the folds.
    """

    __metadata_request__split: ClassVar = {"sample_domain": True}

    def __init__(self, n_splits: int = 5, random_state: Any = 0) -> None:
        self.n_splits, self.random_state = n_splits, random_state

    def get_n_splits(self, *ignored: Any, **also_ignored: Any) -> int:
        """Return the number of folds; searches pass what they pass to `split`."""
        return self.n_splits

    def split(
        self, X: Any, y: Any = None, sample_domain: Any = None, groups: Any = None
    ) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield the rows to train with and those to test with; `y` and `groups` are ignored."""
        n_rows = X.shape[0] if hasattr(X, "shape") else len(X)
        _, target = split_domains(sample_domain, n_rows)
        if not len(target):
            advice = "enable metadata routing, or pass cv=[*TargetKFold().split(X, y, domain)]"
            raise InputError(f"TargetKFold: sample_domain has no target row; {advice}")
        folds = KFold(self.n_splits, shuffle=True, random_state=self.random_state)
        for _, places in folds.split(target):
            tested = np.sort(target[places])
            yield np.setdiff1d(np.arange(n_rows), tested), tested
