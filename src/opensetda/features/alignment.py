"""Feature rows of both domains in one space, where they move towards their neighbours.

Alignment: centre each domain, project both, half-whiten. Smoothing: the simplest message over a
graph of nearest rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse.linalg
import torch
from torch import Tensor, nn

from opensetda.rows import (
    WIDE,
    WIDE_NUMBERS,
    Domains,
    FloatArray,
    IntArray,
    Rows,
    unit_rows,
)

Matrix = npt.NDArray[np.float32]
Vector = npt.NDArray[np.float64]

COMPONENTS = 64
WHITENING = 0.5
MOMENT_ROWS = 16_384  # rows per domain that principal components are computed from
SAMPLED_ROWS = 2000  # rows of each domain that the share of unknowns is estimated from
FEW_OF_MANY = 8  # with so many times as many columns as components, these are found one by one
MOST_COSINES = 2**22  # at a time: 16 MB in single precision
SAME = 1 - 1e-6  # above this cosine two rows are equal but for rounding
SMALLEST_VARIANCE = 1e-6  # components with less of the largest variance are rounding errors


def unit(x: Tensor) -> Tensor:
    """Scale rows to unit length; a row of zeros stays zero: (n, d) -> (n, d)."""
    # Squares of shorter rows are zero.
    shortest = 2.0**-100 if x.dtype == torch.float32 else 2.0**-500
    length: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return x / length.clamp_min(shortest)


class Alignment(nn.Module):
    r"""Bring two domains of feature rows into one space.

    .. math::
        u = \operatorname{unit}(\operatorname{unit}(x) - \mu_d), \qquad
        z = \operatorname{unit}(\Lambda^{-w/2} V^\top u)

    with :math:`\mu_d` the mean of the row's own domain, :math:`V, \Lambda` the first
    principal components and variances of both domains together, with equal weight,
    and :math:`w` the whitening. Without `components`, z is u.

    Shapes: x (n, D) -> z (n, d).
    """

    source_mean: Tensor
    target_mean: Tensor
    projection: Tensor | None

    def __init__(
        self, source_mean: Tensor, target_mean: Tensor, projection: Tensor | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("source_mean", source_mean)
        self.register_buffer("target_mean", target_mean)
        self.register_buffer("projection", projection)

    @classmethod
    def fit(
        cls,
        source: Rows,
        target: Rows,
        components: int | None = COMPONENTS,
        whitening: float = WHITENING,
    ) -> Alignment:
        """Compute means and components; without a target, from the source alone."""
        means = _means(source, target)
        projection = None
        if components is not None:
            directions = _principal_map(source, target, means, components, whitening)
            projection = torch.from_numpy(directions)
        return cls(torch.from_numpy(means[0]), torch.from_numpy(means[1]), projection)

    @classmethod
    def of_state(cls, arrays: Mapping[str, Tensor], is_projected: bool = True) -> Alignment:
        """Return the module `alignment` of a saved scorer; a missing array is a `KeyError`."""
        return cls(
            source_mean=arrays["alignment.source_mean"],
            target_mean=arrays["alignment.target_mean"],
            projection=arrays["alignment.projection"] if is_projected else None,
        )

    def refit_means(self, source: Rows, target: Rows) -> None:
        """Compute the means again, for rows of a backbone that has changed."""
        of_source, of_target = _means(source, target)
        self.source_mean = torch.from_numpy(of_source)
        self.target_mean = torch.from_numpy(of_target)

    def refit_target(self, target: Rows) -> None:
        """Compute the mean of another target; the source and the axes stay."""
        self.target_mean = torch.from_numpy(_means(target, target)[1])

    def forward(self, x: Tensor, of_source: bool = False) -> Tensor:
        """Transform rows of the target, or of the source: (n, D) -> (n, d)."""
        x = self.centred(x, of_source)
        return x if self.projection is None else unit(x @ self.projection.to(x))

    def centred(self, x: Tensor, of_source: bool = False) -> Tensor:
        """Centre rows on the mean of their domain, without the projection: (n, D) -> (n, D)."""
        mean = self.source_mean if of_source else self.target_mean
        return unit(unit(x) - mean.to(x))

    @property
    def width_out(self) -> int:
        """The number of columns of aligned rows."""
        return len(self.source_mean) if self.projection is None else self.projection.shape[1]

    def source(self, rows: Rows) -> Matrix:
        """Transform rows of the source: (n, D) -> (n, d)."""
        return self.target(rows, of_source=True)

    @torch.no_grad()
    def target(self, rows: Rows, of_source: bool = False) -> Matrix:
        """Transform rows of the target: (n, D) -> (n, d)."""
        transformed = np.empty((len(rows), self.width_out), dtype=np.float32)
        for place, chunk in rows.chunks():
            # In double precision, in which squares of large and small numbers do not overflow.
            transformed[place] = self(torch.from_numpy(chunk).double(), of_source).numpy()
        return transformed


def _means(source: Rows, target: Rows) -> tuple[Vector, Vector]:
    """Return the mean of each domain's unit rows; of no target, or copies of one, the source's."""
    first = next((chunk[0] for _, chunk in target.chunks()), None)
    # A single target would be all zeros less its own mean.
    differ = any((chunk != first).any() for _, chunk in target.chunks())
    return _mean(source), _mean(target if differ else source)


def _mean(rows: Rows) -> Vector:
    total = np.zeros(rows.width)
    for _, chunk in rows.chunks():
        total += unit_rows(chunk).sum(axis=0, dtype=np.float64)
    return total / max(len(rows), 1)


def _principal_map(
    source: Rows, target: Rows, means: tuple[Vector, Vector], components: int, whitening: float
) -> npt.NDArray[np.float64]:
    """Return the map onto the principal components of both domains: (D, d)."""
    pairs = zip((source, target), means, strict=True)
    domains = [(sampled(rows), mean.astype(np.float32)) for rows, mean in pairs if len(rows)]
    weights = [len(domains) * len(rows) for rows, _ in domains]
    parts = [_centred(rows, mean) for rows, mean in domains]
    width = source.width
    if width > WIDE and all(width > 2 * len(rows) for rows, _ in domains):
        # Products of rows: no (D, D) matrix.
        weighted = zip(parts, np.sqrt(weights).astype(np.float32), strict=True)
        matrix = np.concatenate([part / by for each, by in weighted for part in each])
        keep = min(components, len(matrix))
        variances, vectors = _largest_eigenvectors((matrix @ matrix.T).astype(np.float64), keep)
        lengths = np.sqrt(np.maximum(variances, np.finfo(np.float32).tiny))
        directions = (matrix.T @ vectors.astype(np.float32)).astype(np.float64) / lengths
    else:
        moment = np.zeros((width, width), dtype=np.float32)
        for each, weight in zip(parts, weights, strict=True):
            moment += sum(part.T @ part for part in each) / np.float32(weight)
        keep = min(components, width)
        variances, directions = _largest_eigenvectors(moment.astype(np.float64), keep)
    variances = variances[::-1]
    directions = directions[:, ::-1]
    real = variances > SMALLEST_VARIANCE * max(variances[0], np.finfo(np.float64).tiny)
    if not real.any():
        real[0] = True
        variances = np.ones_like(variances)
    # The sign of an eigenvector is arbitrary: fix it, for reproducible bits.
    largest = np.abs(directions).argmax(axis=0)
    directions = directions * np.sign(directions[largest, np.arange(len(largest))])
    return np.ascontiguousarray(directions[:, real] * variances[real] ** (-whitening / 2))


def _centred(rows: Rows, mean: Matrix) -> Iterator[FloatArray]:
    return (unit_rows(unit_rows(chunk) - mean) for _, chunk in rows.chunks())


def sampled(rows: Rows) -> Rows:
    """Return as many rows as moments and quantiles of columns are computed from."""
    many = MOMENT_ROWS if rows.width <= WIDE else WIDE_NUMBERS // rows.width
    return rows.first(max(2, min(MOMENT_ROWS, many)))


def _largest_eigenvectors(moment: npt.NDArray[np.float64], keep: int) -> tuple[Any, Any]:
    """Return the `keep` largest eigenvalues, rising, and their vectors: (D, D) -> (k,), (D, k)."""
    width = len(moment)
    if width < FEW_OF_MANY * keep:
        return tuple(scipy.linalg.eigh(moment, subset_by_index=[width - keep, width - 1]))
    # Lanczos finds a few of many faster. It starts from a fixed vector, for reproducible bits.
    start = np.random.default_rng(0).normal(size=width)
    values, vectors = scipy.sparse.linalg.eigsh(moment, keep, v0=start)
    order = np.argsort(values)
    return values[order], vectors[:, order]


class Aligned(NamedTuple):
    """Rows of both domains in one space: (n_s, d), (n_t, d)."""

    alignment: Alignment
    source: Matrix
    target: Matrix


def aligned(domains: Domains, components: int | None, whitening: float) -> Aligned:
    """Align all rows of both domains, once for all methods that are fitted to them."""

    def compute() -> Aligned:
        alignment = Alignment.fit(domains.source, domains.target, components, whitening)
        return Aligned(
            alignment, alignment.source(domains.source), alignment.target(domains.target)
        )

    return domains.once(("aligned", components, whitening), compute)


def aligned_samples(domains: Domains) -> tuple[Matrix, IntArray, Matrix]:
    """Return some rows of both domains in one space, and the classes of those of the source."""
    sample = domains.sample(SAMPLED_ROWS)
    found = aligned(sample, COMPONENTS, WHITENING)
    return found.source, sample.y, found.target


def nearest(z: Tensor, others: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return cosines and places of the nearest others of unit rows: (n, d), (m, d) -> (n, k) each.

    Others that are equal to a row do not count, and have the cosine minus infinity: a row may be
    among the others itself, and a later copy of it must get the same answer.
    """
    cosine = z @ others.T
    cosine = torch.where(cosine > SAME, -torch.inf, cosine)
    largest, places = cosine.topk(min(count, len(others)), dim=1)
    return largest, places


