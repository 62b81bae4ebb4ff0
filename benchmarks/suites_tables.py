"""Tables of what suites.py has measured."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import fmean
from typing import Any

from published_figures import markdown
from suites_data import OFFICE, PARTIAL

METHODS = ("pgl", "smoothed-means", "daod", "class-means", "source-only")
"""Our own first."""
OWN = METHODS[0]
UNTRAINED = "pgl-untrained"
SHARE_ONLY = "pgl-share"
"""Estimates the share as PGL does, and nothing else."""
GIVEN = "given"
CONSTANT = 0.4
"""The share that `constant` gives to a method."""
# An error of the share above which a warning is due, and one below which it is a false alarm.
LARGE_ERROR, SMALL_ERROR = 0.2, 0.1
# "No unknowns" is wrong where at least this share is unknown.
MANY_UNKNOWNS = 0.25

Record = dict[str, Any]
Value = Callable[[Record], float]
_WORDS = ("suite", "task", "method", "scaling", "share", "openness", "scaling_used", "error")
_BLOCK = re.compile(r"(<!-- suites:begin -->\n).*?(<!-- suites:end -->)", re.DOTALL)


def parse(lines: Iterable[Mapping[str, str]]) -> list[Record]:
    """Return the lines of the file with numbers instead of text, without cells that failed."""
    return [
        {name: text if name in _WORDS else float(text or "nan") for name, text in line.items()}
        for line in lines
        if not line["error"]
    ]


@dataclass(frozen=True)
class Table:
    """A title, what the columns are, and lines of text."""

    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]

    def text(self) -> str:
        """Return the table for a terminal."""
        rows = [self.header, *self.lines]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.header))]
        padded = ("  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)) for r in rows)
        return "\n".join(["", self.title, *(line.rstrip() for line in padded)])

    def markdown(self) -> str:
        """Return the table for a page."""
        return f"{self.title}:\n\n{markdown(self.header, self.lines)}"


def all_tables(records: Sequence[Record]) -> list[Table]:
    """Return every table that has a line."""
    extra = [trained_or_not(records), source_only_classes(records), cost(records)]
    return [*page_tables(records), *(table for table in extra if table.lines)]


def page_tables(records: Sequence[Record]) -> list[Table]:
    """Return the tables of the documentation, those that have a line."""
    tables = (told(records), shares(records), sweep(records), reliance(records), closed(records))
    return [table for table in tables if table.lines]


def short_table(records: Sequence[Record]) -> Table:
    """Return the table of README.md: one line for each suite other than Office-31."""
    by_share = {line[0]: line for line in shares(records).lines}
    lines = []
    for line in told(records).lines:
        suite, best = line[0], line[-2]
        if suite not in OFFICE:
            rival = line[1 + METHODS.index(best)].split(" ")[0] if best in METHODS else "-"
            lines.append([suite, *by_share[suite][1:4], f"{rival} ({best})"])
    title = "HOS in %, PGL with the share of unknowns told, estimated, and 0.4 throughout"
    header = ["suite", "PGL, told", "PGL, estimated", "PGL, constant 0.4", "best rival, told"]
    return Table(title, header, lines)


def fill(page: str, tables: str) -> str:
    """Put the tables between the markers of a page."""
    if not _BLOCK.search(page):
        sys.exit("error: the page has no <!-- suites:begin --> and <!-- suites:end -->; add them")
    return _BLOCK.sub(lambda match: f"{match[1]}\n{tables}\n{match[2]}", page)


# Choosing cells ------------------------------------------------------------------------------


def select(records: Iterable[Record], **wanted: Any) -> list[Record]:
    """Return the cells whose columns have these values."""
    return [r for r in records if all(r[name] == value for name, value in wanted.items())]


def suites_of(records: Iterable[Record]) -> list[str]:
    """Return the suites of the tables, in the order of the file, the partial one left out."""
    return [suite for suite in dict.fromkeys(r["suite"] for r in records) if suite != PARTIAL]


def n_tasks(records: Iterable[Record]) -> int:
    """Return the number of different tasks."""
    return len({r["task"] for r in records})


def best_scaling(records: Sequence[Record], suite: str, method: str) -> str | None:
    """Return the scaling with the best HOS, share told: chosen by the truth, for the method.

    Of the scalings that have run on the most tasks; None if there is none.
    """
    own = select(records, suite=suite, method=method, share="told", openness=GIVEN)
    groups = {name: select(own, scaling=name) for name in dict.fromkeys(r["scaling"] for r in own)}
    return max(groups, key=lambda n: (n_tasks(groups[n]), mean(groups[n], hos)), default=None)


def estimates(records: Sequence[Record], suite: str) -> list[Record]:
    """Return the estimates of the share on a suite."""
    return select(records, suite=suite, method=SHARE_ONLY, share="estimated")


def swept(records: Sequence[Record], suite: str) -> list[Record]:
    """Return the estimates on targets that have unknowns."""
    return [r for r in estimates(records, suite) if r["openness"] != "0"]


# Values --------------------------------------------------------------------------------------


def hos(record: Record) -> float:
    """Return HOS in %."""
    return float(100 * record["hos"])


def error(record: Record) -> float:
    """Return how far the share that was used is from the truth."""
    return float(abs(record["used_share"] - record["true_share"]))


def constant_error(record: Record) -> float:
    """Return how far the constant is from the truth."""
    return float(abs(CONSTANT - record["true_share"]))


def mean(records: Iterable[Record], value: Value) -> float:
    """Return the mean over tasks of the mean over their cells; NaN without a cell."""
    by_task: dict[str, list[float]] = {}
    for record in records:
        if isfinite(value(record)):
            by_task.setdefault(record["task"], []).append(value(record))
    return fmean(map(fmean, by_task.values())) if by_task else nan


def rate(records: Sequence[Record], true: Callable[[Record], bool]) -> str:
    """Return how many of the cells are so, as "3 of 9"."""
    return f"{sum(map(true, records))} of {len(records)}" if records else "-"


def number(value: float, digits: int = 1) -> str:
    """Return a number of a table, "-" if there is none."""
    return f"{value:.{digits}f}" if isfinite(value) else "-"


# The tables ----------------------------------------------------------------------------------


def told(records: Sequence[Record]) -> Table:
    """Return HOS with the share told, each rival with its better scaling."""
    given = [r for r in select(records, share="told", openness=GIVEN) if r["method"] in METHODS]
    lines = []
    for suite in suites_of(given):
        found = dict(_told_cells(given, suite))
        most = max(n_tasks(cells) for cells in found.values())
        means = {name: mean(cells, hos) for name, cells in found.items()}
        texts = [_told_text(found.get(name, []), most, name) for name in METHODS]
        rivals = [name for name in means if name != OWN]
        best = max(rivals, key=means.__getitem__, default=None)
        margin = means[OWN] - means[best] if best and OWN in means else nan
        lines.append([suite, *texts, best or "-", f"{margin:+.1f}" if isfinite(margin) else "-"])
    title = "HOS in %, share told, mean over tasks and seeds; rivals with the better scaling"
    return Table(title, ["suite", *METHODS, "best rival", "PGL ahead by"], lines)


def _told_cells(given: Sequence[Record], suite: str) -> Iterator[tuple[str, list[Record]]]:
    for name in METHODS:
        scaling = best_scaling(given, suite, name)
        if scaling is not None:
            yield name, select(given, suite=suite, method=name, scaling=scaling)


def _told_text(cells: Sequence[Record], most: int, method: str) -> str:
    if not cells:
        return "-"
    scaling = "" if method == OWN else f" ({cells[0]['scaling']})"
    lacking = f", {n_tasks(cells)} of {most} tasks" if n_tasks(cells) < most else ""
    return number(mean(cells, hos)) + scaling + lacking


def shares(records: Sequence[Record]) -> Table:
    """Return HOS of PGL by the kind of share, and the error of the share; targets as given."""
    given = select(records, method=OWN, openness=GIVEN)
    lines = []
    for suite in suites_of(given):
        by_kind = [select(given, suite=suite, share=k) for k in ("told", "estimated", "constant")]
        estimated = by_kind[1]
        errors = [mean(estimated, error), mean(estimated, constant_error)]
        texts = [number(mean(cells, hos)) for cells in by_kind]
        lines.append([suite, *texts, *(number(e, 2) for e in errors)])
    title = "PGL by the kind of share, targets as given: HOS in %, and mean error of the share"
    kinds = ["told", "estimated", "constant"]
    return Table(title, ["suite", *kinds, "error estimated", f"error of {CONSTANT}"], lines)


def sweep(records: Sequence[Record]) -> Table:
    """Return the error of the estimated share by openness."""
    columns = [GIVEN, "0.1", "0.25", "0.5", "0.75", "0.9"]
    lines = []
    for suite in suites_of(records):
        cells = swept(records, suite)
        if cells:
            by_openness = [mean(select(cells, openness=column), error) for column in columns]
            whole = [mean(cells, error), mean(cells, constant_error)]
            lines.append([suite, *(number(value, 2) for value in (*by_openness, *whole))])
    title = "Mean error of the share that PGL estimates, by the true share"
    return Table(title, ["suite", *columns, "all", f"constant {CONSTANT}"], lines)


def reliance(records: Sequence[Record]) -> Table:
    """Return how far interval, warnings and "no unknowns" can be relied on, over the sweep."""
    lines = []
    for suite in suites_of(records):
        cells = swept(records, suite)
        large = [r for r in cells if error(r) > LARGE_ERROR]
        small = [r for r in cells if error(r) < SMALL_ERROR]
        many = [r for r in cells if round(r["true_share"], 2) >= MANY_UNKNOWNS]
        if cells:
            lines.append([
                suite,
                rate(cells, lambda r: r["low"] <= r["true_share"] <= r["high"]),
                rate(large, lambda r: r["warnings"] > 0),
                rate(small, lambda r: r["warnings"] > 0),
                rate(many, lambda r: not r["found_unknowns"]),
            ])  # fmt: skip
    title = "Runs of PGL over the same targets: what the report says about its own estimate"
    header = ["suite", "interval holds", f"warned, error > {LARGE_ERROR}",
              f"warned, error < {SMALL_ERROR}",
              f'"no unknowns", {MANY_UNKNOWNS:.0%} or more unknown']  # fmt: skip
    return Table(title, header, lines)


def closed(records: Sequence[Record]) -> Table:
    """Return what is rejected where there are no unknowns."""
    lines = []
    for suite in suites_of(records):
        cells = select(estimates(records, suite), openness="0")
        if cells:
            rejected = [100 * r["rejected"] for r in cells]
            said = rate(cells, lambda r: not r["found_unknowns"])
            average = mean(cells, lambda r: 100 * r["rejected"])
            lines.append([suite, number(average), number(max(rejected)), said])
    title = "Targets without unknowns: share that PGL rejects in %, share estimated"
    return Table(title, ["suite", "mean", "worst", 'says "no unknowns"'], lines)


def trained_or_not(records: Sequence[Record]) -> Table:
    """Return HOS of PGL with and without training, targets as given."""
    given = select(records, openness=GIVEN)
    lines = []
    for suite in suites_of(select(given, method=UNTRAINED)):
        means = [
            mean(select(given, suite=suite, method=method, share=share), hos)
            for share in ("told", "estimated")
            for method in (OWN, UNTRAINED)
        ]
        lines.append([suite, *map(number, means)])
    header = ["suite", "told: trained", "untrained", "estimated: trained", "untrained"]
    return Table("PGL with and without the learned adapter, HOS in %", header, lines)


def source_only_classes(records: Sequence[Record]) -> Table:
    """Return HOS where the source has classes that the target lacks."""
    partial = select(records, suite=PARTIAL, openness=GIVEN)
    lines = []
    for method in dict.fromkeys(r["method"] for r in partial):
        kinds = [select(partial, method=method, share=k) for k in ("told", "estimated")]
        means = [number(mean(cells, hos)) for cells in kinds]
        lines.append([method, *means, number(mean(kinds[1], error), 2)])
    title = f"{PARTIAL}: 10 shared classes, 10 of the source alone, 11 unknown; HOS in %"
    return Table(title, ["method", "told", "estimated", "error of the share"], lines)


def cost(records: Sequence[Record]) -> Table:
    """Return seconds and peak memory of Office-31, targets as given."""
    given = [r for r in select(records, openness=GIVEN) if r["suite"] in OFFICE]
    lines = []
    for suite in suites_of(given):
        for method in dict.fromkeys(r["method"] for r in given):
            own = select(given, suite=suite, method=method)
            if own:
                lines.append([suite, method, *_cost(own)])
    if given:
        lines.append(["all", "", *_cost(given)])
    title = "Cost of the grid of Office-31, targets as given"
    return Table(title, ["suite", "method", "cells", "seconds", "peak MB"], lines)


def _cost(records: Sequence[Record]) -> list[str]:
    seconds = sum(r["seconds"] for r in records)
    return [str(len(records)), f"{seconds:.0f}", f"{max(r['memory_mb'] for r in records):.0f}"]
