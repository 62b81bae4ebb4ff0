"""What an analysis gets, what it returns, and the files it leaves.

A result is a table, as CSV for programs and as Markdown and text for people, and a figure.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from opensetda.benchmark.grid import AUTO, OK, TRUE, GridProgress, Results, grid_cells, run_grid
from opensetda.benchmark.output import write_parquet
from opensetda.benchmark.tasks import TaskSet
from opensetda.benchmark.variants import Variant
from opensetda.benchmark.workers import LostWorkerError, run_all
from opensetda.data.benchmarks.protocols import OpenSetTask
from opensetda.pgl.settings import PGLSettings
from opensetda.report.plots import Series
from opensetda.runs.figure_style import METRIC_STYLE, figure_bytes
from opensetda.system.files import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

METRICS = ("unk", "all", "os", "os_star", "hos")
SPREAD_NOTE = "In %, mean over tasks; ± is the deviation over seeds."
NONE = "-"
Work = TypeVar("Work")


@dataclass(frozen=True)
class PGLRun:
    """One run of PGL, as it is sent to a worker."""

    tasks: TaskSet
    task: str
    seed: int
    openness: str
    preset: str
    changes: tuple[tuple[str, Any], ...]

    def openness_of(self, task: OpenSetTask) -> float | str:
        """Return the true share of unknowns, or "auto"."""
        return task.openness if self.openness == TRUE else AUTO


@dataclass(frozen=True)
class AnalysisRequest:
    """The data and the options of an analysis; each task is run with each seed.

    Finished runs are kept in `out`. Methods get the true share of unknowns ("true"), or have to
    estimate it ("auto"). `methods` are for analyses that compare some, by default their own choice;
    `values` for those that vary a number, by default the paper's.
    """

    tasks: TaskSet
    out: Path
    seeds: tuple[int, ...] = (0, 1, 2)
    openness: str = TRUE
    preset: str = "default"
    changes: tuple[tuple[str, Any], ...] = ()
    methods: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    jobs: int = 1
    progress: GridProgress | None = None

    def settings(self) -> PGLSettings:
        """Return the settings of PGL."""
        return PGLSettings.preset(self.preset).with_changes(dict(self.changes))

    def run_variants(
        self, variants: Sequence[Variant], target_openness: Sequence[float | None] = (None,)
    ) -> Results:
        """Run variants on every task with every seed, without the runs that are finished."""
        names, openness = self.tasks.tasks, [self.openness]
        cells = grid_cells(variants, names, openness, self.seeds, target_openness)
        return run_grid(self.tasks, cells, self.out / "runs", self.jobs, self.progress)

    def run_each(self, function: Callable[[Work], Any], work: Sequence[Work]) -> list[Any]:
        """Call a function that can be pickled with each piece of work, `jobs` at once."""
        tell = self.progress or (lambda done, total, row: None)
        tell(0, len(work), None)
        results: list[Any] = [None] * len(work)
        for done, (place, result) in enumerate(run_all(function, work, self.jobs), start=1):
            if isinstance(result, LostWorkerError):
                raise RuntimeError(str(result))
            results[place] = result
            tell(done, len(work), None)
        return results

    def pgl_runs(self) -> list[PGLRun]:
        """Return PGL on every task with every seed."""
        return [
            PGLRun(self.tasks, task, seed, self.openness, self.preset, self.changes)
            for task in self.tasks.tasks
            for seed in self.seeds
        ]

    def variant(self, label: str, *changes: tuple[str, Any]) -> Variant:
        """Return PGL with the requested settings and further changes."""
        return Variant(label, "pgl", self.preset, (*self.changes, *changes))

    def what(self) -> str:
        """Return benchmark, tasks, openness and seeds in words."""
        tasks = self.tasks.tasks
        which = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
        share = "true openness" if self.openness == TRUE else "estimated openness"
        seeds = f"{len(self.seeds)} seeds" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"
        return f"{self.tasks.name} ({which}, {share}, {seeds})"


@dataclass(frozen=True)
class AnalysisResult:
    """A table, a figure, and the single runs if they come from a grid."""

    table: ResultTable
    figure: Figure
    runs: Results | None = None


def write_analysis(folder: Path, name: str, result: AnalysisResult, command: str) -> list[Path]:
    """Write or replace table, figure and, of a grid, the single runs; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    table = result.table
    page = f"{table.to_markdown()}\n![{table.title}]({name}.png)\n\nMade by `{command}`.\n"
    contents = {".csv": table.to_csv().encode(), ".md": page.encode()}
    contents |= {f".{kind}": figure_bytes(result.figure, kind) for kind in ("png", "pdf")}
    written = []
    for ending, content in contents.items():
        path = folder / f"{name}{ending}"
        with new_file(path) as aside:
            aside.write_bytes(content)
        written.append(path)
    if result.runs is not None:
        path = folder / f"{name}.parquet"
        write_parquet(result.runs.rows, path)
        written.append(path)
    return written