def moved_to_neighbours(z: Tensor, others: Tensor, neighbours: int, message: float) -> Tensor:
    r"""Move unit rows towards the mean of their nearest others: (n, d), (m, d) -> (n, d).

    .. math:: z' = \operatorname{unit}\Big((1 - w)\, z
        + w \operatorname{unit}\big(\textstyle\sum_{x \in N(z)} x\big)\Big)

    A row without neighbours stays.
    """
    cosine, places = nearest(z, others, neighbours)
    # Not `len`, which an export would take for a constant.
    chosen = z.new_zeros(z.shape[0], others.shape[0])
    chosen = chosen.scatter(1, places, (cosine > -2).to(z.dtype))
    return unit((1 - message) * z + message * unit(chosen @ others))


def mean_cosine(z: Tensor, others: Tensor, count: int) -> Tensor:
    """Return the mean cosine of unit rows to their nearest others: (n, d), (m, d) -> (n,)."""
    cosine, _ = nearest(z, others, count)
    counted = cosine > -2
    total = torch.where(counted, cosine, 0.0).sum(dim=1)
    return total / counted.sum(dim=1).clamp_min(1)


def parts_of(z: Tensor, others: Tensor) -> tuple[Tensor, ...]:
    """Split rows so that their cosines to others fit into memory."""
    return torch.split(z, max(1, MOST_COSINES // max(len(others), 1)))


@torch.no_grad()
def move_to_neighbours(
    rows: FloatArray, others: FloatArray, neighbours: int, message: float
) -> Matrix:
    """Move arrays of unit rows, see `moved_to_neighbours`."""
    z = torch.from_numpy(rows)
    theirs = torch.from_numpy(others)
    parts = (moved_to_neighbours(p, theirs, neighbours, message) for p in parts_of(z, theirs))
    return np.concatenate([part.numpy() for part in parts])
