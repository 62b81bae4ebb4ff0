"""A metric from the spread within the classes, which the adapter can take at every step."""

from __future__ import annotations

import torch
from torch import Tensor

from opensetda.pgl.network import class_sums


def scatter_within_classes(rows: Tensor, labels: Tensor, n_classes: int) -> Tensor | None:
    """Covariance of one domain's rows around the means of their known classes.

    Rows alone in their class, unknown or without label are left out; None if no row is left.

    Shapes: rows (n, d), labels (n,) -> (d, d).
    """
    sums, counts = class_sums(rows, labels, n_classes)
    known = (labels >= 0) & (labels < n_classes)
    used = known & (counts[labels.clamp(0, n_classes - 1)] > 1)
    if not used.any():
        return None
    classes = labels[used]
    rest = (rows[used] - sums[classes] / counts[classes, None]).double()
    return rest.t() @ rest / len(rest)


def whitening_within_classes(
    domains: list[tuple[Tensor, Tensor]], n_classes: int, ridge: float
) -> Tensor | None:
    r"""Map in which the classes spread alike in all directions (ours).

    .. math::
        W \propto \Big(\frac{d}{\operatorname{tr} S} S + r I\Big)^{-1/2}, \quad
        S = \frac12 (S_s + S_t)

    with the scatter within classes of source and pseudo-labelled targets, each around the class
    means of its own domain, and the ridge r. The eigenvalues of W have mean one. Directions in
    which members of one class differ say little about whether a sample belongs to it, whichever
    classes are known: this carries over to unknowns, where a loss on the known does not.

    Shapes: `domains` has rows (n, d) and labels (n,) -> (d, d); None without any spread.
    """
    found = [scatter_within_classes(*domain, n_classes) for domain in domains]
    scatters = [scatter for scatter in found if scatter is not None]
    if not scatters:
        return None
    scatter = torch.stack(scatters).mean(dim=0)
    mean = scatter.trace() / len(scatter)
    if not mean > 0:
        return None
    values, axes = torch.linalg.eigh(scatter / mean)
    scale = (values.clamp(min=0) + ridge).rsqrt()
    whitening: Tensor = (axes * (scale / scale.mean())) @ axes.t()
    return whitening
