"""What the rows of both domains say about the share of unknowns, without target labels.

Four figures, none of which is enough by itself. With few known classes the share is a weighted sum
of them, fitted with a prior: shares that occur, not all equally often. With many, hidden classes
decide nearly alone. The interval is as wide as the errors were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from opensetda.features.alignment import move_to_neighbours
from opensetda.rows import FloatArray, IntArray, unit_rows
from opensetda.share.decision import Vector
from opensetda.share.mixtures import fit_mixture

NEIGHBOURS = 10
MESSAGE = 0.5
STEPS = 5
USUAL = 0.4  # the share of unknowns that most data have, about
MOVE = 0.5  # how far class means move to the surest targets of their class
LOWEST = 0.1  # targets are compared with the source rows that score lowest, this share of them

MOST_TRUST = 0.8  # in hidden classes alone
MANY_CLASSES = 1000  # with more, no matrix has a row for each
CONFIDENCE = 0.9  # probability with which an interval should contain the true share
LARGEST_SHARE = 0.97  # with no known targets the steps could not learn
USUAL_SHARES = (0.1, 0.75)  # of most data; weighed evidence alone never says less or more
FEWEST_TARGETS = 20  # with fewer targets the interval is [0, 1], and a warning says so

# Fitted by `python benchmarks/shares.py` on random class splits of seven suites and on generated
# shifts. Rows: with two known classes, and what each further one adds, up to many.
# Columns: constant, then the figures of `Evidence`.
WEIGHTS = np.array([[0.325, -0.030, -0.041, -0.168, 0.121], [-0.239, 0.118, 0.255, 0.046, 0.142]])
# Half the width of the interval, and what full trust in hidden classes adds.
HALF_WIDTH = (0.22, -0.11)
TO_USUAL = 0.5  # how far a share moves to the usual one if hidden classes are not trusted at all


class Evidence(NamedTuple):
    """What speaks for many unknowns, or few."""

    hidden: float
    """Share by hidden classes: how many targets score as if their class were not known."""
    hidden_moved: float
    """The same after the class means have moved to the targets."""
    margin: float
    """Logarithm of the targets' mean distance from the second-best class, over the source's."""
    below: float
    """Share of the targets that score below nine tenths of the source's rows."""
    n_classes: int
    """How many classes can be hidden to see how unknowns score."""

    @property
    def by_hidden(self) -> float:
        """What hidden classes say: a shift hides unknowns at first, moved means may follow them."""
        return min(max(self.hidden, self.hidden_moved), LARGEST_SHARE)


@dataclass(frozen=True)
class ShareEstimate:
    """A share of unknowns, and the interval that should hold the true one."""

    share: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.share:.0%} ({self.low:.0%} to {self.high:.0%})"


def gather_evidence(source: FloatArray, y: IntArray, target: FloatArray) -> Evidence:
    """Compare the targets with the source's classes: aligned unit rows (n_s, d), (n_t, d).

    Every row moves half way to its neighbours in its domain, class means move to the surest
    targets step by step, and the cosines to these means are what is looked at.
    """
    n_classes = int(y.max()) + 1
    source = move_to_neighbours(source, source, NEIGHBOURS, MESSAGE)
    target = move_to_neighbours(target, target, NEIGHBOURS, MESSAGE)
    sums = _class_sums(source, y, n_classes)
    counts = np.bincount(y, minlength=n_classes)
    start = moved = unit_rows(sums)

    def share_by_hidden_classes(mix: float) -> float:
        nearest = cosine.argmax(axis=1)
        known = cosine.max(axis=1).astype(np.float64)
        hidden = cosine_without_nearest(target, nearest, sums, counts, moved, mix)
        # Of two classes none can be hidden.
        return USUAL if n_classes <= 2 else fit_mixture(known, hidden).share

    cosine = target @ start.T
    hidden = share_by_hidden_classes(0.0)
    # Half of the way to what most data have: the first look is often far off.
    likely_known = 1 - (hidden + USUAL) / 2
    for step in range(1, STEPS + 1):
        mix = MOVE * step / STEPS
        known = cosine.max(axis=1)
        is_sure = known >= np.quantile(known, 1 - likely_known * step / STEPS)
        found = _class_sums(target, np.where(is_sure, cosine.argmax(axis=1), -1), n_classes)
        moved = np.where(np.abs(found).sum(axis=1, keepdims=True) > 0, unit_rows(found), start)
        cosine = target @ unit_rows((1 - mix) * start + mix * moved).T
    of_source = source @ start.T
    # No row is compared with a mean that it is part of.
    of_source[np.arange(len(y)), y] = (source * unit_rows(sums[y] - source)).sum(axis=1)
    margin = _margin(cosine) / max(_margin(of_source), 1e-3)
    lowest = np.quantile(of_source.max(axis=1), LOWEST)
    return Evidence(
        hidden=hidden,
        hidden_moved=share_by_hidden_classes(MOVE),
        margin=float(np.log(np.clip(margin, 0.02, 2.0))),
        below=float((cosine.max(axis=1) < lowest).mean()),
        n_classes=n_classes,
    )


