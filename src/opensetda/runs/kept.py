"""What a run keeps of its domains: of the source for `adapt`, of the target for `drift`.

Both are features before any scaling, in ``kept.safetensors``; their number is bounded. Of the
source these are labelled rows, or only statistics of each class, from which rows are drawn. Targets
that a person labelled are always kept as rows, unless nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from opensetda.rows import Domains, IntArray, first_of_every_class
from opensetda.runs.integrity import damaged

KEPT = "kept.safetensors"
MOST_ROWS = 800
"""Rows of each domain that are kept, at most, if they have fewer than 10,000 features."""
MOST_NUMBERS = 2**23
# Of the source more rows are kept where they are narrow: methods learn from up to 4,096.
MOST_SOURCES = 4096
NARROW_NUMBERS = 2**20
AXES = 64  # directions in which the rows of a class spread; the rest is alike in all directions

How = Literal["rows", "statistics", "none"]
Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Kept:
    """Rows or statistics of the source, and some rows of the target.

    `rows` (n, D) have the classes `y` (n,), as an index into the classes of the run; the last
    `n_marked` are targets that a person labelled. `statistics` are ``means`` (C, D), ``counts``
    (C,), and the spread within classes: ``axes`` (k, D), scaled, and ``rest`` (D,).
    """

    how: How
    target: Matrix
    target_rows: IntArray
    rows: Matrix
    y: IntArray
    n_marked: int = 0
    statistics: dict[str, Matrix] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write a safetensors file."""
        arrays = {
            "how": np.array([get_args(How).index(self.how), self.n_marked]),
            "target": self.target,
            "target_rows": self.target_rows,
            "rows": self.rows,
            "y": self.y,
        }
        arrays |= self.statistics
        contiguous = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
        path.write_bytes(safetensors.numpy.save(contiguous))

    @classmethod
    def of_arrays(
        cls, arrays: Mapping[str, npt.NDArray[Any]], classes: Sequence[str], path: Path
    ) -> Kept:
        """Return what `write` wrote, or raise an `InputError` that names the file."""
        own = dict(arrays)
        try:
            how, n_marked = own.pop("how").tolist()
            return cls(
                how=get_args(How)[int(how)],
                target=own.pop("target"),
                target_rows=own.pop("target_rows").astype(np.intp),
                rows=own.pop("rows"),
                y=own.pop("y").astype(np.intp),
                n_marked=int(n_marked),
                statistics=own,
                classes=tuple(classes),
            )
        except (KeyError, ValueError, IndexError) as error:
            raise damaged(path, str(error)) from error

    def source(self, seed: int = 0) -> tuple[Matrix, IntArray]:
        """Return labelled rows: (n, D), (n,); those of statistics are drawn from them."""
        if self.how != "statistics":
            return self.rows, self.y
        rows, y = drawn_rows(self.statistics, seed)
        return np.concatenate([rows, self.rows]), np.concatenate([y, self.y])

    def without(self, marked: Matrix) -> Kept:
        """Leave out these rows among those that a person labelled: (m, D)."""
        newer = {row.tobytes() for row in marked}
        first = len(self.rows) - self.n_marked
        stays = np.array(
            [place < first or row.tobytes() not in newer for place, row in enumerate(self.rows)],
            dtype=bool,
        )
        n_marked = int(stays[first:].sum())
        return replace(self, rows=self.rows[stays], y=self.y[stays], n_marked=n_marked)

    def joined(
        self, marked: Matrix, moved: IntArray, y: IntArray, classes: tuple[str, ...]
    ) -> Kept:
        """Add rows with a class that a person gave; earlier classes are at `moved` of `classes`."""
        statistics = self.statistics
        if statistics:
            statistics = with_classes(statistics, moved, len(classes))
        return replace(
            self,
            rows=np.concatenate([self.rows, marked]),
            y=np.concatenate([moved[self.y], y]),
            n_marked=self.n_marked + len(y),
            statistics=statistics,
            classes=classes,
        )


