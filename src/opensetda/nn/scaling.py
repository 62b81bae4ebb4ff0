"""How columns are scaled before a method sees them: as they are, standardised, or as ranks.

Columns in different units, or with a different spread in each domain, hide the classes; in other
data the spread of a column says how much it matters. "auto" asks the labelled source which of
the two it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from sklearn.metrics import roc_auc_score

from opensetda.errors import InputError
from opensetda.nn.alignment import MOMENT_ROWS, Alignment
from opensetda.nn.settings import AlignmentSettings
from opensetda.rows import FloatArray, IntArray, Rows, unit_rows

AUTO, NONE = "auto", "none"
SCALINGS = (AUTO, NONE, "standard", "ranks")
# Of these "auto" takes the one that tells hidden classes apart; the first if both are as good.
CANDIDATES = (NONE, "ranks")

# Rows of the source that choose: more do not change the choice.
CHOOSING_ROWS = 1000
# Levels of the table by which a value becomes a rank.
LEVELS = 256
# A value beyond all others is as far out as one of a thousand, not at infinity.
OUTERMOST = 0.001

Table = npt.NDArray[np.float64]


class Scaling:
    """One way to scale columns, with a table for each domain.

    Parameters
    ----------
    name : {"none", "standard", "ranks"}
        "standard": each domain's columns get mean 0 and deviation 1. "ranks": a value becomes
        the normal score of its rank in its column and domain.
    source, target : arrays, optional
        Mean and deviation, (2, D), or evenly spaced quantiles, (`LEVELS`, D), of each domain.
    """

    def __init__(self, name: str, source: Table | None = None, target: Table | None = None) -> None:
        self.name, self._source, self._target = name, source, target

    @classmethod
    def fit(cls, name: str, source: Rows, y: IntArray, target: Rows) -> Scaling:
        """Compute the tables, after choosing if `name` is "auto"; needs no target label."""
        check_scaling(name)
        if name == AUTO:
            name = choose_scaling(source, y)
        if name == NONE:
            return cls(name)
        of_source = _table(name, source)
        return cls(name, of_source, _table(name, target) if len(target) else of_source)

    def of_source(self, rows: FloatArray) -> FloatArray:
        """Scale rows of the source: (n, D) -> (n, D)."""
        return rows if self._source is None else _scale(self.name, rows, self._source)

    def of_target(self, rows: FloatArray) -> FloatArray:
        """Scale rows of the target, also later ones: (n, D) -> (n, D)."""
        return rows if self._target is None else _scale(self.name, rows, self._target)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the tables by name."""
        tables = {"source": self._source, "target": self._target}
        return {name: table for name, table in tables.items() if table is not None}


def check_scaling(name: Any) -> None:
    """Raise an `InputError` if there is no such scaling."""
    if name not in SCALINGS:
        raise InputError(f"scaling={name!r}: choose one of {', '.join(SCALINGS)}")


def choose_scaling(source: Rows, y: IntArray) -> str:
    """Return the candidate in which a hidden class of the source is told from the others best."""
    # In canonical order the first rows are a random sample.
    sample, labels = source.first(CHOOSING_ROWS), y[:CHOOSING_ROWS]
    classes, labels = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        return NONE
    raw = np.concatenate([chunk for _, chunk in sample.chunks()])
    quality = {}
    for name in CANDIDATES:
        X = raw if name == NONE else _scale(name, raw, _table(name, sample))
        rows = Rows(X, np.arange(len(X)))
        nothing = Rows(X, np.arange(0))
        aligned = Alignment(AlignmentSettings()).fit(rows, nothing).source(rows)
        quality[name] = hidden_class_quality(aligned, labels)
    return max(quality, key=lambda name: quality[name])


def hidden_class_quality(rows: FloatArray, y: IntArray) -> float:
    """Return how well a class that is hidden is told from the others, by cosine, as AUROC.

    Every class is hidden in turn: the other rows are centred without it, and its rows should be
    further from the others' means than their own rows are. With two classes none can be hidden:
    the accuracy of the nearest class mean, each row left out of its own. Rows (n, d) of unit
    length, y (n,).
    """
    n_classes = int(y.max()) + 1
    sums = np.stack([rows[y == label].sum(axis=0) for label in range(n_classes)])
    if n_classes == 2:
        others = unit_rows(sums[y] - rows)
        return float(((rows * others).sum(axis=1) > (rows * unit_rows(sums)[1 - y]).sum(1)).mean())
    counts = np.bincount(y)
    quality = []
    for hidden in range(n_classes):
        known = y != hidden
        centre = rows[known].mean(axis=0)
        left = np.flatnonzero(np.arange(n_classes) != hidden)
        means = unit_rows(sums[left] / counts[left, None] - centre)
        quality.append(roc_auc_score(known, (unit_rows(rows - centre) @ means.T).max(axis=1)))
    return float(np.mean(quality))


def _table(name: str, rows: Rows) -> Table:
    sample = np.concatenate([chunk for _, chunk in rows.first(MOMENT_ROWS).chunks()])
    if name == "ranks":
        return np.asarray(np.quantile(sample, np.linspace(0, 1, LEVELS), axis=0), dtype=float)
    deviation = sample.std(axis=0, dtype=np.float64)
    # A constant column stays constant.
    return np.stack([sample.mean(axis=0, dtype=np.float64), np.where(deviation > 0, deviation, 1)])


def _scale(name: str, rows: FloatArray, table: Table) -> FloatArray:
    if name == "standard":
        return np.asarray(((rows - table[0]) / table[1]).astype(rows.dtype))
    levels = np.linspace(0, 1, LEVELS)
    rank = np.empty(rows.shape, dtype=rows.dtype)
    for column in range(rows.shape[1]):
        values, quantiles = rows[:, column], table[:, column]
        # From both sides: equal values share the middle of their ranks.
        low = np.interp(values, quantiles, levels)
        high = 1 - np.interp(-values, -quantiles[::-1], levels)
        rank[:, column] = (low + high) / 2
    return np.asarray(ndtri(np.clip(rank, OUTERMOST, 1 - OUTERMOST)), dtype=rows.dtype)


def restored_scaling(name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Scaling:
    """Return the scaling of a saved model."""
    return Scaling(name) if name == NONE else Scaling(name, arrays["source"], arrays["target"])
