"""Alignment of feature rows before training: centre each domain, project, half-whiten."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse.linalg

from opensetda.nn.settings import AlignmentSettings
from opensetda.rows import FloatArray, IntArray, Rows, first_of_every_class, unit_rows

Matrix = npt.NDArray[np.float32]

# Principal components are computed from this many rows per domain.
MOMENT_ROWS = 16_384
# With more columns, products of rows take the place of products of columns, if they are fewer,
# and as many rows are taken as have these numbers.
WIDE, WIDE_NUMBERS = 4096, 2**25
# Rows of each domain that the share of unknowns is estimated from.
SAMPLED_ROWS = 2000
# With this many times as many columns as components, these are found one after the other.
FEW_OF_MANY = 8
# Components with less than this share of the largest variance are rounding errors.
SMALLEST_VARIANCE = 1e-6


class Alignment:
    r"""Bring two domains of feature rows into one space.

    .. math::
        u = \operatorname{unit}(\operatorname{unit}(x) - \mu_d), \qquad
        z = \operatorname{unit}(\Lambda^{-w/2} V^\top u)

    with :math:`\mu_d` the mean of the row's own domain, :math:`V, \Lambda` the first
    principal components and variances of both domains together, with equal weight,
    and :math:`w` the whitening (1/2 by default).

    Shapes: x (n, D) -> z (n, d), d at most `components`.
    """

    def __init__(self, settings: AlignmentSettings) -> None:
        self.settings = settings
        self.source_mean, self.target_mean = np.zeros(0), np.zeros(0)
        self.projection: npt.NDArray[np.float64] | None = None

    def fit(self, source: Rows, target: Rows) -> Alignment:
        """Compute means and components; without a target, from the source alone."""
        self.fit_means(source, target)
        if self.settings.components is not None:
            if source.width > max(WIDE, *(2 * len(sampled(rows)) for rows in (source, target))):
                found = self._pairs_of_few_rows(source, target)
            else:
                moment = self._second_moment(source, self.source_mean)
                if len(target):
                    moment = (moment + self._second_moment(target, self.target_mean)) / 2
                keep = min(self.settings.components, source.width)
                found = _largest_eigenvectors(moment.astype(np.float64), keep)
            self.projection = self._principal_map(*found)
        return self

    def fit_means(self, source: Rows, target: Rows) -> None:
        """Compute the means only."""
        self.source_mean = self.target_mean = self._mean(source)
        # A single target, or copies of it, would be all zeros less their own mean.
        if self.settings.centring == "own" and _differ(target):
            self.target_mean = self._mean(target)

    def source(self, rows: Rows) -> Matrix:
        """Transform rows of the source: (n, D) -> (n, d)."""
        return self._transform(rows, self.source_mean)

    def target(self, rows: Rows) -> Matrix:
        """Transform rows of the target: (n, D) -> (n, d)."""
        return self._transform(rows, self.target_mean)

    def later(self, X: FloatArray) -> npt.NDArray[np.float64]:
        """Transform samples that come after `fit`, in double precision: (n, D) -> (n, d)."""
        return self._project(self._centre(X.astype(np.float64), self.target_mean))

    def _transform(self, rows: Rows, mean: npt.NDArray[np.float64]) -> Matrix:
        width = rows.width if self.projection is None else self.projection.shape[1]
        transformed = np.empty((len(rows), width), dtype=np.float32)
        for place, chunk in rows.chunks():
            transformed[place] = self._project(self._centre(chunk, mean.astype(np.float32)))
        return transformed

    def _centre(self, X: FloatArray, mean: FloatArray) -> FloatArray:
        return unit_rows(unit_rows(X) - mean) if self.settings.normalise else X - mean

    def _project(self, X: FloatArray) -> npt.NDArray[np.float64]:
        if self.projection is not None:
            X = X @ self.projection.astype(X.dtype)
        return np.asarray(unit_rows(X) if self.settings.normalise else X)

    def _mean(self, rows: Rows) -> npt.NDArray[np.float64]:
        total = np.zeros(rows.width)
        if self.settings.centring != "none":
            for _, chunk in rows.chunks():
                unit = unit_rows(chunk) if self.settings.normalise else chunk
                total += unit.sum(axis=0, dtype=np.float64)
        return total / len(rows)

    def _second_moment(self, rows: Rows, mean: npt.NDArray[np.float64]) -> FloatArray:
        sample = sampled(rows)
        moment = np.zeros((rows.width, rows.width), dtype=np.float32)
        for _, chunk in sample.chunks():
            centred = self._centre(chunk, mean.astype(np.float32))
            moment += centred.T @ centred
        return moment / np.float32(len(sample))

    def _pairs_of_few_rows(self, source: Rows, target: Rows) -> tuple[Any, Any]:
        """Return what `_largest_eigenvectors` would, from products of rows: no (D, D) matrix."""
        means = (source, self.source_mean), (target, self.target_mean)
        domains = [(sampled(rows), mean.astype(np.float32)) for rows, mean in means if len(rows)]
        parts = [
            self._centre(chunk, mean) / np.float32(np.sqrt(len(domains) * len(rows)))
            for rows, mean in domains
            for _, chunk in rows.chunks()
        ]
        matrix = np.concatenate(parts)
        keep = min(self.settings.components or len(matrix), len(matrix))
        variances, vectors = _largest_eigenvectors((matrix @ matrix.T).astype(np.float64), keep)
        lengths = np.sqrt(np.maximum(variances, np.finfo(np.float32).tiny))
        return variances, (matrix.T @ vectors.astype(np.float32)).astype(np.float64) / lengths

    def _principal_map(self, variances: Any, directions: Any) -> npt.NDArray[np.float64]:
        variances, directions = variances[::-1], directions[:, ::-1]
        real = variances > SMALLEST_VARIANCE * max(variances[0], np.finfo(np.float64).tiny)
        if not real.any():
            real[0], variances = True, np.ones_like(variances)
        # The sign of an eigenvector is arbitrary: fix it, for reproducible bits.
        largest = np.abs(directions).argmax(axis=0)
        directions = directions * np.sign(directions[largest, np.arange(len(largest))])
        return np.asarray(directions[:, real] * variances[real] ** (-self.settings.whitening / 2))


def sampled(rows: Rows) -> Rows:
    """Return as many rows as moments and quantiles of columns are computed from."""
    many = MOMENT_ROWS if rows.width <= WIDE else WIDE_NUMBERS // rows.width
    return rows.first(max(2, min(MOMENT_ROWS, many)))


def _differ(rows: Rows) -> bool:
    """Return whether there are two rows that are not equal; looks no further than the first."""
    first: FloatArray | None = None
    for _, chunk in rows.chunks():
        first = chunk[0] if first is None else first
        if (chunk != first).any():
            return True
    return False


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


def aligned_samples(source: Rows, y: IntArray, target: Rows) -> tuple[Matrix, IntArray, Matrix]:
    """Return some rows of both domains in one space, and the classes of those of the source."""
    places = first_of_every_class(y, int(y.max()) + 1, SAMPLED_ROWS)
    source, target = source.take(places), target.first(SAMPLED_ROWS)
    alignment = Alignment(AlignmentSettings()).fit(source, target)
    return alignment.source(source), y[places], alignment.target(target)
