"""Groups of targets that look alike, large and small: what a mark on one says about the others.

The source has no part in it. Every target belongs to one group of each size in each view of the
columns, and later samples to that with the nearest centre.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from opensetda.features.alignment import COMPONENTS, WHITENING, Alignment, Matrix
from opensetda.features.scaling import NONE, RANKS, Scaling
from opensetda.methods import saving
from opensetda.rows import Domains, IntArray, Rows

SIZES = (10, 20, 40, 80, 160)
"""How many groups there are of each size."""
GROUP_ROWS = 4096  # targets that groups are made of; the others join the nearest
ITERATIONS = 100


class Grouping(NamedTuple):
    """Groups of n rows by L partitions."""

    cells: IntArray
    """The group of each row in each partition: (n, L)."""
    central: IntArray
    """Places of the rows in the middle of a group, ascending: (k,)."""


class TargetView(nn.Module):
    """Rows of the target by their own principal components, perhaps after ranks of columns."""

    def __init__(self, scaling: Scaling, alignment: Alignment) -> None:
        super().__init__()
        self.scaling = scaling
        self.alignment = alignment

    @classmethod
    def fit(cls, name: str, rows: Matrix) -> TargetView:
        """Compute ranks and components of some rows: (n, D)."""
        all_rows = Rows(rows, np.arange(len(rows)))
        none = np.zeros(len(rows), dtype=np.intp)
        scaling, scaled = Scaling.applied(name, Domains(all_rows, none, all_rows, np.zeros(1)))
        return cls(scaling, Alignment.fit(scaled.target, scaled.target, COMPONENTS, WHITENING))

    @classmethod
    def of_state(cls, name: str, arrays: Mapping[str, Tensor]) -> TargetView:
        """Return the module that these saved arrays are loaded into."""
        scaling = Scaling(name, saving.part(arrays, "scaling."))
        return cls(scaling, Alignment.of_state(arrays))

    def forward(self, x: Tensor) -> Tensor:
        """Represent rows, each on its own: (n, D) -> (n, d)."""
        represented: Tensor = self.alignment(self.scaling(x))
        return represented


def views_for(scaling: str) -> tuple[str, ...]:
    """Return the views of rows that are scaled like this: as they are, and as ranks."""
    return (NONE,) if scaling == RANKS else (NONE, RANKS)


class TargetGroups(nn.Module):
    """Groups of the targets by several views, each at all `SIZES`.

    Shapes: scaled rows x (n, D) -> the group in each partition (n, L), each row on its own.
    """

    def __init__(self, views: Sequence[TargetView], centres: Sequence[Tensor]) -> None:
        super().__init__()
        self.views = nn.ModuleList(views)
        self.n_partitions = len(centres)
        for number, rows in enumerate(centres):
            self.register_buffer(f"centres_{number}", rows)

    @classmethod
    def fit(cls, target: Rows, scaling: str) -> TargetGroups:
        """Find the groups of scaled rows, in canonical order."""
        sample = np.concatenate([chunk for _, chunk in target.first(GROUP_ROWS).chunks()])
        views = [TargetView.fit(name, sample) for name in views_for(scaling)]
        centres: list[Tensor] = []
        for view in views:
            with torch.no_grad():
                represented = view(torch.from_numpy(sample)).numpy()
            centres += [torch.from_numpy(found) for found in centres_of(represented)]
        return cls(views, centres)

    @classmethod
    def of_state(cls, scaling: str, arrays: Mapping[str, Tensor]) -> TargetGroups:
        """Return the module that these saved arrays are loaded into."""
        names = views_for(scaling)
        views = [
            TargetView.of_state(name, saving.part(arrays, f"views.{place}."))
            for place, name in enumerate(names)
        ]
        numbers = range(len(names) * len(SIZES))
        return cls(views, [arrays[f"centres_{number}"] for number in numbers])

    @property
    def centres(self) -> list[Tensor]:
        """The centres of the groups of each partition: (k, d) each."""
        return [self.get_buffer(f"centres_{number}") for number in range(self.n_partitions)]

    def forward(self, x: Tensor) -> Tensor:
        """Return the nearest group of each partition: (n, D) -> (n, L)."""
        cells: list[Tensor] = []
        centres = self.centres
        for number, view in enumerate(self.views):
            z = view(x)
            for rows in centres[number * len(SIZES) : (number + 1) * len(SIZES)]:
                nearness = z @ rows.T - (rows * rows).sum(dim=1) / 2
                cells.append(nearness.argmax(dim=1))
        return torch.stack(cells, dim=1)


def centres_of(rows: Matrix) -> list[Matrix]:
    """Return the centres of the groups of rows, at all `SIZES`: (n, d) -> (k, d) each."""
    from sklearn.cluster import KMeans

    different = len(np.unique(rows, axis=0))
    centres = []
    # Several threads would add numbers in an order of their own.
    with threadpool_limits(1):
        for size in SIZES:
            count = min(size, different)
            found = KMeans(count, n_init=1, max_iter=ITERATIONS, random_state=0).fit(rows)
            centres.append(found.cluster_centers_.astype(np.float64))
    return centres


def grouped(parts: Sequence[Matrix]) -> Grouping:
    """Group rows by several representations of them: (n, d) each."""
    cells: list[IntArray] = []
    central: list[IntArray] = []
    for rows in parts:
        for centres in centres_of(rows):
            nearness = rows @ centres.T - (centres * centres).sum(axis=1) / 2
            cell = nearness.argmax(axis=1)
            cells.append(cell)
            apart = ((rows - centres[cell]) ** 2).sum(axis=1)
            by_group = np.lexsort((apart, cell))
            _, first = np.unique(cell[by_group], return_index=True)
            central.append(by_group[first])
    return Grouping(np.stack(cells, axis=1), np.unique(np.concatenate(central)))
