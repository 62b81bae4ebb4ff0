"""How the scores of a committee's members become votes, and how much each vote counts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from opensetda.features.search import last_reached
from opensetda.rows import IntArray
from opensetda.share.decision import Matrix, Vector, unknown_votes
from opensetda.share.evidence import FEWEST_TARGETS

LEVELS = 1024  # of the table from known scores to votes, at most
AGREEMENT_WEIGHT = 4.0  # of a member's agreement with the others, in the exponent of its weight
# Chosen on six suites, on which the calibration error falls from .143 to .112, with the share given
# from .129 to .102.
SHARPENING = 6.0
USUAL_AGREEMENT = 0.85
TO_HALF = 0.25  # how far a vouched share moves to one half
MOST_MORE = 1.5  # and how many times as large it is then, at most: none stays none


class Opinions(NamedTuple):
    """What M members say of n targets."""

    known: Matrix
    """Known scores: (n, M)."""
    nearest: IntArray
    """Nearest classes: (n, M)."""

    def unknown_votes(self, share: float, spread: float) -> Matrix:
        """Return how far each member speaks for unknown, see `unknown_votes`: (n, M)."""
        return np.stack([unknown_votes(known, share, spread) for known in self.known.T], axis=1)

    def labels(self, share: float, spread: float, n_classes: int) -> IntArray:
        """Return the label of each member alone, C for unknown: (n, M)."""
        is_unknown = self.unknown_votes(share, spread) > 0.5
        return np.where(is_unknown, n_classes, self.nearest.astype(np.intp))


class VoteTable(nn.Module):
    """From the known score of a method to its vote for unknown, by a table of scores and votes.

    Between two scores of the table the vote is interpolated; beyond its ends it is constant.
    """

    scores: Tensor
    votes: Tensor

    def __init__(self, scores: Tensor, votes: Tensor) -> None:
        super().__init__()
        self.register_buffer("scores", scores)
        self.register_buffer("votes", votes)

    @classmethod
    def fit(cls, known: Vector, share: float, spread: float) -> VoteTable:
        """Make the table of the scores of all targets, see `unknown_votes`."""
        scores, place = np.unique(known, return_index=True)
        votes = unknown_votes(known, share, spread)[place]
        if len(scores) > LEVELS:
            kept = np.unique(np.rint(np.linspace(0, len(scores) - 1, LEVELS)).astype(np.intp))
            scores = scores[kept]
            votes = votes[kept]
        return cls(torch.from_numpy(scores), torch.from_numpy(votes))

    @classmethod
    def of_nothing(cls) -> VoteTable:
        """Make the table by which nothing is unknown."""
        zero = torch.zeros(1, dtype=torch.float64)
        return cls(zero, zero)

    def forward(self, known: Tensor) -> Tensor:
        """Return votes for unknown: (n,) -> (n,)."""
        place = last_reached(self.scores[:, None], known[:, None])[:, 0].clamp(min=0)
        above = (place + 1).clamp(max=len(self.scores) - 1)
        low = self.scores[place]
        gap = (self.scores[above] - low).clamp(min=torch.finfo(low.dtype).tiny)
        way = ((known - low) / gap).clamp(0, 1)
        return self.votes[place] + way * (self.votes[above] - self.votes[place])


def member_weights(labels: IntArray) -> Vector:
    r"""Return the weights of the votes: members that agree with the others count more.

    .. math:: w_m \propto e^{4 a_m}, \qquad
        a_m = \frac{1}{M - 1} \sum_{l \ne m} P(h_l = h_m)

    with the label :math:`h_m` of member m: (n, M) -> (M,), which add up to one. Few targets say
    little about agreement: then all weights are equal.
    """
    n_targets, n_members = labels.shape
    if n_targets < FEWEST_TARGETS or n_members < 2:
        return np.full(n_members, 1 / n_members)
    same = (labels[:, :, None] == labels[:, None, :]).mean(axis=0)
    agreement = (same.sum(axis=1) - 1) / (n_members - 1)
    weights = np.exp(AGREEMENT_WEIGHT * agreement)
    return np.asarray(weights / weights.sum())


def sharpness_of(agreement: Vector) -> float:
    r"""Return the exponent of the mean votes, from the share of members that give each label.

    .. math:: \gamma = e^{6 (\bar a - 0.85)}

    Few targets say little about agreement: then the votes stay as they are.
    """
    if len(agreement) < FEWEST_TARGETS:
        return 1.0
    return float(np.exp(SHARPENING * (agreement.mean() - USUAL_AGREEMENT)))


def share_of_votes(share: float) -> float:
    """Return the share by which members vote if a person vouches for this one.

    Where known and unknown scores overlap, the true share rejects few unknowns if it is small, and
    few knowns stay if it is large (`docs/experiments.md`).
    """
    return min((1 - TO_HALF) * share + TO_HALF / 2, MOST_MORE * share)
