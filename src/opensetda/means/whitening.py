"""A metric from the spread within the classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def whitening_within_classes(
    domains: Sequence[tuple[Tensor, Tensor]], n_classes: int, ridge: float
) -> Tensor:
    r"""Map in which the classes spread alike in all directions.

    .. math::
        W \propto \Big(\frac{d}{\operatorname{tr} S} S + r I\Big)^{-1/2}, \quad
        S = \frac12 (S_s + S_t)

    with the scatter within classes of source and pseudo-labelled targets, each around the class
    means of its own domain, and the ridge r. The eigenvalues of W have mean one. Directions in
    which members of one class differ say little about whether a sample belongs to it, whichever
    classes are known: this carries over to unknowns, where a loss on the known does not.

    Shapes: `domains` has rows (n, d) and labels (n,) -> (d, d); the identity without any spread.
    """
    width = domains[0][0].shape[1]
    found = [scatter_within_classes(*domain, n_classes) for domain in domains]
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
    rows, labels = rows[known].double(), labels[known]
    counts = torch.bincount(labels, minlength=n_classes)
    several = counts[labels] > 1
    rows, labels = rows[several], labels[several]
    if not len(rows):
        return None
    sums = rows.new_zeros(n_classes, rows.shape[1]).index_add(0, labels, rows)
    rest = rows - (sums / counts.clamp(min=1)[:, None])[labels]
    return rest.T @ rest / len(rest)
