"""How MovingMeans scores rows, the same in `fit` and later, and its metric within classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from opensetda.features.alignment import Alignment, mean_cosine, moved_to_neighbours, unit

# Cosines of neighbouring classes differ by a few hundredths: as logits they need a scale.
COSINE_SCALE = 16.0
EVIDENCE_ROWS = 30
"""Nearest known rows, and nearest pseudo-unknowns, that speak for and against a known class."""


class LabelledRows(NamedTuple):
    """Rows of one domain (n, d), and their labels or pseudo-labels (n,)."""

    rows: Tensor
    labels: Tensor


class MeansScorer(nn.Module):
    r"""Cosines to class means, plus evidence from the nearest known rows and pseudo-unknowns.

    .. math::
        z &= \operatorname{smooth}(\operatorname{unit}(W\, \operatorname{align}(x))) \\
        s(x) &= \max_c \cos(z, \mu_c) + e\, \big(\overline{\cos}(z, N_K(z))
              - \overline{\cos}(z, N_U(z))\big)

    with the nearest known rows :math:`N_K` (source and pseudo-labelled targets) and the nearest
    pseudo-unknowns :math:`N_U`.

    Parameters
    ----------
    alignment : Alignment
        Of both domains.
    metric : Tensor or None
        W (d, d); None is the identity.
    neighbours, message : int, float
        See `moved_to_neighbours`; without `message` nothing is smoothed.
    evidence : float
        e, the weight of the neighbours.

    Its rows are set once they are known: `rows` (R, d), whitened, among which neighbours are
    found; `means` (C, d); `known` (K, d) and `unknown` (U, d), smoothed.

    Shapes: x (n, D) -> logits (n, C), known scores (n,).
    """

    rows: Tensor
    means: Tensor
    known: Tensor
    unknown: Tensor
    evidence: Tensor
    metric: Tensor | None

    def __init__(
        self,
        alignment: Alignment,
        metric: Tensor | None,
        neighbours: int,
        message: float,
        evidence: float,
    ) -> None:
        super().__init__()
        self.alignment = alignment
        self.neighbours = neighbours
        self.message = message
        self.register_buffer("metric", metric)
        for name in ("rows", "means", "known", "unknown"):
            self.register_buffer(name, None)
        self.register_buffer("evidence", torch.tensor(evidence))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Score rows, each on its own."""
        return self.score(self.embed(x))

    def embed(self, x: Tensor, of_source: bool = False) -> Tensor:
        """Align, whiten and smooth rows: (n, D) -> (n, d)."""
        return self.smooth(self.whiten(self.alignment(x, of_source)))

    def whiten(self, aligned: Tensor) -> Tensor:
        """Apply the metric to aligned rows: (n, d) -> (n, d)."""
        return aligned if self.metric is None else unit(aligned @ self.metric.to(aligned))

    def smooth(self, z: Tensor) -> Tensor:
        """Move whitened rows towards their neighbours: (n, d) -> (n, d)."""
        if not self.message:
            return z
        return moved_to_neighbours(z, self.rows, self.neighbours, self.message)

    def score(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Score smoothed rows: (n, d) -> (n, C), (n,)."""
        cosine = z @ self.means.T
        known = cosine.amax(dim=1)
        if len(self.known) and len(self.unknown):
            near = mean_cosine(z, self.known, EVIDENCE_ROWS)
            far = mean_cosine(z, self.unknown, EVIDENCE_ROWS)
            known = known + self.evidence * (near - far)
        return COSINE_SCALE * cosine, known


def whitening_within_classes(
    domains: Sequence[LabelledRows], n_classes: int, ridge: float
) -> Tensor:
    r"""Map in which the classes spread alike in all directions.

    .. math::
        W \propto \Big(\frac{d}{\operatorname{tr} S} S + r I\Big)^{-1/2}, \quad
        S = \frac12 (S_s + S_t)

    with the scatter within classes of source and pseudo-labelled targets, each around the class
    means of its own domain, and the ridge r. The eigenvalues of W have mean one. Directions in
    which members of one class differ say little about whether a sample belongs to it, whichever
    classes are known: this carries over to unknowns, where a loss on the known does not.

    Shapes: rows (n, d) and labels (n,) of each domain -> (d, d); the identity without any spread.
    """
    width = domains[0].rows.shape[1]
    found = [scatter_within_classes(domain.rows, domain.labels, n_classes) for domain in domains]
    scatters = [scatter for scatter in found if scatter is not None and scatter.trace() > 0]
    if not scatters:
        return torch.eye(width, dtype=torch.float64)
    scatter = torch.stack(scatters).mean(dim=0)
    values, axes = torch.linalg.eigh(scatter * width / scatter.trace())
    scale = (values.clamp(min=0) + ridge).rsqrt()
    whitening: Tensor = (axes * (scale / scale.mean())) @ axes.T
    return whitening


def scatter_within_classes(rows: Tensor, labels: Tensor, n_classes: int) -> Tensor | None:
    """Covariance of one domain's rows around the means of their known classes.

    Rows alone in their class, unknown or without label are left out; None if no row is left.

    Shapes: rows (n, d), labels (n,) -> (d, d).
    """
    known = (labels >= 0) & (labels < n_classes)
    rows = rows[known].double()
    labels = labels[known]
    counts = torch.bincount(labels, minlength=n_classes)
    several = counts[labels] > 1
    rows = rows[several]
    labels = labels[several]
    if not len(rows):
        return None
    sums = rows.new_zeros(n_classes, rows.shape[1]).index_add(0, labels, rows)
    rest = rows - (sums / counts.clamp(min=1)[:, None])[labels]
    return rest.T @ rest / len(rest)
