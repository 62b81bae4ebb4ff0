"""From closed-set scores to unknowns: rejectors that any adapter can be combined with."""

from opensetda.methods.rejectors.base import QuantileRejector, Rejector
from opensetda.methods.rejectors.osnn import DistanceRatioRejector
from opensetda.methods.rejectors.osvm import InclusionRejector

REJECTORS: dict[str, type[Rejector]] = {
    "quantile": QuantileRejector,
    "osnn": DistanceRatioRejector,
    "osvm": InclusionRejector,
}
