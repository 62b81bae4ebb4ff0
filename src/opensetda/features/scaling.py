"""How columns are scaled before a method sees them: as they are, standardised, or as ranks.

Columns in different units, or with a different spread in each domain, hide the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri
from torch import Tensor, nn

from opensetda.errors import InputError
from opensetda.features.alignment import WIDE, sampled
from opensetda.rows import FloatArray, Moderated, Moderation, Rows

NONE, STANDARD, RANKS = "none", "standard", "ranks"
SCALINGS = (NONE, STANDARD, RANKS)
SENTENCES = {
    NONE: "as given",
    STANDARD: "standardised within each domain",
    RANKS: "as ranks within each domain",
}
# Ranks of fewer targets say little: that of a single one is always the middle.
FEWEST_ROWS = 20
# Levels of the table by which a value becomes a rank.
LEVELS = 256
# A value beyond all others is as far out as one of a thousand, not at infinity.
OUTERMOST = 0.001

Table = npt.NDArray[np.float64]


class Scaling(nn.Module):
    """One way to scale columns, with a table for each domain.

    Parameters
    ----------
    name : {"none", "standard", "ranks"}
        "standard": each domain's columns get mean 0 and deviation 1. "ranks": a value becomes
        the normal score of its rank in its column and domain.
    source, target : arrays, optional
        Mean and deviation, (2, D), or evenly spaced quantiles, (`LEVELS` or fewer, D), of each
        domain.
    moderation : Moderation
        What brings extreme numbers to ordinary ones before they are scaled.
    """

    def __init__(
        self,
        name: str,
        source: Table | None = None,
        target: Table | None = None,
        moderation: Moderation = Moderation(),  # noqa: B008 - it cannot be changed
    ) -> None:
        super().__init__()
        self.name, self.moderation, self._tables = name, moderation, (source, target)
        form = NormalScores if name == RANKS else Standardised
        self._source = None if source is None else form(torch.from_numpy(source))
        self._target = None if target is None else form(torch.from_numpy(target))

    @classmethod
    def fit(cls, name: str, source: Rows, target: Rows) -> Scaling:
        """Compute the tables; with few targets, or none, that of the source is taken for both."""
        check_scaling(name)
        moderation = source.X.moderation if isinstance(source.X, Moderated) else Moderation()
        if name == NONE:
            return cls(name, moderation=moderation)
        of_source = _table(name, source)
        of_target = _table(name, target) if len(target) >= FEWEST_ROWS else of_source
        return cls(name, of_source, of_target, moderation)

    def domains(self, source: Rows, target: Rows) -> tuple[Rows, Rows]:
        """Return rows that are scaled whenever they are read."""
        if self.name == NONE:
            return source, target
        return source.scaled(self.of_source), target.scaled(self.of_target)

    def of_source(self, rows: FloatArray) -> FloatArray:
        """Scale ordinary rows of the source: (n, D) -> (n, D)."""
        return _apply(self._source, rows)

    def of_target(self, rows: FloatArray) -> FloatArray:
        """Scale ordinary rows of the target: (n, D) -> (n, D)."""
        return _apply(self._target, rows)

    def forward(self, rows: Tensor, of_source: bool = False) -> Tensor:
        """Scale later samples as the rows of `fit` were: (n, D) -> float64 (n, D).

        Rounded to single precision where `fit` does it, so that equal rows stay equal.
        """
        rows, moderation = rows.double(), self.moderation
        if moderation.offset is not None:
            rows = rows - torch.from_numpy(moderation.offset)
        if moderation.exponent:
            # In two steps: of subnormal numbers, one power would overflow.
            half = moderation.exponent // 2
            rows = rows * 2.0**-half * 2.0 ** (half - moderation.exponent)
        scale, rows = self._source if of_source else self._target, rows.float()
        return (rows if scale is None else scale(rows)).double()

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the tables by name, for a saved model."""
        tables: dict[str, Any] = dict(zip(("source", "target"), self._tables, strict=True))
        tables["offset"] = self.moderation.offset
        tables["exponent"] = np.array([self.moderation.exponent])
        return {name: table for name, table in tables.items() if table is not None}

    @classmethod
    def restore(cls, name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Scaling:
        """Return the scaling of a saved model."""
        if name not in SCALINGS:
            raise InputError(f"saved model: scaling {name!r} does not exist; fit again")
        moderation = Moderation(int(arrays["exponent"].item()), arrays.get("offset"))
        if name == NONE:
            return cls(name, moderation=moderation)
        return cls(name, arrays["source"], arrays["target"], moderation)


def check_scaling(name: Any) -> None:
    """Raise an `InputError` if there is no such scaling."""
    if not isinstance(name, str) or name not in SCALINGS:
        raise InputError(f"scaling={name!r}: choose one of {', '.join(SCALINGS)}")


class Standardised(nn.Module):
    """Subtract the mean and divide by the deviation: (n, D) -> float32 (n, D)."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, rows: Tensor) -> Tensor:
        """Standardise rows."""
        return ((rows.double() - self.table[0]) / self.table[1]).float()


class NormalScores(nn.Module):
    """The normal score of each value's rank among the quantiles of its column.

    Between two quantiles the score is interpolated; values equal to several quantiles get the
    middle between the first and the last score.

    Shapes: quantiles (L, D), rows float32 (n, D) -> float32 (n, D).
    """

    ordered: Tensor
    start: Tensor
    slope: Tensor
    score: Tensor
    middle: Tensor

    def __init__(self, quantiles: Tensor) -> None:
        super().__init__()
        levels, width = quantiles.shape
        ranks = torch.linspace(0, 1, levels, dtype=torch.float64)[:, None].expand(-1, width)
        columns = quantiles.T.contiguous()
        first = torch.searchsorted(columns, columns).T
        scores = torch.from_numpy(ndtri(ranks.clamp(OUTERMOST, 1 - OUTERMOST).numpy()))
        middles = (scores + scores.gather(0, first)) / 2
        gaps = quantiles.diff(dim=0)
        slopes = torch.where(gaps > 0, scores.diff(dim=0) / gaps, 0.0)
        # One more row, for values below all quantiles; and so many that halving them ends at one.
        size = 1 << int(levels).bit_length()
        below, none = torch.full((1, width), -torch.inf), torch.zeros(1, width)
        above = torch.full((size - levels - 1, width), torch.inf)
        self.size = size
        for name, parts in {
            "ordered": [below, quantiles, above],
            "start": [none, quantiles],
            "slope": [none, slopes, none],
            "score": [scores[:1], scores],
            "middle": [scores[:1], middles],
        }.items():
            self.register_buffer(name, torch.cat(parts).double(), persistent=False)
        # Values in single precision reach a quantile if they reach the next such number.
        single = self.ordered.float()
        higher = torch.nextafter(single, torch.tensor(torch.inf))
        self.ordered = torch.where(single < self.ordered, higher, single)

    def forward(self, rows: Tensor) -> Tensor:
        """Find the last quantile that a value reaches, by halving: `searchsorted` has no ONNX."""
        place = torch.zeros_like(rows, dtype=torch.int64)
        step = self.size // 2
        while step:
            further = place + step
            place = torch.where(rows >= self.ordered.gather(0, further), further, place)
            step //= 2
        rows = rows.double()
        start, slope = self.start.gather(0, place), self.slope.gather(0, place)
        between = self.score.gather(0, place) + slope * (rows - start)
        return torch.where(rows == start, self.middle.gather(0, place), between).float()


def _apply(scale: nn.Module | None, rows: FloatArray) -> FloatArray:
    if scale is None:
        return rows
    with torch.no_grad():
        return np.asarray(scale(torch.from_numpy(rows.astype(np.float32, copy=False))).numpy())


def _table(name: str, rows: Rows) -> Table:
    sample = np.concatenate([chunk for _, chunk in sampled(rows).chunks()])
    if name == STANDARD:
        deviation = sample.std(axis=0, dtype=np.float64)
        # A constant column stays constant.
        scale = np.where(deviation > 0, deviation, 1)
        return np.stack([sample.mean(axis=0, dtype=np.float64), scale])
    # Far faster than numpy's quantiles, which are partitions for every level.
    ordered = np.sort(sample, axis=0).astype(np.float64)
    # Of wide rows there are few, and no more levels than rows.
    levels = LEVELS if ordered.shape[1] <= WIDE else max(2, min(LEVELS, len(ordered)))
    places = np.linspace(0, len(ordered) - 1, levels)
    below, share = places.astype(np.intp), (places % 1)[:, None]
    above = np.minimum(below + 1, len(ordered) - 1)
    # In this form equal values stay equal.
    return np.asarray(ordered[below] + share * (ordered[above] - ordered[below]))
