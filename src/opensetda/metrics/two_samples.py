r"""Whether two samples of rows come from one distribution: a permutation test.

Everything is computed from the pooled rows, so under the hypothesis of one distribution the p-value
is exact, whatever the rows are. Six statistics are combined by the smallest of their p-values, and
the same permutations give its distribution:

- the maximum mean discrepancy with a Gaussian kernel: the domain as a whole moved;
- the number of pairs of new rows among nearest neighbours: it moved locally;
- the mean of the ten largest excesses of new rows in a neighbourhood of 10 and of 20, for rows as
  given and for ranks of their columns: a new group.

Which statistics: `docs/experiments.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist
from scipy.stats import rankdata

from opensetda.rows import IntArray, content_keys, unit_rows

PERMUTATIONS = 399
COMPONENTS = 32
NEIGHBOURS = (10, 20)
LARGEST = 10  # excesses of neighbourhoods, whose mean is a statistic
FEWEST = 20  # rows of a sample that can be compared

Matrix = npt.NDArray[np.float64]
Columns = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Comparison:
    """How a new sample differs from a reference.

    `apart` is the probability that a new row has more new neighbours than a row of the reference:
    1/2 of samples of one distribution, 1 of samples that do not overlap. `group` are the places of
    new rows in the densest neighbourhood that the reference does not have.
    """

    p_value: float
    apart: float
    group: IntArray


@dataclass(frozen=True)
class _View:
    """Pooled rows in one representation: distances, and the nearest rows of each."""

    distances: npt.NDArray[np.float32]
    nearest: IntArray

    @classmethod
    def of(cls, rows: Matrix) -> _View:
        """Compute them for principal components of rows: (n, D)."""
        components = principal(np.asarray(unit_rows(rows), dtype=np.float64))
        distances = cdist(components, components).astype(np.float32)
        most = min(max(NEIGHBOURS), len(rows) - 1) + 1
        nearest = np.argpartition(distances, most - 1, axis=1)[:, :most]
        order = np.argsort(np.take_along_axis(distances, nearest, 1), axis=1, kind="stable")
        return cls(distances, np.take_along_axis(nearest, order, 1))

    def counts(self, k: int, members: Columns) -> Columns:
        """Return how many of the k nearest rows of each are members: (n, P) -> (n, P)."""
        n = len(self.nearest)
        own = self.nearest[:, : min(k, self.nearest.shape[1])]
        starts = np.arange(0, own.size + 1, own.shape[1])
        graph = csr_matrix((np.ones(own.size, np.float32), own.ravel(), starts), shape=(n, n))
        return np.asarray(graph @ members)

    def discrepancy(self, members: Columns) -> Matrix:
        """Return the squared maximum mean discrepancy for each column of members: (P,)."""
        width = max(float(np.median(self.distances)) / 2, 1e-12)
        kernel = np.exp(-((self.distances / width) ** 2))
        np.fill_diagonal(kernel, 0)
        to_members = kernel @ members
        m = float(members[:, 0].sum())
        r = len(members) - m
        within = (members * to_members).sum(axis=0, dtype=np.float64)
        across = to_members.sum(axis=0, dtype=np.float64) - within
        rest = float(kernel.sum(dtype=np.float64)) - 2 * across - within
        return np.asarray(within / (m * (m - 1)) + rest / (r * (r - 1)) - 2 * across / (m * r))


def compare_samples(
    reference: npt.NDArray[np.float32], new: npt.NDArray[np.float32], seed: int = 0
) -> Comparison:
    """Compare a new sample with a reference, both of at least `FEWEST` rows: (r, D), (n, D)."""
    pooled = np.concatenate([new, reference]).astype(np.float32)
    rng = np.random.default_rng(seed)
    # In an order that neither the files nor the samples decide: equal rows have no order.
    order = np.argsort(content_keys(pooled), kind="stable")[rng.permutation(len(pooled))]
    is_new = order < len(new)
    rows = pooled[order].astype(np.float64)
    members = np.zeros((len(rows), PERMUTATIONS + 1), dtype=np.float32)
    members[is_new, 0] = 1
    for column in range(1, PERMUTATIONS + 1):
        members[rng.permutation(len(rows))[: len(new)], column] = 1
    given = _View.of(rows - rows.mean(axis=0))
    ranked = _View.of(rankdata(rows, axis=0) / len(rows) - 0.5)
    excesses: list[Columns] = []
    statistics: list[npt.NDArray[np.floating]] = [given.discrepancy(members)]
    for view in (given, ranked):
        for k in NEIGHBOURS:
            excesses.append(excess(view.counts(k, members), k, float(is_new.mean())))
            largest = -np.partition(-excesses[-1], LARGEST, axis=0)[:LARGEST]
            statistics.append(largest.mean(axis=0))
    near = given.counts(NEIGHBOURS[0], members)
    statistics.append((near * members).sum(axis=0))
    p_values = [rankdata(-values, method="max") / len(values) for values in statistics]
    smallest = np.min(p_values, axis=0)
    group = _group(given, excesses[1], is_new)
    return Comparison(
        p_value=float((smallest <= smallest[0]).mean()),
        apart=_apart(near[:, 0] - members[:, 0], is_new),
        group=order[group],
    )


def excess(counts: Columns, k: int, share: float) -> Columns:
    """Return by how many deviations more rows of a neighbourhood are new than by chance."""
    spread = np.sqrt(k * share * (1 - share))
    return np.asarray((counts - k * share) / spread, dtype=np.float32)


def principal(rows: Matrix) -> Matrix:
    """Return principal components, half whitened: (n, D) -> (n, at most `COMPONENTS`)."""
    rows = rows - rows.mean(axis=0)
    is_wide = rows.shape[1] > rows.shape[0]
    products = rows @ rows.T if is_wide else rows.T @ rows
    values, axes = np.linalg.eigh(products)
    values = np.maximum(values[::-1][:COMPONENTS], 0)
    axes = axes[:, ::-1][:, :COMPONENTS]
    components = axes * np.sqrt(values) if is_wide else rows @ axes
    scale = (values / len(rows)) ** 0.25
    return np.asarray(components / np.where(scale > scale[0] * 1e-6, scale, np.inf))


def _apart(others: npt.NDArray[np.floating], is_new: npt.NDArray[np.bool_]) -> float:
    """Return the area under the curve by which new neighbours tell new rows from the reference.

    `others` is how many of the nearest rows of each row are new, without the row itself.
    """
    ranks = rankdata(others)
    n_new = int(is_new.sum())
    above = ranks[is_new].sum() - n_new * (n_new + 1) / 2
    return float(above / (n_new * (len(is_new) - n_new)))


def _group(view: _View, excesses: Columns, is_new: npt.NDArray[np.bool_]) -> IntArray:
    """Return the new rows around the neighbourhood with the largest excess, if it is no chance."""
    usual = np.quantile(excesses[:, 1:].max(axis=0), 0.95)
    dense = np.flatnonzero(is_new & (excesses[:, 0] > usual))
    if not len(dense):
        return dense
    place = np.full(len(is_new), -1)
    place[dense] = np.arange(len(dense))
    ends = place[view.nearest[dense]]
    starts = np.repeat(np.arange(len(dense)), ends.shape[1])
    inside = ends.ravel() >= 0
    shape = (len(dense), len(dense))
    links = csr_matrix((inside[inside], (starts[inside], ends.ravel()[inside])), shape=shape)
    _, parts = connected_components(links, directed=False)
    largest = np.argmax(np.bincount(parts))
    return np.asarray(dense[parts == largest])
