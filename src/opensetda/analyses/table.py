"""From runs to the table of an analysis: as CSV for programs, as Markdown and text for people."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, Literal

from opensetda.benchmark.grid import OK
from opensetda.report.plots import Series
from opensetda.runs.figure_style import METRIC_STYLE

NONE = "-"
PERCENT_OF = 100


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a quantity over runs.

    Attributes
    ----------
    mean : float
        NaN if it is defined in no run.
    deviation : float or None
        Of a sample; None of a single run.
    n : int
        How many runs it is defined in.
    """

    mean: float
    deviation: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """Take mean and deviation of what is a number."""
        numbers = [float(v) for v in values if v is not None and math.isfinite(v)]
        if not numbers:
            return cls(math.nan, None, 0)
        return cls(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None, len(numbers))


Form = Literal["text", "percent", "points", "number"]


@dataclass(frozen=True)
class Column:
    """One column: its name in CSV files, its heading, and how its values are written.

    Attributes
    ----------
    form : {"text", "percent", "points", "number"}
        As it is; a share as a percentage; a difference of shares in signed points; a number
        with three digits.
    detail : bool
        A narrow screen may do without it; files always have it.
    """

    name: str
    heading: str
    form: Form = "text"
    detail: bool = False

    @property
    def is_number(self) -> bool:
        """Whether its values stand at the right."""
        return self.form != "text"


@dataclass
class ResultTable:
    """Rows of values by column name: text, numbers or `Spread`; None where there is none.

    Attributes
    ----------
    marked : set of int
        Rows that stand out: in bold.
    notes : list of str
        Sentences below the table.
    """

    title: str
    columns: Sequence[Column]
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    marked: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def add(self, marked: bool = False, **values: Any) -> None:
        """Add a row."""
        if marked:
            self.marked.add(len(self.rows))
        self.rows.append(values)

    def cells(self, row: Mapping[str, Any]) -> list[str]:
        """Return the values of a row as text."""
        return [written(row.get(column.name), column.form) for column in self.columns]

    def to_csv(self) -> str:
        """Return the numbers as they are, shares as fractions; a `Spread` takes three columns."""
        spreads = {
            column.name
            for column in self.columns
            if any(isinstance(row.get(column.name), Spread) for row in self.rows)
        }
        names = []
        for column in self.columns:
            more = ("_deviation", "_runs") if column.name in spreads else ()
            names += [column.name, *(column.name + ending for ending in more)]
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.plain_rows())
        return text.getvalue()

    def plain_rows(self) -> list[dict[str, Any]]:
        """Return the rows as in CSV: a `Spread` is mean, `_deviation` and `_runs`."""
        return [_flat(row) for row in self.rows]

    def to_markdown(self) -> str:
        """Return a table of GitHub's kind, below its title."""
        rule = ["---:" if column.is_number else "---" for column in self.columns]
        lines = [[column.heading for column in self.columns], rule]
        for number, row in enumerate(self.rows):
            cells = [cell.replace("|", "\\|") for cell in self.cells(row)]
            bold = number in self.marked
            lines.append([f"**{cell}**" if bold and cell != NONE else cell for cell in cells])
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        notes = "".join(f"\n{note}\n" for note in self.notes)
        return f"# {self.title}\n\n{table}\n{notes}"


def written(value: Any, form: Form) -> str:
    """Return a value as people read it."""
    if isinstance(value, Spread):
        mean = written(value.mean, form)
        if value.deviation is None or mean == NONE:
            return mean
        return f"{mean} ± {written(value.deviation, form).lstrip('+')}"
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NONE
    if form == "percent":
        return f"{PERCENT_OF * value:.1f}"
    if form == "points":
        return f"{PERCENT_OF * value:+.1f}"
    return f"{value:.3f}" if form == "number" else str(value)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Spread):
            cells[name], cells[f"{name}_deviation"] = _finite(value.mean), value.deviation
            cells[f"{name}_runs"] = value.n
        else:
            cells[name] = _finite(value)
    return cells


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
