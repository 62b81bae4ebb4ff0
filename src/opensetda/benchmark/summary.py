"""From the rows of a grid to the figures of a table.

A method's figure on a task is the mean over its seeds; its average is the mean over tasks of
those; the deviation of the average is that of the mean over tasks, over seeds. Deviations
are those of a sample (n - 1), and NaN for a single run. Failed runs are left out and counted;
their mean is incomplete and never marked as the best. A metric that is undefined in a run (UNK
without unknowns) makes the mean undefined.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.stats import rankdata

from opensetda.benchmark.grid import OK

Row = Mapping[str, Any]

NAN = float("nan")
AVERAGED = (
    *("os", "os_star", "unk", "hos", "all", "auroc"),
    *("share", "share_error", "seconds", "memory_mb"),
)


@dataclass(frozen=True)
class Figure:
    """A mean, its deviation, and the numbers of successful and failed runs."""

    mean: float
    deviation: float
    n_runs: int
    n_failed: int

    @property
    def complete(self) -> bool:
        """Whether no run is missing."""
        return self.n_failed == 0 and not math.isnan(self.mean)


@dataclass(frozen=True)
class MethodSummary:
    """One row of the tables: HOS by task, the mean over tasks of each of `AVERAGED`, and the test.

    The reference is better on `n_better` of `n_compared` tasks.
    """

    method: str
    tasks: dict[str, Figure]
    averages: dict[str, Figure]
    p_value: float = NAN
    n_better: int = 0
    n_compared: int = 0


@dataclass(frozen=True)
class Section:
    """All methods with true or with estimated openness; `true_share` is a mean over tasks."""

    openness: str
    target_openness: float | None
    tasks: tuple[str, ...]
    methods: tuple[MethodSummary, ...]
    reference: str | None
    true_share: float


def summarise(rows: Sequence[Row], reference: str | None = None) -> list[Section]:
    """Return one section per kind of openness and share that targets were reduced to."""
    kinds = _distinct((row["target_openness"], row["openness"]) for row in rows)
    return [
        _section(
            *(openness, thinned),
            [
                row
                for row in rows
                if (row["target_openness"], row["openness"]) == (thinned, openness)
            ],
            reference,
        )
        for thinned, openness in kinds
    ]


def _section(
    openness: str, thinned: float | None, rows: Sequence[Row], reference: str | None
) -> Section:
    tasks = tuple(_distinct(row["task"] for row in rows))
    methods = {}
    for name in _distinct(row["method"] for row in rows):
        own = [[r for r in rows if (r["method"], r["task"]) == (name, task)] for task in tasks]
        by_task = {task: _figure("hos", [found]) for task, found in zip(tasks, own, strict=True)}
        averages = {metric: _figure(metric, own) for metric in AVERAGED}
        methods[name] = MethodSummary(name, by_task, averages)
    first = methods.get(reference) if reference is not None else None
    compared = tuple(
        method if first is None or method is first else _compared(method, first)
        for method in methods.values()
    )
    shares = {row["task"]: row["true_share"] for row in rows if row["status"] == OK}
    true_share = fmean(shares.values()) if shares else NAN
    against = None if first is None else first.method
    return Section(openness, thinned, tasks, compared, against, true_share)


def _figure(metric: str, tasks: Sequence[Sequence[Row]]) -> Figure:
    """Return the mean over tasks of the mean over seeds."""
    good = [[row for row in rows if row["status"] == OK] for rows in tasks]
    means = [fmean(_value(row, metric) for row in rows) for rows in good if rows]
    of_seed = [
        [_value(row, metric) for rows in good for row in rows if row["seed"] == seed]
        for seed in _distinct(row["seed"] for rows in tasks for row in rows)
    ]
    # Means of seeds with failed tasks cannot be compared.
    by_seed = [fmean(values) for values in of_seed if len(values) == len(tasks)]
    n_runs = sum(map(len, good))
    defined = len(by_seed) > 1 and not math.isnan(sum(by_seed))
    mean, deviation = fmean(means) if means else NAN, stdev(by_seed) if defined else NAN
    return Figure(mean, deviation, n_runs, n_failed=sum(map(len, tasks)) - n_runs)


def _compared(method: MethodSummary, reference: MethodSummary) -> MethodSummary:
    pairs = [
        (reference.tasks[task].mean, figure.mean)
        for task, figure in method.tasks.items()
        if not math.isnan(figure.mean) and not math.isnan(reference.tasks[task].mean)
    ]
    p_value = paired_p_value([own - other for own, other in pairs])
    better = sum(own > other for own, other in pairs)
    return replace(method, p_value=p_value, n_better=better, n_compared=len(pairs))


def _value(row: Row, metric: str) -> float:
    """Return a metric of a run; NaN if it is undefined."""
    if metric == "share_error":
        return abs(_value(row, "share") - _value(row, "true_share"))
    value = row[metric]
    return NAN if value is None else float(value)


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def paired_p_value(differences: Sequence[float]) -> float:
    """Return the exact two-sided p-value of Wilcoxon's signed-rank test; NaN without any pair.

    Wilcoxon, Individual comparisons by ranking methods, Biometrics Bulletin 1945; recommended for
    methods on several data sets by Demsar, JMLR 2006. Differences of 0 are left out; ties share
    the mean of their ranks, which scipy's exact distribution does not allow for. If neither method
    is better, all 2^n sums of positive ranks are equally likely: the p-value is twice the share of
    sums as extreme as the one observed, at most 1.
    """
    if not len(differences):
        return NAN
    apart = np.array([difference for difference in differences if difference != 0])
    # Doubled, shared ranks are whole numbers, too: the sums can be counted.
    ranks = np.rint(2 * rankdata(np.abs(apart))).astype(np.intp)
    ways = np.ones(1)
    for rank in ranks:
        ways = (np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))) / 2
    positive = int(ranks[apart > 0].sum())
    smaller = min(positive, int(ranks.sum()) - positive)
    return min(1.0, 2 * float(ways[: smaller + 1].sum()))


def smallest_p_value(n_tasks: int) -> float:
    """Return the p-value of a method that wins on every task: the smallest possible one."""
    return min(1.0, 2.0 ** (1 - n_tasks))