# Tables ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Mean and sample deviation over the `n` runs in which a quantity is defined."""

    mean: float
    deviation: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """Return the spread of the finite values."""
        numbers = [float(v) for v in values if v is not None and math.isfinite(v)]
        if not numbers:
            return cls(math.nan, None, 0)
        return cls(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None, len(numbers))


Form = Literal["text", "percent", "points", "number"]
"""Of a share, of a difference of shares, or with three digits."""


@dataclass(frozen=True)
class Column:
    """A column by its name in CSV files; a narrow screen leaves out a `detail`."""

    name: str
    heading: str
    form: Form = "text"
    detail: bool = False


@dataclass
class ResultTable:
    """Rows of values by column name: text, numbers, `Spread` or None; `marked` rows are bold."""

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
        """Return unrounded values, shares as fractions; a `Spread` has three columns."""
        names = []
        for column in self.columns:
            is_spread = any(isinstance(row.get(column.name), Spread) for row in self.rows)
            more = ("_deviation", "_runs") if is_spread else ()
            names += [column.name, *(column.name + ending for ending in more)]
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.plain_rows())
        return text.getvalue()

    def plain_rows(self) -> list[dict[str, Any]]:
        """Return the rows as in CSV: a `Spread` is mean, `_deviation` and `_runs`."""
        rows = []
        for row in self.rows:
            cells = dict(row)
            for name, value in row.items():
                if isinstance(value, Spread):
                    cells |= {name: value.mean, f"{name}_deviation": value.deviation}
                    cells[f"{name}_runs"] = value.n
            rows.append({name: _finite(value) for name, value in cells.items()})
        return rows

    def to_markdown(self) -> str:
        """Return title, table and notes in GitHub's Markdown."""
        rule = ["---" if column.form == "text" else "---:" for column in self.columns]
        lines = [[column.heading for column in self.columns], rule]
        for number, row in enumerate(self.rows):
            cells = [cell.replace("|", "\\|") for cell in self.cells(row)]
            bold = number in self.marked
            lines.append([f"**{cell}**" if bold and cell != NONE else cell for cell in cells])
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        notes = "".join(f"\n{note}\n" for note in self.notes)
        return f"# {self.title}\n\n{table}\n{notes}"


def written(value: Any, form: Form) -> str:
    """Return a value as text."""
    if isinstance(value, Spread):
        mean = written(value.mean, form)
        if value.deviation is None or mean == NONE:
            return mean
        return f"{mean} ± {written(value.deviation, form).lstrip('+')}"
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NONE
    if form == "percent":
        return f"{100 * value:.1f}"
    if form == "points":
        return f"{100 * value:+.1f}"
    return f"{value:.3f}" if form == "number" else str(value)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


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


def rows_of(results: Results, label: str) -> list[Row]:
    """Return the rows of one variant."""
    return [row for row in results.rows if row["method"] == label]


def summary(rows: Sequence[Row], metrics: Sequence[str] = METRICS) -> dict[str, Spread]:
    """Return mean and deviation over seeds, by metric."""
    return {name: Spread.of(by_seed(rows, name).values()) for name in metrics}


def difference(rows: Sequence[Row], base: Sequence[Row], name: str = "hos") -> Spread:
    """Return the difference to the runs of `base`, seed by seed."""
    own, theirs = by_seed(rows, name), by_seed(base, name)
    return Spread.of(own[seed] - theirs[seed] for seed in own if seed in theirs)


def failures(rows: Iterable[Row]) -> list[str]:
    """Return one line per failed run."""
    return [
        f"Failed: {row['method']} on {row['task']}, seed {row['seed']}: {row['error']}"
        for row in rows
        if row["status"] != OK
    ]


def spreads_by_step(
    runs: Sequence[Sequence[Mapping[str, float]]], names: Collection[str]
) -> dict[float, dict[str, Spread]]:
    """Return mean and deviation over runs, by step from 1 and by name; runs may end early."""
    return {
        step: {name: Spread.of(row[name] for row in rows if row is not None) for name in names}
        for step, rows in enumerate(zip_longest(*runs), start=1)
    }


def series(name: str, spreads: Mapping[float, Spread], look: tuple[str, str, float]) -> Series:
    """Return a line of spreads by place, in %; `look` is colour, marker and width."""
    drawn = {place: spread for place, spread in spreads.items() if spread.n}
    means = {place: 100 * spread.mean for place, spread in drawn.items()}
    deviations = {place: 100 * (spread.deviation or 0.0) for place, spread in drawn.items()}
    return Series(name, means, *look, deviations)


def metric_series(summaries: Mapping[float, Mapping[str, Spread]]) -> list[Series]:
    """Return one line per metric over a quantity that was varied."""
    lines = []
    for metric in next(iter(summaries.values())):
        if metric in METRIC_STYLE:
            heading, color, marker, width = METRIC_STYLE[metric]
            spreads = {place: values[metric] for place, values in summaries.items()}
            lines.append(series(heading, spreads, (color, marker, width)))
    return lines
