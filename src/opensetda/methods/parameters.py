"""What parameters of methods may be, by constraints of scikit-learn."""

from __future__ import annotations

from dataclasses import field
from numbers import Integral, Real
from typing import Any

from sklearn.utils._param_validation import Interval

COUNT = Interval(Integral, 1, None, closed="left")
POSITIVE = Interval(Real, 0, None, closed="neither")
POSITIVE_OR_INFINITE = Interval(Real, 0, None, closed="right")  # an inverse regularisation
NON_NEGATIVE = Interval(Real, 0, None, closed="left")
SHARE = Interval(Real, 0, 1, closed="both")


def checked(default: Any, *allowed: Any) -> Any:
    """Declare a parameter whose values are checked in `fit`, by constraints of scikit-learn."""
    return field(default=default, metadata={"allowed": list(allowed)})
