"""From the single runs of a grid to rows of a table: over tasks the mean, over seeds the spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from opensetda.analyses.table import Column, Spread
from opensetda.benchmark.grid import OK
from opensetda.report.lines import Series
from opensetda.runs.figure_style import METRIC_STYLE

Row = Mapping[str, Any]

METRICS = ("unk", "all", "os", "os_star", "hos")


def metric_columns(metrics: Sequence[str] = METRICS) -> list[Column]:
    """Return the columns of metrics, in %."""
    return [Column(name, METRIC_STYLE[name][0], "percent") for name in metrics]


def by_seed(rows: Iterable[Row], name: str) -> dict[int, float]:
    """Return the mean over tasks for each seed; a seed with a task missing is left out."""
    values: dict[int, list[float]] = {}
    for row in rows:
        value = row[name] if row["status"] == OK else None
        values.setdefault(row["seed"], []).append(math.nan if value is None else float(value))
    means = {seed: fmean(found) for seed, found in values.items()}
    return {seed: mean for seed, mean in means.items() if math.isfinite(mean)}


def summary(rows: Sequence[Row], metrics: Sequence[str] = METRICS) -> dict[str, Spread]:
    """Return mean and deviation over seeds, by metric."""
    return {name: Spread.of(by_seed(rows, name).values()) for name in metrics}


def difference(rows: Sequence[Row], base: Sequence[Row], name: str = "hos") -> Spread:
    """Return what runs have more than those of `base`, seed by seed."""
    own, theirs = by_seed(rows, name), by_seed(base, name)
    return Spread.of(own[seed] - theirs[seed] for seed in own if seed in theirs)


def failures(rows: Iterable[Row]) -> list[str]:
    """Say which runs failed, and why."""
    return [
        f"Failed: {row['method']} on {row['task']}, seed {row['seed']}: {row['error']}"
        for row in rows
        if row["status"] != OK
    ]


def series(
    name: str,
    spreads: Mapping[float, Spread],
    look: tuple[str, str, float],
    scale: Callable[[float], float] = lambda share: 100 * share,
) -> Series:
    """Return a line of spreads by place; `look` is colour, marker and width."""
    drawn = {place: spread for place, spread in spreads.items() if spread.n}
    color, marker, width = look
    return Series(
        name,
        {place: scale(spread.mean) for place, spread in drawn.items()},
        color,
        marker,
        width,
        {place: scale(spread.deviation or 0.0) for place, spread in drawn.items()},
    )


def metric_series(summaries: Mapping[float, Mapping[str, Spread]]) -> list[Series]:
    """Return a line a metric over a quantity that was varied."""
    lines = []
    for metric in next(iter(summaries.values())):
        if metric in METRIC_STYLE:
            heading, color, marker, width = METRIC_STYLE[metric]
            spreads = {place: values[metric] for place, values in summaries.items()}
            lines.append(series(heading, spreads, (color, marker, width)))
    return lines