def cosine_without_nearest(
    v: FloatArray,
    nearest: IntArray,
    source_sums: FloatArray,
    source_counts: IntArray,
    target_means: FloatArray,
    mix: float,
) -> Vector:
    r"""Largest cosine to the class means if the nearest class were not among the known ones.

    A target whose class is left out is an unknown with the same shift as all targets. With
    features centred on the mean of the source, class means of few classes point away from each
    other. Without class k the centre would be another: the means of the others are centred again,

    .. math::
        \mu_c^{(-k)} = \operatorname{unit}\Big(\mu_c^s -
            \tfrac{1}{n - n_k} \textstyle\sum_{j \neq k} n_j \mu_j^s\Big),

    and move to the unit `target_means` by `mix`. Not centred, they would score lower than real
    unknowns.

    Shapes: unit rows v (n, d), sums and means (C, d), counts (C,) -> (n,), NaN with two classes:
    the one that is left is its own centre.
    """
    if len(source_sums) <= 2:
        return np.full(len(v), np.nan)
    sums = source_sums.astype(np.float64)
    counts = source_counts.astype(np.float64)
    means = sums / np.maximum(counts, 1)[:, None]
    # Row k: the centre of all classes but k.
    centres = (sums.sum(axis=0) - sums) / (counts.sum() - counts)[:, None]
    if len(sums) > MANY_CLASSES:
        # Those that are nearest to a row, at most one per row.
        used, nearest_used = np.unique(nearest, return_inverse=True)
        centres = centres[used]
    else:
        nearest_used = nearest
    # [k, c]: length of the mean of class c, centred without class k.
    squares = (means**2).sum(axis=1) - 2 * centres @ means.T + (centres**2).sum(axis=1)[:, None]
    lengths = np.sqrt(np.maximum(squares, 1e-24))
    cosine = _products(v, means) - (v * centres[nearest_used]).sum(axis=1)[:, None]
    cosine /= lengths[nearest_used]
    along = ((means * target_means).sum(axis=1) - centres @ target_means.T) / lengths
    squares = (1 - mix) ** 2 + mix**2 + 2 * mix * (1 - mix) * along
    # Means of equal classes have no direction: a cosine of theirs may be anything.
    mixed = np.maximum(np.sqrt(np.maximum(squares, 0.0)), 1e-12)
    cosine = (1 - mix) * cosine + mix * _products(v, target_means)
    cosine /= mixed[nearest_used]
    cosine[np.arange(len(v)), nearest] = -np.inf
    return np.asarray(cosine.max(axis=1), dtype=np.float64)


def many_classes(n_classes: int) -> float:
    """Return how far from two classes to many: 0 for 2, 1/2 for 4, 0.8 for 10."""
    return 1 - 2 / n_classes


def trust_in_hidden(n_classes: float) -> float:
    """Return how far hidden classes alone decide: 0 for up to 5 known ones, 0.8 from 9 on."""
    return min(max(0.0, n_classes / 5 - 1), MOST_TRUST)


def estimate_share(evidence: Evidence, n_targets: int) -> ShareEstimate:
    """Weigh the evidence."""
    many = np.array([1.0, many_classes(evidence.n_classes)])
    values = np.array([1.0, *evidence[:-1]])
    trust = trust_in_hidden(evidence.n_classes)
    weighed = float(np.clip(many @ WEIGHTS @ values, *USUAL_SHARES))
    share = (1 - trust) * weighed + trust * evidence.by_hidden
    weak = TO_USUAL * (1 - trust / MOST_TRUST)
    share = (1 - weak) * share + weak * USUAL
    half = HALF_WIDTH[0] + trust * HALF_WIDTH[1]
    low, high = (0.0, 1.0) if n_targets < FEWEST_TARGETS else (share - half, share + half)
    return ShareEstimate(share, max(low, 0.0), min(high, 1.0))


def _products(rows: FloatArray, others: FloatArray) -> Vector:
    """Products of rows with rows without the threads of BLAS, which compete with torch's."""
    return np.asarray(np.einsum("nd,md->nm", rows, others), dtype=np.float64)


def _class_sums(rows: FloatArray, labels: IntArray, n_classes: int) -> FloatArray:
    return np.stack([rows[labels == label].sum(axis=0) for label in range(n_classes)])


def _margin(cosine: FloatArray) -> float:
    ordered = np.sort(cosine, axis=1)
    return float((ordered[:, -1] - ordered[:, -2]).mean())
