"""From closed-set scores to unknowns: rejectors that any adapter can be combined with."""

from opensetda.rejection.base import QuantileRejector, Rejector
from opensetda.rejection.osnn import DistanceRatioRejector
from opensetda.rejection.osvm import InclusionRejector

REJECTORS: dict[str, type[Rejector]] = {
    "quantile": QuantileRejector,
    "osnn": DistanceRatioRejector,
    "osvm": InclusionRejector,
}
