"""Bases of the rivals: parameters declared once, checked in one place, and saved by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions

from opensetda.base import OpenSetClassifier, Scores
from opensetda.context import FitContext
from opensetda.errors import InputError
from opensetda.nn.alignment import Alignment
from opensetda.nn.settings import AlignmentSettings
from opensetda.openness.tracker import OpennessTracker
from opensetda.progress import finish_step
from opensetda.rejection import REJECTORS, make_rejector
from opensetda.rejection.base import Saved, State
from opensetda.rows import FloatArray, IntArray, Rows

# For `checked`.
COUNT = Interval(Integral, 1, None, closed="left")
POSITIVE = Interval(Real, 0, None, closed="neither")
# Of an inverse regularisation: infinity is none.
POSITIVE_OR_INFINITE = Interval(Real, 0, None, closed="right")
NON_NEGATIVE = Interval(Real, 0, None, closed="left")

ALIGNMENT = AlignmentSettings(normalise=True, centring="own", components=256, whitening=0.0)
"""Rows of unit length, each domain centred on its own mean, turned onto 256 components."""

ALIGNMENT_PARTS = ("source_mean", "target_mean", "projection")
REJECTOR_PREFIX = "rejector."

NO_SCORES = Scores(np.zeros((0, 0)), np.zeros(0), np.zeros(0))
"""The scores of no targets."""


def checked(default: Any, allowed: Any) -> Any:
    """Declare a parameter whose values are checked in `fit`, by a constraint of scikit-learn."""
    return field(default=default, metadata={"allowed": [allowed]})


class Domains(NamedTuple):
    """Source rows with class indices y, and target rows (perhaps none), in canonical order."""

    source: Rows
    y: IntArray
    target: Rows


@dataclass(eq=False, repr=False, kw_only=True)
class Rival(OpenSetClassifier):
    """Base of all rivals: a dataclass whose fields are its parameters.

    A subclass declares its own parameters (`checked`) and changed defaults as fields, and
    implements `_adapt`, `_score_rows` and `_saved`.

    Parameters
    ----------
    openness : float or "auto", default="auto"
        Share of the target that is unknown, in [0, 1). "auto" leaves it to the method's own
        boundary, or estimates it if there is none. Neither needs labels.
    scaling : {"auto", "none", "standard", "ranks"}, default="none"
        How columns are scaled, see `opensetda.nn.scaling`; the published methods do not.
    unknown_label : default="unknown"
        Label of unknown samples.
    """

    openness: float | str = field(default="auto", kw_only=False)
    scaling: str = "none"
    unknown_label: Any = "unknown"

    @property
    def _parameter_constraints(self) -> dict[str, list[Any]]:
        # From the bases on: a subclass may change a default only.
        own = [vars(cls).get("__dataclass_fields__", {}) for cls in reversed(type(self).__mro__)]
        declared = [parameter for fields in own for parameter in fields.values()]
        return {p.name: p.metadata["allowed"] for p in declared if "allowed" in p.metadata}

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
        self, known: FloatArray, context: FitContext, steps: int, **entry: Any
    ) -> None:
        """Add a step to `history_` and report it; `known` are the scores of the targets."""
        step = {"step": len(self.history_) + 1, "mean_score": float(known.mean()), **entry}
        finish_step(self.history_, context.progress, step, steps)

    def _fitted_state(self) -> State:
        return {}, {name.strip("_"): getattr(self, name) for name in self._saved()}

    def _restore_fitted_state(self, values: Saved, arrays: Saved) -> None:
        for name in self._saved():
            setattr(self, name, arrays[name.strip("_")])


@dataclass(eq=False, repr=False, kw_only=True)
class RejectingRival(Rival):
    """Base of the rivals that adapt features and leave unknowns to a rejector (`_fit_rejector`).

    With a given openness the rejector only ranks; with "auto" its own boundary is used.

    Parameters
    ----------
    rejector : {"quantile", "mixture", "osnn", "osvm"}, default="osvm"
        How unknowns are told from known samples, see `opensetda.rejection`.

    Attributes
    ----------
    rejector_ : Rejector
        The fitted rejector.
    """

    # The keys, not a set: the message lists them in this order.
    rejector: str = checked("osvm", StrOptions(REJECTORS.keys()))

    def _fit_rejector(self, features: FloatArray, y: IntArray) -> None:
        """Fit on adapted source rows (n, d) in canonical order, and their class indices."""
        self.rejector_ = make_rejector(self.rejector)
        self.rejector_.fit(features, y, len(self.classes_))

    def _own_cut(self, scores: Scores) -> float | None:
        return self.rejector_.own_cut(scores)

    def _fitted_state(self) -> State:
        values, arrays = super()._fitted_state()
        for own, of_rejector in zip((values, arrays), self.rejector_.state(), strict=True):
            own |= {REJECTOR_PREFIX + name: value for name, value in of_rejector.items()}
        return values, arrays

    def _restore_fitted_state(self, values: Saved, arrays: Saved) -> None:
        self.rejector_ = make_rejector(self.rejector)
        self.rejector_.restore(_of_rejector(values), _of_rejector(arrays))
        super()._restore_fitted_state(values, arrays)


class AlignedRival(Rival):
    """Base of the rivals that learn from aligned rows, by an `Alignment` kept in `_alignment`."""

    alignment_settings: ClassVar[AlignmentSettings] = ALIGNMENT

    def _fitted_state(self) -> State:
        values, arrays = super()._fitted_state()
        parts = {f"alignment.{name}": getattr(self._alignment, name) for name in ALIGNMENT_PARTS}
        return values, arrays | parts

    def _restore_fitted_state(self, values: Saved, arrays: Saved) -> None:
        super()._restore_fitted_state(values, arrays)
        self._alignment = Alignment(self.alignment_settings)
        for name in ALIGNMENT_PARTS:
            setattr(self._alignment, name, arrays[f"alignment.{name}"])


def join_scores(parts: Iterable[Scores]) -> Scores:
    """Return the scores of chunks as those of all rows."""
    joined = [np.concatenate(values) for values in zip(*parts, strict=True)]
    return Scores(*joined) if joined else NO_SCORES


def _of_rejector(saved: Saved) -> dict[str, Any]:
    names = [name for name in saved if name.startswith(REJECTOR_PREFIX)]
    return {name.removeprefix(REJECTOR_PREFIX): saved[name] for name in names}
