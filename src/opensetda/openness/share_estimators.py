"""Estimators of the share of unknowns, without labels, behind one contract.

An estimator gets `Evidence`, scores and aligned features, and returns a `ShareEstimate`: a
point and an interval. The main one uses held-out scores, those of samples if their nearest class
were not among the known ones: a target whose class is held out is an unknown with the same shift
as all targets, so they show how unknowns score.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from opensetda.openness.mixtures import ScoreHistogram, fit_mixture
from opensetda.rows import FloatArray, IntArray

Vector = npt.NDArray[np.float64]

CONFIDENCE = 0.9
"""Probability with which an interval should contain the true share."""
LARGEST_SHARE = 0.97
"""Largest estimate: with no known targets the steps could not learn."""

_RESAMPLES = 60
# Standard deviation of the distance between real unknowns and held-out scores, in deviations.
_BESIDE = 0.7
# Share of the targets taken for known that are confident enough to move a class to them.
_SUREST = 0.75


@dataclass(frozen=True)
class Evidence:
    """What the estimators use, without target labels.

    Scores of all targets (`held_out` is NaN if a method does not compute it), the share in use,
    and aligned features of some source rows and of the first targets.
    """

    known: Vector
    held_out: Vector
    nearest: IntArray
    share: float = 0.5
    source: FloatArray | None = None
    source_labels: IntArray | None = None
    target: FloatArray | None = None

    def histogram(self) -> ScoreHistogram:
        """Return the scores in bins."""
        return ScoreHistogram.of(self.known, self.held_out, self.nearest)


@dataclass(frozen=True)
class ShareEstimate:
    """A share of unknowns, and the interval that should hold the true one."""

    share: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """Return plain values that JSON can hold."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.share:.2f} ({self.low:.2f} to {self.high:.2f})"


Estimator = Callable[[Evidence, np.random.Generator], ShareEstimate | None]


def held_out_classes(evidence: Evidence, rng: np.random.Generator) -> ShareEstimate | None:
    """Hold out each class in turn, and estimate how many targets score like its targets.

    The mixture of `fit_mixture`, anchored. The interval resamples targets and classes, and
    lets the mean of real unknowns differ from that of the held-out scores. It is wide where
    knowns and unknowns overlap. None with two classes, where no class can be held out.
    """
    histogram = evidence.histogram()
    if not histogram.has_held_out:
        return None
    share = float(fit_mixture(histogram).share[0])
    offset = rng.normal(0.0, _BESIDE, _RESAMPLES)
    resampled = histogram.resampled(_RESAMPLES, rng)
    return _with_interval(share, fit_mixture(resampled, offset=offset).share)


def free_mixture(evidence: Evidence, rng: np.random.Generator) -> ShareEstimate:
    """Fit two normal distributions to the known scores; the lower one is of the unknowns.

    It divides scores with one peak in two halves, and confuses a strong shift with unknowns.
    """
    histogram = evidence.histogram()
    share = float(fit_mixture(histogram, anchored=False).share[0])
    resampled = histogram.resampled(_RESAMPLES, rng)
    return _with_interval(share, fit_mixture(resampled, anchored=False).share)


def best_bin(evidence: Evidence, rng: np.random.Generator) -> ShareEstimate | None:
    r"""Estimate the share of source-like targets as positive-unlabelled learning does (BBE).

    Garg et al. (NeurIPS 2021): of a classifier between source and target, the top bin
    holds positives only; with :math:`q(c)` the share of scores above c,

    .. math:: 1 - \beta = q_t(c^*) / q_s(c^*)

    where :math:`c^*` minimises an upper bound of the ratio. A shift of the classes breaks
    the assumption, so first every source class is moved onto the most confident of its targets,
    and weighted by their number. Which these are depends on the share in use: this is a second
    opinion on that share, not an independent estimate.
    """
    source, labels, target = evidence.source, evidence.source_labels, evidence.target
    if source is None or labels is None or target is None:
        return None
    if len(np.unique(labels)) < 2 or len(source) < 10 or len(target) < 10:
        return None
    moved, weights = _moved_classes(evidence, source, labels, target)
    of_source, of_target = _domain_scores(moved, target, rng)
    order = np.argsort(-of_source, kind="stable")
    above_source = np.cumsum(weights[order]) / weights.sum()
    descending = np.sort(of_target)[::-1]
    above_target = np.searchsorted(-descending, -of_source[order], side="right") / len(of_target)
    effective = weights.sum() ** 2 / (weights**2).sum()
    spread = 1 / np.sqrt(effective) + 1 / np.sqrt(len(of_target))
    doubt = np.sqrt(np.log(4 / (1 - CONFIDENCE)) / 2) * spread
    usable = above_source > doubt
    if not usable.any():
        return None
    ratio, bound = above_target[usable] / above_source[usable], doubt / above_source[usable]
    best = int(np.argmin(ratio + bound))
    share, margin = 1 - float(ratio[best]), float(bound[best])
    return ShareEstimate(_clip(share), _clip(share - margin), _clip(share + margin))


ESTIMATORS: dict[str, Estimator] = {
    "held-out classes": held_out_classes,
    "free mixture": free_mixture,
    "best bin": best_bin,
}
"""All estimators. The first with an answer is used; the others are reported."""