def most_rows(n_features: int) -> int:
    """Return how many rows of a domain are kept at most."""
    return max(1, min(MOST_ROWS, MOST_NUMBERS // n_features))


def keep(
    how: How,
    domains: Domains,
    target_rows: IntArray,
    read: Callable[[IntArray, IntArray], tuple[Matrix, Matrix]],
    n_marked: int = 0,
    earlier: Kept | None = None,
) -> Kept:
    """Choose what is kept of two domains.

    The first row of the target in `domains` is `target_rows[0]` of the file, and so on. `read`
    returns rows of the source and of the target by their numbers. The last `n_marked` rows of the
    source are targets that a person labelled. What an `earlier` run kept of the source is kept on.
    """
    n_source = len(domains.source)
    most = most_rows(domains.source.width)
    of_target = target_rows[domains.target.first(most).index - n_source]
    order = np.argsort(domains.source.index, kind="stable")
    y = domains.y[order]
    is_marked = np.arange(n_source) >= n_source - n_marked
    canonical = domains.source.index[~is_marked[domains.source.index]]
    n_kept = max(most, min(MOST_SOURCES, NARROW_NUMBERS // domains.source.width))
    chosen = canonical[first_of_every_class(y[canonical], domains.n_classes, n_kept)]
    if how == "none":
        chosen = chosen[:0]
        is_marked = is_marked & False
    marked = np.flatnonzero(is_marked)
    # In canonical order: sums for statistics depend on it.
    wanted = np.concatenate([chosen, marked])
    rows, target = read(wanted, of_target)
    kept = Kept(how, target, of_target, rows, y[wanted], len(marked))
    if how != "statistics":
        return kept
    n_drawn = len(wanted) - len(marked)
    statistics = class_statistics(rows[:n_drawn], kept.y[:n_drawn], domains.n_classes)
    if earlier is not None and earlier.how == "statistics":
        # Those of drawn rows would be a little off, and more so with every run.
        places = np.searchsorted(domains.classes, np.array(earlier.classes))
        statistics = with_classes(earlier.statistics, places, domains.n_classes)
    return replace(kept, rows=rows[n_drawn:], y=kept.y[n_drawn:], statistics=statistics)


def class_statistics(rows: Matrix, y: IntArray, n_classes: int) -> dict[str, Matrix]:
    """Return the mean of each class, and the spread of all classes around their means."""
    counts = np.bincount(y, minlength=n_classes)
    means = np.zeros((n_classes, rows.shape[1]))
    np.add.at(means, y, rows.astype(np.float64))
    means /= np.maximum(counts, 1)[:, None]
    spread = (rows - means[y]) / np.sqrt(max(len(rows) - int((counts > 0).sum()), 1))
    _, lengths, axes = np.linalg.svd(spread, full_matrices=False)
    own = lengths[:AXES, None] * axes[:AXES]
    left = np.maximum((spread**2).sum(axis=0) - (own**2).sum(axis=0), 0)
    found = {"means": means, "counts": counts, "axes": own, "rest": np.sqrt(left)}
    return {name: values.astype(np.float32) for name, values in found.items()}


def with_classes(
    statistics: dict[str, Matrix], places: IntArray, n_classes: int
) -> dict[str, Matrix]:
    """Return statistics whose classes have other places, among further ones without rows."""
    moved = dict(statistics)
    for name in ("means", "counts"):
        values = statistics[name]
        moved[name] = np.zeros((n_classes, *values.shape[1:]), dtype=values.dtype)
        moved[name][places] = values
    return moved


def drawn_rows(statistics: dict[str, Matrix], seed: int) -> tuple[Matrix, IntArray]:
    """Draw as many rows of each class as there were, normally distributed: (n, D), (n,)."""
    y = np.repeat(np.arange(len(statistics["counts"])), statistics["counts"].astype(np.intp))
    rng = np.random.default_rng(seed)
    axes = statistics["axes"]
    rest = statistics["rest"]
    along = rng.normal(size=(len(y), len(axes))) @ axes
    own = rng.normal(size=(len(y), len(rest))) * rest
    return (statistics["means"][y] + along + own).astype(np.float32), y
