"""The scores of samples, and the decision between known and unknown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize_scalar
from scipy.special import ndtr
from torch import Tensor, nn

from opensetda.rows import IntArray

LARGEST_LOG_SLOPE = 2.5  # a larger one gives most samples probabilities within 0.00001 of 0 or 1
FINE_RANKS = 100  # ranks over which votes are averaged, where there are fewer targets

WHOLE_ROWS = 64
# Factors by which a probability is kept from another that would be equal but for rounding.
JUST_LESS = 1 - 1e-6
JUST_MORE = 1 + 1e-6
ROUNDING = 1e-12  # what is left of one below this is an error of rounding

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class Scores(NamedTuple):
    """The scores of n samples."""

    classes: Matrix
    """Logits of the known classes: (n, C)."""
    known: Vector
    """Confidence that the sample is of a known class."""

    @classmethod
    def joined(cls, parts: Sequence[Scores]) -> Scores:
        """Return the scores of the samples of all parts."""
        return cls(
            classes=np.concatenate([part.classes for part in parts]),
            known=np.concatenate([part.known for part in parts]),
        )

    @property
    def nearest(self) -> IntArray:
        """The class of each sample, if it is known."""
        return np.asarray(self.classes.argmax(axis=1))


class Decision(nn.Module, ABC):
    """From scores to probabilities and labels; no label is less probable than another column.

    Shapes: class scores (n, C), known scores (n,) -> probabilities of the classes, then of unknown
    (n, C + 1), and indices of labels (n,), C for unknown.
    """

    threshold: float = 0.0
    """Samples with a lower known score are unknown."""

    @abstractmethod
    def forward(self, classes: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities and labels."""

    @torch.no_grad()
    def decide(self, scores: Scores) -> tuple[Matrix, IntArray]:
        """Return probabilities and labels of arrays; a sample gets the same bits in every batch."""
        n_rows, n_classes = scores.classes.shape
        # The last numbers of an odd length are computed in another way, with other rounding.
        size = -(-n_rows // WHOLE_ROWS) * WHOLE_ROWS
        classes = torch.zeros((size, n_classes), dtype=torch.float64)
        classes[:n_rows] = torch.from_numpy(scores.classes)
        known = torch.zeros(size, dtype=torch.float64)
        known[:n_rows] = torch.from_numpy(scores.known)
        probabilities, labels = self(classes, known)
        return probabilities[:n_rows].numpy(), labels[:n_rows].numpy()


class NothingUnknown(Decision):
    """Every sample is of its nearest class: there was no target to find unknowns in.

    There is no column for unknown.
    """

    threshold = float("-inf")

    def forward(self, classes: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Return the softmax of the class logits, and the largest."""
        return classes.softmax(dim=1), classes.argmax(dim=1)


class Rejection(Decision):
    """A sample whose known score lies below `threshold` is unknown.

    The probability of unknown is 1/2 there, and its logit falls with `slope`. Where nothing is
    rejected (threshold minus infinity), `base` is the probability of unknown of every sample. Of a
    sample that is not rejected, unknown is at most about as probable as its nearest class.
    """

    def __init__(self, threshold: float, slope: float, base: float = 0.0) -> None:
        super().__init__()
        self.threshold = threshold
        self.slope = slope
        self.base = base

    @classmethod
    def fit(cls, known: Vector, posterior: Vector, threshold: float) -> Rejection:
        """Fit slope and base to the `posterior`, probabilities of unknown of known scores."""
        slope = fit_slope(known, posterior, threshold)
        # At most 1/2: it does not contradict the labels.
        base = 0.0 if np.isfinite(threshold) else min(float(posterior.mean()), 0.5)
        return cls(threshold, slope, base)

    def forward(self, classes: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities and labels."""
        of_classes = classes.softmax(dim=1)
        # A score that is not a number is not known, either.
        is_known = known >= self.threshold
        unknown = torch.full_like(known, self.base)
        if np.isfinite(self.threshold):
            unknown = torch.sigmoid(self.slope * (self.threshold - known))
        nearest = of_classes.amax(dim=1)
        as_probable = nearest / (1 + nearest)
        of_known = torch.minimum(unknown, JUST_LESS * as_probable)
        unknown = torch.where(is_known, of_known, unknown.clamp(min=JUST_MORE / 2))
        labels = torch.where(is_known, classes.argmax(dim=1), classes.shape[1])
        return torch.cat([of_classes * (1 - unknown)[:, None], unknown[:, None]], dim=1), labels


class MostVotes(Decision):
    """Class scores are votes, and what is left of one is for unknown: the most votes decide."""

    def forward(self, classes: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Return the votes, and where they are most."""
        rest = 1 - classes.sum(dim=1)
        unknown = torch.where(rest < ROUNDING, 0.0, rest)
        votes = torch.cat([classes, unknown[:, None]], dim=1)
        return votes, votes.argmax(dim=1)


def unknown_votes(known: Vector, share: float, spread: float) -> Vector:
    r"""Return how far one method speaks for unknown: (m,) -> (m,).

    A target is unknown if its rank among the known scores is below the share of unknowns, of which
    only a normal distribution is known:

    .. math:: P(\text{unknown}) = P(S > r / m), \quad S \sim \mathcal N(\text{share}, \text{spread})

    It is averaged over the ranks that equal scores have in common, and with few targets over the
    part of all ranks that each stands for: the rank of a single target says nothing, and it is
    unknown with the probability of the share. An unsure share makes unsure labels.
    """
    if share <= 0 or not len(known):
        return np.zeros(len(known))
    each = max(1, FINE_RANKS // len(known))
    ranks = (np.arange(each * len(known)) + 0.5) / (each * len(known))
    _, group = np.unique(known, return_inverse=True)
    group_of_rank = np.repeat(np.sort(group), each)
    probabilities = np.bincount(group_of_rank, weights=ndtr((share - ranks) / spread))
    return np.asarray((probabilities / np.bincount(group_of_rank))[group])


def fit_slope(known: Vector, posterior: Vector, threshold: float) -> float:
    r"""Fit the slope of the probability of unknown around the rejection threshold.

    .. math:: P(\text{unknown} \mid s) = \sigma(\kappa (t - s))

    The threshold t is where the labels change, so probability and label never contradict each
    other; :math:`\kappa` minimises the cross-entropy to the `posterior`.
    """
    if not np.isfinite(threshold):
        return 0.0
    margin = threshold - known
    scale = max(float(np.abs(margin).mean()), 1e-12)

    def cross_entropy(log_slope: float) -> float:
        z = np.exp(log_slope) * margin / scale
        return float(np.mean(np.logaddexp(0.0, z) - posterior * z))

    found = minimize_scalar(cross_entropy, bounds=(-3.0, LARGEST_LOG_SLOPE), method="bounded")
    return float(np.exp(found.x) / scale)


def rejection_cut(known_score: Vector, share: float) -> float:
    """Return the cut with `share` of the scores below it, half way between two scores.

    Equal scores are not separated: the cut moves to the nearer end of their group.
    """
    wanted = round(share * len(known_score))
    if wanted == 0:
        return float("-inf")
    ordered = np.sort(known_score)
    score = ordered[min(wanted, len(ordered) - 1)]
    start = int(np.searchsorted(ordered, score, side="left"))
    end = int(np.searchsorted(ordered, score, side="right"))
    below = start if wanted - start <= end - wanted else end
    if below == 0:
        return float("-inf")
    if below == len(ordered):
        return float(np.nextafter(ordered[-1], np.inf))
    middle = (ordered[below - 1] + ordered[below]) / 2
    # Between neighbouring floats there is no middle.
    return float(middle if middle > ordered[below - 1] else ordered[below])