def _moved_classes(
    evidence: Evidence, source: FloatArray, labels: IntArray, target: FloatArray
) -> tuple[FloatArray, Vector]:
    """Move source classes onto the most confident of their targets; weights by their number."""
    nearest, known = evidence.nearest[: len(target)], evidence.known[: len(target)]
    sure = known >= np.quantile(known, 1 - _SUREST * (1 - min(evidence.share, LARGEST_SHARE)))
    moved = np.array(source, dtype=np.float64)
    weights = np.zeros(len(source))
    for label in np.unique(labels):
        rows, theirs = labels == label, (nearest == label) & sure
        if theirs.any():
            moved[rows] += target[theirs].mean(axis=0) - moved[rows].mean(axis=0)
        weights[rows] = max(int(theirs.sum()), 1) / rows.sum()
    return moved, weights


def _domain_scores(
    source: FloatArray, target: FloatArray, rng: np.random.Generator
) -> tuple[Vector, Vector]:
    """Score how source-like each row is, by a classifier that has not seen it."""
    from sklearn.linear_model import LogisticRegression

    X = np.concatenate([source, target])
    is_source = np.arange(len(X)) < len(source)
    fold = np.empty(len(X), dtype=np.intp)
    for rows in (np.flatnonzero(is_source), np.flatnonzero(~is_source)):
        fold[rows] = rng.permutation(len(rows)) % 2
    scores = np.empty(len(X))
    for part in (0, 1):
        model = LogisticRegression(C=1.0, max_iter=500, class_weight="balanced")
        model.fit(X[fold != part], is_source[fold != part])
        scores[fold == part] = model.decision_function(X[fold == part])
    return scores[is_source], scores[~is_source]


def _with_interval(share: float, resampled: Vector) -> ShareEstimate:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return ShareEstimate(_clip(share), _clip(min(low, share)), _clip(max(high, share)))


def _clip(share: float) -> float:
    return float(np.clip(share, 0.0, 1.0))


# Scores if the nearest class were not known ------------------------------------------------


def cosine_without_nearest(
    v: FloatArray,
    nearest: IntArray,
    source_sums: FloatArray,
    source_counts: npt.NDArray[np.floating],
    target_means: FloatArray | None = None,
    mix: FloatArray | None = None,
    centred: bool = True,
) -> Vector:
    r"""Largest cosine to the class means, the nearest class left out.

    With features centred on the mean of the source, class means of few classes point away
    from each other. Without class k the centre would be another: the means of the others are
    centred again,

    .. math::
        \mu_c^{(-k)} = \operatorname{unit}\Big(\mu_c^s -
            \tfrac{1}{n - n_k} \textstyle\sum_{j \neq k} n_j \mu_j^s\Big).

    Without this, held-out targets score lower than real unknowns.

    Shapes: unit rows v (n, d), source_sums (C, d), source_counts (C,), unit target_means (C, d),
    mix (C,), how far each class mean moves to them -> (n,), NaN with two classes: the one that
    is left is its own centre.
    """
    n_classes = len(source_sums)
    if n_classes <= 2:
        return np.full(len(v), np.nan)
    sums, counts = source_sums.astype(np.float64), source_counts.astype(np.float64)
    means = sums / np.maximum(counts, 1)[:, None]
    # Row k: the centre of all classes but k.
    centres = np.zeros_like(means)
    if centred:
        centres = (sums.sum(axis=0) - sums) / (counts.sum() - counts)[:, None]
    # [k, c]: length of the mean of class c, centred without class k.
    squares = (means**2).sum(axis=1) - 2 * centres @ means.T + (centres**2).sum(axis=1)[:, None]
    lengths = np.sqrt(np.maximum(squares, 1e-24))
    cosine = (_products(v, means) - (v * centres[nearest]).sum(axis=1)[:, None]) / lengths[nearest]
    if target_means is not None and mix is not None:
        along = ((means * target_means).sum(axis=1) - centres @ target_means.T) / lengths
        mixed = np.sqrt((1 - mix) ** 2 + mix**2 + 2 * mix * (1 - mix) * along)
        cosine = (1 - mix) * cosine + mix * _products(v, target_means)
        cosine = cosine / np.maximum(mixed, 1e-12)[nearest]
    cosine[np.arange(len(v)), nearest] = -np.inf
    return np.asarray(cosine.max(axis=1), dtype=np.float64)


def softmax_without_nearest(logits: FloatArray) -> Vector:
    """Largest softmax of the classes but the nearest: logits (n, C) -> (n,).

    NaN with two classes: the softmax of the one that is left is always 1.
    """
    if logits.shape[1] <= 2:
        return np.full(len(logits), np.nan)
    ordered = np.sort(logits, axis=1)[:, :-1]
    return np.asarray(1 / np.exp(ordered - ordered[:, -1:]).sum(axis=1), dtype=np.float64)


def _products(rows: FloatArray, others: FloatArray) -> Vector:
    """Products of rows with rows without the threads of BLAS, which compete with torch's."""
    return np.asarray(np.einsum("nd,md->nm", rows, others), dtype=np.float64)
