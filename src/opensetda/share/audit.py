"""The share of unknowns by an audit: targets drawn at random that a person called known or unknown.

Such a sample says how many targets are unknown without any assumption about the data, which no
estimate from scores can.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import beta, rankdata

from opensetda.rows import IntArray
from opensetda.share.decision import Vector
from opensetda.share.evidence import CONFIDENCE, LARGEST_SHARE, ShareEstimate

Flags = npt.NDArray[np.bool_]

# targets of an audit, and the mean error of its share
AUDIT_SIZE = 30
AUDIT_ERROR = 0.05
_WEIGHT = 10.0  # inverse of the ridge on the slope of unknowns over ranks
_MOST_GAIN = 2.5  # scores count for at most this many times the audited targets


def audited_share(n_unknown: float, n: float) -> ShareEstimate:
    """Return the share of unknowns if `n_unknown` of `n` targets, drawn at random, are unknown.

    The interval is Jeffreys': quantiles of Beta(k + 1/2, n - k + 1/2), and the ends 0 and 1 if
    no target, or every one, is unknown. Without any target it is [0, 1]. Unlike the exact one of
    `metrics.intervals`, it takes parts of targets, which `scored_share` needs, and is narrower.
    """
    if n == 0:
        return ShareEstimate(0.5, 0.0, 1.0)
    low, high = map(float, beta(n_unknown + 0.5, n - n_unknown + 0.5).interval(CONFIDENCE))
    return ShareEstimate(n_unknown / n, low if n_unknown else 0.0, high if n_unknown < n else 1.0)


def scored_share(known: Vector | None, rows: IntArray, unknown: Flags) -> ShareEstimate:
    r"""Return the audited share, corrected by scores of all targets: (N,), (n,), (n,).

    By chance a sample has too many targets of low scores, which are more often unknown. A
    logistic regression of the sample's marks on the ranks of its scores says how often, and its
    mean over all targets is the share:

    .. math:: \hat\beta = \frac1N \sum_i \sigma(a + b\, r_i)

    Its mean over the sample is that of the marks, so scores that say nothing change nothing, and
    the scores need not be right. What they explain of the marks narrows the interval, as more
    audited targets would.
    """
    n = len(rows)
    n_unknown = int(unknown.sum())
    if known is None or not 0 < n_unknown < n:
        return audited_share(n_unknown, n)
    ranks = rankdata(known)[:, None]
    ranks = (ranks - ranks.mean()) / max(float(ranks.std()), 1e-12)
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=_WEIGHT).fit(ranks[rows], unknown)
    share = float(model.predict_proba(ranks)[:, 1].mean())
    left = ((unknown - model.predict_proba(ranks[rows])[:, 1]) ** 2).sum() / max(n - 2, 1)
    gain = min(max(float(unknown.var() / left), 1.0), _MOST_GAIN)
    return audited_share(share * gain * n, gain * n)


class Audit(NamedTuple):
    """Targets that were drawn at random and called known or unknown."""

    rows: IntArray
    """Rows of the targets: (n,)."""
    unknown: Flags
    unsettled: Flags
    """Unknown before new classes were named, and without a label: still so, or of a new class."""
    known_scores: Vector | None = None
    """Scores of all targets by the run that was audited."""

    def share(self, estimate: ShareEstimate) -> ShareEstimate:
        """Return the share of unknowns; `estimate`, made without it, decides on unsettled ones."""
        by_marks = [self.unknown, self.unknown | self.unsettled]
        fewest, most = (scored_share(self.known_scores, self.rows, marks) for marks in by_marks)
        share = min(max(estimate.share, fewest.share), most.share, LARGEST_SHARE)
        return ShareEstimate(share, fewest.low, most.high)

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        found = f"{self.unknown.sum():,} of {len(self.rows):,} random targets are unknown"
        if self.unsettled.any():
            return f"{found}, {self.unsettled.sum():,} more may be, or of a class named since"
        return found


class CheckedTargets(NamedTuple):
    """What a person said about targets: counts of all, however chosen, and an audit.

    Targets of a class that was named are known from now on.
    """

    n_known: int = 0
    n_unknown: int = 0
    audit: Audit | None = None

    def bound(self, estimate: ShareEstimate, n_targets: int) -> ShareEstimate:
        """Return an estimate that is possible: as many are unknown, or known, as were checked."""
        low = self.n_unknown / n_targets
        high = 1 - self.n_known / n_targets
        ends = (estimate.share, estimate.low, estimate.high)
        return ShareEstimate(*(min(max(end, low), high) for end in ends))
