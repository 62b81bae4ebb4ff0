"""From closed-set scores to unknowns: rejectors that any adapter can be combined with.

A rejector is a module that learns from adapted source rows, and scores how likely a sample is of
a known class. Only the rejector that is made is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from opensetda.errors import InputError

if TYPE_CHECKING:
    from opensetda.rejection.base import Rejector

REJECTORS = {
    "quantile": "opensetda.rejection.softmax:QuantileRejector",
    "mixture": "opensetda.rejection.softmax:MixtureRejector",
    "osnn": "opensetda.rejection.osnn:DistanceRatioRejector",
    "osvm": "opensetda.rejection.osvm:InclusionRejector",
}
"""Each rejector's name, and the class behind it."""


def make_rejector(name: str) -> Rejector:
    """Return a new, unfitted rejector."""
    if name not in REJECTORS:
        raise InputError(f"rejector={name!r} does not exist; choose one of {', '.join(REJECTORS)}")
    module, _, rejector = REJECTORS[name].partition(":")
    made: Rejector = getattr(importlib.import_module(module), rejector)()
    return made
