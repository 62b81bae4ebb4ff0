"""How columns, whose units may differ, are scaled before a method sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri
from torch import Tensor, nn

from opensetda.errors import InputError
from opensetda.features.alignment import sampled
from opensetda.features.search import last_reached
from opensetda.rows import WIDE, Domains, FloatArray, Moderated, Rows

NONE = "none"
STANDARD = "standard"
RANKS = "ranks"
SENTENCES = {
    NONE: "as given",
    STANDARD: "standardised within each domain",
    RANKS: "as ranks within each domain",
}
FEWEST_ROWS = 20  # ranks of fewer targets say little: that of a single one is always the middle
LEVELS = 256  # of the table by which a value becomes a rank
OUTERMOST = 0.001  # a value beyond all others is as far out as one of a thousand, not at infinity

Table = npt.NDArray[np.float64]


class Scaling(nn.Module):
    """One way to scale columns, by tables: buffers, which a saved model keeps.

    "standard" has mean and deviation, (2, D), of "source" and "target", which become 0 and 1;
    "ranks" their evenly spaced quantiles, (`LEVELS` or fewer, D): a value becomes the normal score
    of its rank in its column and domain. "offset" and "scale" bring extreme numbers to ordinary
    ones before, see `opensetda.rows.Moderated`.
    """

    source: Tensor | None
    target: Tensor | None
    offset: Tensor | None
    scale: Tensor | None

    def __init__(self, name: str, tables: Mapping[str, Tensor]) -> None:
        super().__init__()
        check_scaling(name)
        self.name = name
        for table in ("source", "target"):
            if name != NONE and table not in tables:
                raise KeyError(table)
        for table in ("source", "target", "offset", "scale"):
            self.register_buffer(table, tables.get(table))
        self._prepared: dict[str, Callable[[Tensor], Tensor]] = {}

    @classmethod
    def fit(cls, name: str, domains: Domains) -> Scaling:
        """Compute the tables; with few targets, or none, that of the source is taken for both."""
        source = domains.source
        target = domains.target
        tables: dict[str, Table] = {}
        if isinstance(source.X, Moderated):
            tables = {"offset": source.X.offset, "scale": np.array([source.X.scale])}
        if name != NONE:
            tables["source"] = _table(name, source)
            is_enough = len(target) >= FEWEST_ROWS
            tables["target"] = _table(name, target) if is_enough else tables["source"]
        return cls(name, {name: torch.from_numpy(table) for name, table in tables.items()})

    @classmethod
    def applied(cls, name: str, domains: Domains) -> tuple[Scaling, Domains]:
        """Return the scaling and the scaled domains, computed once for all methods."""

        def compute() -> tuple[Scaling, Domains]:
            scaling = cls.fit(name, domains)
            return scaling, scaling.domains(domains)

        return domains.once(("scaled", name), compute)

    @property
    def of_ordinary(self) -> Scaling:
        """The same for rows that were brought to ordinary numbers before."""
        tables = {"source": self.source, "target": self.target}
        return Scaling(self.name, {name: x for name, x in tables.items() if x is not None})

    def domains(self, domains: Domains) -> Domains:
        """Return rows that are scaled whenever they are read."""
        if self.name == NONE:
            return domains
        return replace(
            domains,
            source=domains.source.scaled(partial(self.scale_rows, of_source=True)),
            target=domains.target.scaled(self.scale_rows),
        )

    @torch.no_grad()
    def scale_rows(self, rows: FloatArray, of_source: bool = False) -> FloatArray:
        """Scale ordinary rows of the target, or of the source: (n, D) -> (n, D)."""
        if self.name == NONE:
            return rows
        single = torch.from_numpy(rows.astype(np.float32, copy=False))
        return np.asarray(self._scaled(single, of_source).numpy())

    def forward(self, rows: Tensor, of_source: bool = False) -> Tensor:
        """Scale later samples as the rows of `fit` were: (n, D) -> float64 (n, D).

        Rounded to single precision where `fit` does it, so that equal rows stay equal.
        """
        rows = rows.double()
        if self.scale is not None and self.offset is not None:
            rows = (rows - self.offset) * self.scale.item()
        return self._scaled(rows.float(), of_source).double()

    def _scaled(self, rows: Tensor, of_source: bool) -> Tensor:
        """Scale ordinary rows: float32 (n, D) -> float32 (n, D)."""
        if self.name == NONE:
            return rows
        domain = "source" if of_source else "target"
        if domain not in self._prepared:
            table = self.get_buffer(domain)
            self._prepared[domain] = (
                normal_scores(table) if self.name == RANKS else partial(standardised, table=table)
            )
        return self._prepared[domain](rows)


def check_scaling(name: Any, allowed: Sequence[str] = tuple(SENTENCES)) -> None:
    """Raise an `InputError` if there is no such scaling."""
    if not isinstance(name, str) or name not in allowed:
        raise InputError(f"scaling={name!r}: choose one of {', '.join(allowed)}")


def standardised(rows: Tensor, table: Tensor) -> Tensor:
    """Subtract the mean and divide by the deviation: (n, D), (2, D) -> float32 (n, D)."""
    return ((rows.double() - table[0]) / table[1]).float()


def normal_scores(quantiles: Tensor) -> Callable[[Tensor], Tensor]:
    """Return `NormalScores`; of wide rows some columns at a time, which are prepared every time.

    Prepared quantiles take twice their memory, and scaling takes ten times that of the rows.
    """
    if quantiles.shape[1] <= WIDE:
        return NormalScores(quantiles)
    parts = torch.split(quantiles, WIDE, dim=1)

    def scores(rows: Tensor) -> Tensor:
        pairs = zip(parts, torch.split(rows, WIDE, dim=1), strict=True)
        return torch.cat([NormalScores(part)(some) for part, some in pairs], dim=1)

    return scores


class NormalScores:
    """The normal score of each value's rank among the quantiles of its column.

    Between two quantiles it is interpolated; values equal to several get the middle between the
    first and the last score. Shapes: quantiles (L, D), rows float32 (n, D) -> float32 (n, D).
    """

    def __init__(self, quantiles: Tensor) -> None:
        levels = torch.linspace(0, 1, len(quantiles), dtype=torch.float64)
        scores = ndtri(levels.clamp(OUTERMOST, 1 - OUTERMOST).numpy())
        self.quantiles = quantiles
        self.scores = torch.from_numpy(scores)
        columns = quantiles.T.contiguous()
        first = torch.searchsorted(columns, columns).T
        self.middles = ((self.scores[:, None] + self.scores[first]) / 2).float()

    def __call__(self, rows: Tensor) -> Tensor:
        """Interpolate between the last quantile that a value reaches and the next."""
        rows = rows.double()
        reached = last_reached(self.quantiles, rows)
        place = reached.clamp(min=0)
        above = (place + 1).clamp(max=len(self.scores) - 1)
        start = self.quantiles.gather(0, place)
        gap = self.quantiles.gather(0, above) - start
        rise = self.scores[above] - self.scores[place]
        # Below all quantiles the score is that of the first.
        slope = torch.where((gap > 0) & (reached >= 0), rise / gap, 0.0)
        between = self.scores[place] + slope * (rows - start)
        return torch.where(rows == start, self.middles.gather(0, place), between.float())


def _table(name: str, rows: Rows) -> Table:
    sample = np.concatenate([chunk for _, chunk in sampled(rows).chunks()])
    if name == STANDARD:
        mean = sample.mean(axis=0, dtype=np.float64)
        deviation = sample.std(axis=0, dtype=np.float64)
        # A constant column stays constant.
        return np.stack([mean, np.where(deviation > 0, deviation, 1)])
    # Far faster than numpy's quantiles, which are partitions for every level.
    ordered = np.sort(sample, axis=0).astype(np.float64)
    # Of wide rows there are few, and no more levels than rows.
    levels = LEVELS if ordered.shape[1] <= WIDE else max(2, min(LEVELS, len(ordered)))
    places = np.linspace(0, len(ordered) - 1, levels)
    below = places.astype(np.intp)
    share = (places % 1)[:, None]
    above = np.minimum(below + 1, len(ordered) - 1)
    # In this form equal values stay equal.
    return np.asarray(ordered[below] + share * (ordered[above] - ordered[below]))
