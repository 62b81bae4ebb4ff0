"""The share of unknowns that the evidence speaks for, and how sure that is.

The share is a weighted sum of the evidence, with weights that depend on the number of known
classes: of three, hidden ones say little; of many, they decide alone. The interval is as wide as
the errors of that sum were.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opensetda.openness.evidence import Evidence

CONFIDENCE = 0.9  # probability with which an interval should contain the true share
LARGEST_SHARE = 0.97  # with no known targets the steps could not learn
FEWEST_TARGETS = 20  # with fewer targets the interval is [0, 1], and a warning says so

# Fitted by `python benchmarks/shares.py` on random class splits of seven suites and on generated
# shifts. Rows: with two known classes, and what each further one adds, up to many.
# Columns: constant, then the figures of `Evidence`.
WEIGHTS = np.array([[0.200, 0.004, -0.003, -0.273, 0.183], [-0.219, -0.005, 0.236, -0.170, -0.009]])
# Half the width of the interval, in the same way.
HALF_WIDTH = np.array([0.437, -0.224])


@dataclass(frozen=True)
class ShareEstimate:
    """A share of unknowns, and the interval that should hold the true one."""

    share: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.share:.2f} ({self.low:.2f} to {self.high:.2f})"


def many_classes(n_classes: int) -> float:
    """Return how far from two classes to many: 0 for 2, 1/2 for 4, 0.8 for 10."""
    return 1 - 2 / n_classes


def trust_in_hidden(n_classes: float) -> float:
    """Return how far hidden classes alone decide: 0 for up to 4 known ones, 0.6 for 10."""
    return max(0.0, 1 - 4 / n_classes)


def estimate_share(evidence: Evidence, n_targets: int) -> ShareEstimate:
    """Weigh the evidence."""
    many = np.array([1.0, many_classes(evidence.n_classes)])
    values = np.array([1.0, *evidence[:-1]])
    trust = trust_in_hidden(evidence.n_classes)
    weighed = (1 - trust) * float(many @ WEIGHTS @ values) + trust * evidence.hidden
    share = float(np.clip(weighed, 0.0, LARGEST_SHARE))
    half = float(many @ HALF_WIDTH)
    low, high = (0.0, 1.0) if n_targets < FEWEST_TARGETS else (share - half, share + half)
    return ShareEstimate(share, max(low, 0.0), min(high, 1.0))
