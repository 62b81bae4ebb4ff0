"""Compare quick methods on a labelled source and a target without labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.methods.base import OpenSetClassifier
from opensetda.methods.committee import MEMBER_ROWS, Committee, seats_for
from opensetda.metrics.open_set import evaluate
from opensetda.runs.registry import method_name
from opensetda.usecases.fit_rows import read_rows_of

HIDDEN_CLASSES = 3  # of the source, on which methods are compared without labels of the target


@dataclass(frozen=True)
class ComparedMethod:
    """A method on data without labels of the target."""

    method: str
    scaling: str
    unknown: float
    """The share of targets that it calls unknown."""
    agreement: float
    """The share of targets that another method, on average, labels alike."""
    hidden_hos: float
    """The mean HOS on parts of the source in which a class was hidden; NaN with two classes."""
    hidden_error: float
    """The standard error of that mean."""
    hidden_scores: tuple[float, ...] = ()
    """Each of them: the same parts for every method."""


def compare_methods(
    X: npt.NDArray[Any],
    y: npt.NDArray[Any],
    target: npt.NDArray[Any],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[ComparedMethod]:
    """Compare the committee and its members; rows of source and target, classes of the source."""
    domains = read_rows_of(X, y, target).sample(MEMBER_ROWS)
    methods: list[OpenSetClassifier] = [Committee()]
    methods += [seat.method(scaling=seat.scaling) for seat in seats_for(domains.n_classes)]
    given: list[npt.NDArray[Any]] = []
    for done, method in enumerate(methods, start=1):
        method.fit_domains(domains)
        given.append(method.transduction_)
        progress(done, 2 * len(methods))
    labels = np.stack(given)
    alike = (labels[:, None] == labels[None]).mean(axis=2)
    compared = []
    for place, method in enumerate(methods):
        scores = _hidden_hos(X, y, method)
        n_scores = max(int(np.isfinite(scores).sum()), 1)
        compared.append(
            ComparedMethod(
                method=method_name(method),
                scaling=method.scaling,
                unknown=float((labels[place] == method.unknown_label).mean()),
                agreement=float((alike[place].sum() - 1) / (len(methods) - 1)),
                hidden_hos=float(np.nanmean(scores)) if len(scores) else float("nan"),
                hidden_error=float(np.nanstd(scores) / np.sqrt(n_scores)) if len(scores) else 0.0,
                hidden_scores=tuple(scores),
            )
        )
        progress(len(methods) + place + 1, 2 * len(methods))
    return compared


def clear_winner(compared: list[ComparedMethod]) -> ComparedMethod | None:
    """Return the method that beats every other one, by more than the noise; None without one.

    The same classes are hidden from all methods: the noise is that of the differences, and none of
    them may be negative.
    """
    best = max(compared, key=lambda row: np.nan_to_num(row.hidden_hos, nan=-1.0))
    for other in compared:
        if other is best:
            continue
        if len(best.hidden_scores) < HIDDEN_CLASSES:
            return None
        if len(other.hidden_scores) < HIDDEN_CLASSES:
            return None
        apart = np.subtract(best.hidden_scores, other.hidden_scores)
        if not (apart >= 0).all():
            return None
        if apart.mean() <= 2 * apart.std(ddof=1) / np.sqrt(len(apart)):
            return None
    return best


def _hidden_hos(X: npt.NDArray[Any], y: npt.NDArray[Any], method: OpenSetClassifier) -> list[float]:
    """Hide some classes in turn: half of the other rows are the source, the rest the target."""
    names = np.unique(y)
    if len(names) < 3:
        return []
    rng = np.random.default_rng(0)
    scores: list[float] = []
    for hidden in rng.permutation(names)[:HIDDEN_CLASSES]:
        rows = rng.permutation(len(y))[:MEMBER_ROWS]
        # Every class has a row in the source.
        first = np.concatenate([rows[::2], [np.flatnonzero(y == name)[0] for name in names]])
        first = first[y[first] != hidden]
        second = rows[1::2]
        share = float((y[second] == hidden).mean())
        domains = read_rows_of(X[first], y[first], X[second])
        fitted = type(method)(share, scaling=method.scaling).fit_domains(domains)
        scores.append(evaluate(y[second], fitted.transduction_, fitted.classes_).hos)
    return scores
