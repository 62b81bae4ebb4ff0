"""How columns are scaled before a method sees them: as they are, standardised, or as ranks.

Columns in different units, or with a different spread in each domain, hide the classes; in other
data the spread of a column says how much it matters. "auto" asks the labelled source which it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from sklearn.metrics import roc_auc_score

from opensetda.errors import InputError
from opensetda.nn.alignment import WIDE, Alignment, sampled
from opensetda.nn.settings import AlignmentSettings
from opensetda.rows import (
    FloatArray,
    IntArray,
    Moderated,
    Moderation,
    Rows,
    chunk_rows,
    unit_rows,
)

AUTO, NONE, STANDARD, RANKS = "auto", "none", "standard", "ranks"
SCALINGS = (AUTO, NONE, STANDARD, RANKS)
# Of these "auto" takes the one that tells hidden classes apart; the first of those as good.
CANDIDATES = (NONE, RANKS)
# The last is a candidate if deviations of columns differ by this much: they have several units.
# In one unit, the spread of a column matters, and standardising loses it.
UNITS = 1000.0
AS_ASKED = "as asked"
_WORDS = {
    NONE: "as given",
    STANDARD: "standardised within each domain",
    RANKS: "as ranks within each domain",
}

# Names of the tables in the arrays of a saved model.
PREFIX = "scaling."
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
        Mean and deviation, (2, D), or evenly spaced quantiles, (`LEVELS` or fewer, D), of each
        domain.
    reason, quality : str and dict
        Why "auto" chose it, or "as asked"; and the figures of the candidates, if it chose.
    moderation : Moderation, optional
        What brought extreme numbers to ordinary ones before they were scaled.
    """

    def __init__(
        self,
        name: str,
        source: Table | None = None,
        target: Table | None = None,
        reason: str = "",
        quality: Mapping[str, float] | None = None,
        moderation: Moderation | None = None,
    ) -> None:
        self.name, self._source, self._target = name, source, target
        self.reason, self.quality, self.moderation = reason, dict(quality or {}), moderation

    @classmethod
    def fit(cls, name: str, source: Rows, y: IntArray, target: Rows) -> Scaling:
        """Compute the tables, after choosing if `name` is "auto"; needs no target label."""
        check_scaling(name)
        reason, quality = "" if name == NONE else AS_ASKED, {}
        if name == AUTO:
            quality = scaling_quality(source, y)
            # The first of those that are as good.
            name = max(quality, key=lambda name: quality[name]) if quality else NONE
            reason = _reason(name, quality, len(np.unique(y[:CHOOSING_ROWS])))
        notes = reason, quality, source.X.moderation if isinstance(source.X, Moderated) else None
        if name == NONE:
            return cls(name, None, None, *notes)
        of_source = _table(name, source)
        of_target = _table(name, target) if len(target) else of_source
        return cls(name, of_source, of_target, *notes)

    def domains(self, source: Rows, target: Rows) -> tuple[Rows, Rows]:
        """Return rows that are scaled whenever they are read."""
        if self.name == NONE:
            return source, target
        return source.scaled(self.of_source), target.scaled(self.of_target)

    def of_source(self, rows: FloatArray) -> FloatArray:
        """Scale rows of the source: (n, D) -> (n, D)."""
        return rows if self._source is None else _scale(self.name, rows, self._source)

    def of_target(self, rows: FloatArray) -> FloatArray:
        """Scale rows of the target, also later ones: (n, D) -> (n, D)."""
        return rows if self._target is None else _scale(self.name, rows, self._target)

    def moderate(self, rows: FloatArray) -> FloatArray:
        """Bring later rows to ordinary numbers, as those of `fit` were: (n, D) -> (n, D)."""
        return rows if self.moderation is None else self.moderation(rows)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the tables by name, for a saved model."""
        tables = {"source": self._source, "target": self._target}
        if self.moderation is not None:
            exponent = np.array([self.moderation.exponent])
            tables |= {"exponent": exponent, "offset": self.moderation.offset}
        return {PREFIX + name: table for name, table in tables.items() if table is not None}

    @classmethod
    def restore(cls, name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Scaling:
        """Return the scaling of a saved model."""
        if name not in SCALINGS:
            raise InputError(f"saved model: scaling {name!r} does not exist; fit again")
        scaling = cls(name)
        if name != NONE:
            scaling = cls(name, arrays[f"{PREFIX}source"], arrays[f"{PREFIX}target"])
        if f"{PREFIX}exponent" in arrays:
            exponent = int(arrays[f"{PREFIX}exponent"].item())
            scaling.moderation = Moderation(exponent, arrays.get(f"{PREFIX}offset"))
        return scaling

    def to_dict(self) -> dict[str, Any]:
        """Return name, reason and quality, for the record."""
        return {"name": self.name, "reason": self.reason, "quality": self.quality}


def check_scaling(name: Any) -> None:
    """Raise an `InputError` if there is no such scaling."""
    if not isinstance(name, str) or name not in SCALINGS:
        raise InputError(f"scaling={name!r}: choose one of {', '.join(SCALINGS)}")


def columns_sentence(name: str, reason: str) -> str:
    """Say how columns were scaled, and why."""
    how = _WORDS[name]
    if not reason:
        return how
    return f"{how}, {reason}" if reason == AS_ASKED else f"{how} ({reason})"


def _reason(name: str, quality: Mapping[str, float], n_classes: int) -> str:
    if not quality:
        return ""
    best = quality[name]
    # Compared with columns as given, or with the best of the others if they stay so.
    other = quality[NONE] if name != NONE else max(quality[n] for n in quality if n != NONE)
    better = "better" if best > other else "equally well"
    hidden = "hidden classes" if n_classes > 2 else "the two classes"
    measure = "AUROC" if n_classes > 2 else "accuracy"
    digits = 3 if best == other or f"{best:.3f}" != f"{other:.3f}" else 5
    figures = f"{measure} {best:.{digits}f} against {other:.{digits}f}"
    return f"{hidden} of the source are told apart {better}: {figures}"


def scaling_quality(source: Rows, y: IntArray) -> dict[str, float]:
    """Return how well a hidden class of the source is told from the others in each candidate.

    Empty if the rows that choose are all of one class.
    """
    # In canonical order the first rows are a random sample.
    most = min(CHOOSING_ROWS, chunk_rows(source.width))
    sample, labels = source.first(most), y[:most]
    classes, labels = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        return {}
    raw = np.concatenate([chunk for _, chunk in sample.chunks()])
    quality = {}
    for name in (*CANDIDATES, STANDARD) if _has_units(raw) else CANDIDATES:
        X = raw if name == NONE else _scale(name, raw, _table(name, sample))
        rows = Rows(X, np.arange(len(X)))
        nothing = Rows(X, np.arange(0))
        aligned = Alignment(AlignmentSettings()).fit(rows, nothing).source(rows)
        quality[name] = hidden_class_quality(aligned, labels)
    return quality


def _has_units(rows: FloatArray) -> bool:
    """Return whether columns (n, D) are so different that they must have different units."""
    deviations = rows.std(axis=0, dtype=np.float64)
    deviations = deviations[deviations > 0]
    if not len(deviations):
        return False
    low, high = np.quantile(deviations, (0.05, 0.95))
    return bool(high > UNITS * low)


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
    sample = np.concatenate([chunk for _, chunk in sampled(rows).chunks()])
    if name == RANKS:
        # Far faster than numpy's quantiles, which are partitions for every level.
        ordered = np.sort(sample, axis=0).astype(np.float64)
        # Of wide rows there are few, and no more levels than rows.
        levels = LEVELS if ordered.shape[1] <= WIDE else max(2, min(LEVELS, len(ordered)))
        places = np.linspace(0, len(ordered) - 1, levels)
        below, share = places.astype(np.intp), (places % 1)[:, None]
        above = np.minimum(below + 1, len(ordered) - 1)
        return np.asarray((1 - share) * ordered[below] + share * ordered[above])
    deviation = sample.std(axis=0, dtype=np.float64)
    # A constant column stays constant.
    return np.stack([sample.mean(axis=0, dtype=np.float64), np.where(deviation > 0, deviation, 1)])


def _scale(name: str, rows: FloatArray, table: Table) -> FloatArray:
    # As `fit` reads them: 0.1 in double precision would lie below all equal values of the table.
    rows = rows.astype(np.float32, copy=False)
    if name == STANDARD:
        return np.asarray((rows - table[0]) / table[1], dtype=np.float32)
    levels = np.linspace(0, 1, len(table))
    rank = np.empty(rows.shape)
    for column in range(rows.shape[1]):
        values, quantiles = rows[:, column], table[:, column]
        rank[:, column] = np.interp(values, quantiles, levels)
        if (quantiles[1:] == quantiles[:-1]).any():
            # From the other side, too: equal values share the middle of their ranks.
            others = 1 - np.interp(-values, -quantiles[::-1], levels)
            rank[:, column] = (rank[:, column] + others) / 2
    return np.asarray(ndtri(np.clip(rank, OUTERMOST, 1 - OUTERMOST)), dtype=np.float32)
