"""The share of unknowns by an audit: targets drawn at random that a person called known or unknown.

Such a sample says how many targets are unknown without any assumption about the data, which no
estimate from scores can.
"""

from __future__ import annotations

from scipy.stats import beta

from opensetda.openness.share_model import CONFIDENCE, ShareEstimate

AUDIT_SIZE = 30
"""Targets of an audit: the share is then within .08 of the truth on average."""


def audited_share(n_unknown: int, n: int, confidence: float = CONFIDENCE) -> ShareEstimate:
    """Return the share of unknowns if `n_unknown` of `n` targets, drawn at random, are unknown.

    The interval is Jeffreys': quantiles of Beta(k + 1/2, n - k + 1/2), and the ends 0 and 1 if
    no target, or every one, is unknown. Without any target it is [0, 1].
    """
    if not 0 <= n_unknown <= n:
        raise ValueError(f"{n_unknown} unknown of {n} audited targets: give 0 to {n}")
    if n == 0:
        return ShareEstimate(0.5, 0.0, 1.0)
    posterior = beta(n_unknown + 0.5, n - n_unknown + 0.5)
    low, high = (float(end) for end in posterior.interval(confidence))
    return ShareEstimate(
        n_unknown / n, 0.0 if n_unknown == 0 else low, 1.0 if n_unknown == n else high
    )
