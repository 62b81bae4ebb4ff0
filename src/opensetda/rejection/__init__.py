"""From closed-set scores to unknowns: rejectors that any adapter can be combined with."""

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


def make_rejector(name: str) -> Rejector:
    """Return a new, unfitted rejector."""
    if name not in REJECTORS:
        raise InputError(f"rejector={name!r} does not exist; choose one of {', '.join(REJECTORS)}")
    module, _, rejector = REJECTORS[name].partition(":")
    made: Rejector = getattr(importlib.import_module(module), rejector)()
    return made
