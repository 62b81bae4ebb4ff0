"""OSNN: the ratio of the distances to the nearest class and to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opensetda.methods.rejectors import base
from opensetda.rows import IntArray, first_of_every_class
from opensetda.share.decision import Matrix, Scores

# T with two classes, of which none can be hidden; Lowe's value for matching key points.
DEFAULT_THRESHOLD = 0.8
VALIDATION_ROWS = 4000  # source rows that choose the threshold
BLOCK_ROWS = 512  # rows whose distances are computed at a time
DISTANCE_SCALE = 16.0  # Of distances as logits: those to neighbouring classes differ by little.


class DistanceRatioRejector(base.Rejector):
    r"""Open-set nearest neighbours by the ratio of two distances.

    Mendes Júnior et al., "Nearest neighbors distance ratio open-set classifier", Machine
    Learning 106, 2017. With t the nearest neighbour of a sample s among the source, and u the
    nearest one of another class than t's,

    .. math:: R(s) = d(s, t) / d(s, u), \qquad
        \text{s has the class of t if } R(s) \le T, \text{ else it is unknown.}

    T is chosen on the source: half of the classes in turn are hidden and used as unknowns
    (`best_threshold`). All other samples are neighbours of a sample there; in the paper half of
    them. The known score is -R, the class scores are minus the distances to each class.
    """

    needs_logits = False
    kept = ("rows", "counts", "typical")

    # The source class by class, its rows of each class, mean distance of a row to another class.
    rows: Tensor
    counts: Tensor
    typical: Tensor

    def fit(self, features: Tensor, y: IntArray, n_classes: int) -> None:
        """Keep the rows (n, d), and choose the threshold T."""
        order = np.argsort(y, kind="stable")
        self.keep({"rows": features[order], "counts": np.bincount(y), "typical": 1.0})
        own = first_of_every_class(y, n_classes, VALIDATION_ROWS)
        distances = self._distances_without_itself(np.argsort(order)[own])
        y = y[own]
        others = np.where(np.arange(n_classes) == y[:, None], np.inf, distances).min(axis=1)
        self.typical = torch.tensor(max(float(others.mean()), 1e-12), dtype=torch.float64)
        # A class of one sample has no neighbour of its own class: it cannot be recognised.
        alone = np.isinf(distances[np.arange(len(own)), y])
        distances = distances[~alone]
        y = y[~alone]
        rounds = []
        for hidden in base.hidings(n_classes):
            seen = np.where(hidden, np.inf, distances)
            known = -distance_ratio(torch.from_numpy(seen)).numpy()
            rounds.append((known, hidden[y], seen.argmin(axis=1) == y))
        self.threshold = -base.best_threshold(rounds, -DEFAULT_THRESHOLD)

    def keep(self, values: Mapping[str, Any]) -> None:
        """Register the rows class by class."""
        super().keep(values)
        self._sizes = self.counts.tolist()

    def forward(self, features: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """Score rows (m, d) by their neighbours; the logits are not used."""
        distances = self._nearest(base.squared_distances(features, self.rows))
        return -DISTANCE_SCALE * distances / self.typical, -distance_ratio(distances)

    def own_cut(self, scores: Scores) -> float | None:
        """Return -T: a ratio above T is unknown."""
        return -self.threshold

    def _nearest(self, squared: Tensor) -> Tensor:
        """Return the distances to the nearest row of each class: (m, n) -> (m, C)."""
        parts = torch.split(squared, self._sizes, dim=1)
        return torch.stack([part.amin(dim=1) for part in parts], dim=1).sqrt()

    def _distances_without_itself(self, places: IntArray) -> Matrix:
        """Return the distances of some of the rows to all others: (m, C)."""
        nearest = []
        for block in torch.split(torch.from_numpy(places), BLOCK_ROWS):
            squared = base.squared_distances(self.rows[block], self.rows)
            squared[torch.arange(len(block)), block] = torch.inf
            nearest.append(self._nearest(squared))
        return np.asarray(torch.cat(nearest).numpy())


def distance_ratio(distances: Tensor) -> Tensor:
    """R, from distances (n, C) to each class -> (n,); 1 for rows equal to rows of two classes."""
    nearest, _ = distances.topk(2, dim=1, largest=False)
    first = nearest[:, 0]
    second = nearest[:, 1]
    return torch.where(first < second, first / second, 1.0)
