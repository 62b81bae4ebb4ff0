"""The contract of rejectors, one by softmax, and a threshold from hidden classes of the source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from opensetda.rows import IntArray
from opensetda.share.decision import Scores, Vector

Mask = npt.NDArray[np.bool_]
Round = tuple[Vector, Mask, Mask]
"""A simulated open set: known scores, who is hidden, who gets the right class if accepted; (n,)."""

# Squared distances below this share of the squared lengths are rounding errors.
SAME = 1e-13
# Rounds that hide classes: more hardly move the threshold.
MOST_ROUNDS = 10


class Rejector(nn.Module, ABC):
    """Scores how likely samples are of a known class, and may have a boundary of its own.

    `needs_logits` is whether `forward` uses those of a classifier; it needs the buffers `kept`.
    """

    needs_logits: ClassVar[bool] = True
    kept: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def fit(self, features: Tensor, y: IntArray, n_classes: int) -> None:
        """Learn from adapted source rows (n, d) in canonical order and their class indices."""

    @abstractmethod
    def forward(self, features: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """Score adapted rows (m, d), each on its own, with a classifier's logits (m, C).

        Returns class logits (m, C), perhaps of its own, and known scores (m,).
        """

    def own_cut(self, scores: Scores) -> float | None:
        """Return the known score below which a sample is unknown; None: the share decides."""
        return None

    def keep(self, values: Mapping[str, Any]) -> None:
        """Register what `forward` needs, learned or saved; a missing name is a `KeyError`."""
        for name in self.kept:
            self.register_buffer(name, torch.as_tensor(values[name]).contiguous())


class QuantileRejector(Rejector):
    """The known score is the largest softmax; the given or estimated openness is the cut."""

    def fit(self, features: Tensor, y: IntArray, n_classes: int) -> None:
        """Learn nothing: the classifier is trained already."""

    def forward(self, features: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """Score by the logits (m, C) alone."""
        assert logits is not None, "this rejector needs them"
        return logits, logits.softmax(dim=1).amax(dim=1)


def squared_distances(rows: Tensor, others: Tensor) -> Tensor:
    """Squared Euclidean distances, exactly zero between equal rows: (n, d), (m, d) -> (n, m)."""
    both = rows.square().sum(dim=1)[:, None] + others.square().sum(dim=1)
    squared = both - 2 * rows @ others.T
    return torch.where(squared < SAME * both, 0.0, squared)


def hidings(n_classes: int) -> list[Mask]:
    """Which classes are hidden in each round: a rotating half, but at least two are seen."""
    n_hidden = min(n_classes // 2, n_classes - 2)
    rounds = min(n_classes, MOST_ROUNDS) if n_hidden > 0 else 0
    starts = [n_classes * round_ // rounds for round_ in range(rounds)]
    return [(np.arange(n_classes) - start) % n_classes < n_hidden for start in starts]


def best_threshold(rounds: list[Round], default: float) -> float:
    r"""Return the threshold of the largest normalised accuracy, in the mean of all rounds.

    .. math:: \mathrm{NA}(t) = \tfrac12 \mathrm{AKS}(t) + \tfrac12 \mathrm{AUS}(t)

    with AKS the share of samples of seen classes that are accepted and get their class, AUS the
    share of samples of hidden classes that are rejected (Mendes Júnior et al., 2017). Of equally
    good ones the middle of the widest gap is taken; `default` if no round has both kinds.
    """
    known: list[Vector] = []
    gains: list[Vector] = []
    for scores, hidden, correct in rounds:
        n_hidden = int(hidden.sum())
        if 0 < n_hidden < len(hidden):
            # The gain of a threshold just above a sample: an unknown rejected, or a known lost.
            lost = correct / (len(hidden) - n_hidden)
            gains.append(np.where(hidden, 1 / n_hidden, -lost))
            known.append(scores)
    values, place = np.unique(np.concatenate([*known, []]), return_inverse=True)
    if len(values) < 2:
        return default
    gained = np.cumsum(np.bincount(place, np.concatenate(gains)))[:-1]
    best = np.flatnonzero(gained >= gained.max() - 1e-9)
    widest = best[np.diff(values)[best].argmax()]
    return float((values[widest] + values[widest + 1]) / 2)
