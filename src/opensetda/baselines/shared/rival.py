"""Bases of the rivals: parameters declared once, checked in one place, and saved by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions

from opensetda.base import OpenSetClassifier, Scores
from opensetda.context import FitContext
from opensetda.errors import InputError
from opensetda.nn.alignment import Alignment
from opensetda.nn.settings import AlignmentSettings
from opensetda.openness.tracker import OpennessTracker
from opensetda.progress import finish_step
from opensetda.rejection import REJECTORS, make_rejector
from opensetda.rows import FloatArray, IntArray, Rows

Arrays = dict[str, npt.NDArray[Any]]
State = tuple[dict[str, Any], Arrays]
Constraints = dict[str, list[Any]]

# For `_parameter_constraints`.
COUNT = [Interval(Integral, 1, None, closed="left")]
POSITIVE = [Interval(Real, 0, None, closed="neither")]
NON_NEGATIVE = [Interval(Real, 0, None, closed="left")]

ALIGNMENT = AlignmentSettings(normalise=True, centring="own", components=256, whitening=0.0)
"""Rows of unit length, each domain centred on its own mean, turned onto 256 components."""

REJECTOR_PREFIX = "rejector."

NO_SCORES = Scores(np.zeros((0, 0)), np.zeros(0), np.zeros(0))
"""The scores of no targets."""


class Domains(NamedTuple):
    """Source rows with class indices y, and target rows (perhaps none), in canonical order."""

    source: Rows
    y: IntArray
    target: Rows


@dataclass(eq=False, repr=False, kw_only=True)
class Rival(OpenSetClassifier):
    """Base of all rivals: a dataclass whose fields are its parameters.

    A subclass declares its own parameters and changed defaults as fields, lists what values are
    allowed in `_parameter_constraints`, as scikit-learn's estimators do, and implements `_adapt`,
    `_score_rows` and `_saved`.

    Parameters
    ----------
    openness : float or "auto", default="auto"
        Share of the target that is unknown, in [0, 1). "auto" leaves it to the method's own
        boundary, or estimates it if there is none. Neither needs labels.
    unknown_label : default="unknown"
        Label of unknown samples.
    """

    openness: float | str = field(default="auto", kw_only=False)
    unknown_label: Any = "unknown"

    _parameter_constraints: ClassVar[Constraints] = {}

    @abstractmethod
    def _adapt(self, domains: Domains, openness: OpennessTracker, context: FitContext) -> Scores:
        """Learn, and return the scores of the targets; see `OpenSetClassifier._fit_domains`."""

    def _saved(self) -> tuple[str, ...]:
        """Return the names of the arrays that `_score_rows` needs; "means_" is saved as "means"."""
        return ()

    def _fit_domains(
        self,
        source: Rows,
        y: IntArray,
        target: Rows,
        openness: OpennessTracker,
        context: FitContext,
    ) -> Scores:
        try:
            self._validate_params()
        except InvalidParameterError as error:
            raise InputError(str(error)) from None
        return self._adapt(Domains(source, y, target), openness, context)

    def _finish_step(
        self, known: FloatArray, context: FitContext, steps: int = 1, **entry: Any
    ) -> None:
        """Add a step to `history_` and report it; `known` are the scores of the targets."""
        step = {"step": len(self.history_) + 1, "mean_score": float(known.mean()), **entry}
        finish_step(self.history_, context.progress, step, steps)

    def _fitted_state(self) -> State:
        return {}, {name.strip("_"): getattr(self, name) for name in self._saved()}

    def _restore_fitted_state(
        self, values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        for name in self._saved():
            setattr(self, name, arrays[name.strip("_")])


@dataclass(eq=False, repr=False, kw_only=True)
class RejectingRival(Rival):
    """Base of the rivals that adapt features and leave unknowns to a rejector.

    A subclass calls `_fit_rejector` with the adapted source, and `rejector_.scores` with adapted
    rows. With a given openness the rejector only ranks; with "auto" its own boundary is used.

    Parameters
    ----------
    rejector : {"quantile", "mixture", "osnn", "osvm"}, default="osvm"
        How unknowns are told from known samples, see `opensetda.rejection`.

    Attributes
    ----------
    rejector_ : Rejector
        The fitted rejector.
    """

    rejector: str = "osvm"

    # The keys, not a set: the message lists them in this order.
    _parameter_constraints: ClassVar[Constraints] = {"rejector": [StrOptions(REJECTORS.keys())]}

    def _fit_rejector(self, features: FloatArray, y: IntArray) -> None:
        """Fit on adapted source rows (n, d) in canonical order, and their class indices."""
        self.rejector_ = make_rejector(self.rejector)
        self.rejector_.fit(features, y, len(self.classes_))

    def _own_cut(self, scores: Scores) -> float | None:
        return self.rejector_.own_cut(scores)

    def _fitted_state(self) -> State:
        own_values, own_arrays = super()._fitted_state()
        values, arrays = self.rejector_.state()
        return {**own_values, **_prefixed(values)}, {**own_arrays, **_prefixed(arrays)}

    def _restore_fitted_state(
        self, values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        self.rejector_ = make_rejector(self.rejector)
        self.rejector_.restore(_without_prefix(values), _without_prefix(arrays))
        super()._restore_fitted_state(values, arrays)


class AlignedRival(Rival):
    """Base of the rivals that learn from aligned rows (`ALIGNMENT`), kept in `_alignment`."""

    def _fitted_state(self) -> State:
        values, arrays = super()._fitted_state()
        assert self._alignment.projection is not None, "known after fit"
        arrays["alignment.source_mean"] = self._alignment.source_mean
        arrays["alignment.target_mean"] = self._alignment.target_mean
        arrays["alignment.projection"] = self._alignment.projection
        return values, arrays

    def _restore_fitted_state(
        self, values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        super()._restore_fitted_state(values, arrays)
        self._alignment = Alignment(ALIGNMENT)
        self._alignment.source_mean = arrays["alignment.source_mean"]
        self._alignment.target_mean = arrays["alignment.target_mean"]
        self._alignment.projection = arrays["alignment.projection"]


def join_scores(parts: Iterable[Scores]) -> Scores:
    """Return the scores of chunks as those of all rows."""
    joined = [np.concatenate(values) for values in zip(*parts, strict=True)]
    return Scores(*joined) if joined else NO_SCORES


def _prefixed(saved: Mapping[str, Any]) -> dict[str, Any]:
    return {REJECTOR_PREFIX + name: value for name, value in saved.items()}


def _without_prefix(saved: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in saved.items() if name.startswith(REJECTOR_PREFIX)}
    return {name.removeprefix(REJECTOR_PREFIX): value for name, value in own.items()}
