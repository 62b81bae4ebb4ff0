"""From the rows of a grid to its files: all rows as Parquet, tables as Markdown and CSV.

A method's figure on a task is the mean over its seeds; its average is the mean of those over
tasks; the deviation of the average is that of the mean over tasks, over seeds. Deviations are those
of a sample (n - 1), NaN for a single run. Failed runs are left out and counted: their mean is
incomplete and never marked as the best. A metric that is undefined in a run (UNK without unknowns)
makes the mean undefined.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from scipy.stats import rankdata

from opensetda.benchmark.grid import COLUMNS, OK, TEXT
from opensetda.system.files import new_file

RESULTS, MARKDOWN, CSV = "results.parquet", "table.md", "table.csv"
DASH, INCOMPLETE, PLUS_MINUS = "-", "†", "±"
NAN = float("nan")

Row = Mapping[str, Any]

_OPENNESS = {"true": "True share of unknowns given", "auto": "Share of unknowns estimated"}


class _Column(NamedTuple):
    """The format of an average, and which value is best."""

    heading: str
    scale: float
    digits: int
    best: Callable[[Sequence[float]], float] | None


_NAMES = {"os": "OS", "os_star": "OS*", "unk": "UNK", "hos": "HOS", "all": "ALL", "auroc": "AUROC"}
_AVERAGES = {
    **{name: _Column(heading, 100, 1, max) for name, heading in _NAMES.items()},
    "share": _Column("share %", 100, 1, None),
    "share_error": _Column("share off by", 100, 1, min),
    "seconds": _Column("seconds", 1, 1, min),
    "memory_mb": _Column("MB", 1, 0, min),
}
_SHARES = ("share", "share_error")


def write_report(
    rows: Sequence[Row], out: Path, title: str, reference: str | None = None, command: str = ""
) -> list[Section]:
    """Write all files of a benchmark into the folder `out`, and return the summaries.

    `rows` are `Results.rows`; `reference` is the method that the others are tested against, without
    a row there is no test; `command` is the command line, which is written above the tables.
    """
    sections = summarise(rows, reference)
    # Explicit types: a column of nulls has none of its own.
    types = dict.fromkeys(TEXT, pa.string()) | {"seed": pa.int64()}
    schema = pa.schema([(name, types.get(name, pa.float64())) for name in COLUMNS])
    columns = {name: [row.get(name) for row in rows] for name in COLUMNS}
    with new_file(out / RESULTS) as aside:
        pyarrow.parquet.write_table(pa.table(columns, schema=schema), aside)
    with new_file(out / MARKDOWN) as aside:
        aside.write_text(_markdown(rows, sections, title, command), encoding="utf-8")
    with new_file(out / CSV) as aside:
        write_csv((record for section in sections for record in _records(section)), aside)
    return sections


# Figures --------------------------------------------------------------------------------------


class Figure(NamedTuple):
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
    """A row of the tables: HOS by task, averages over tasks, and the test against the reference.

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
    parts: dict[tuple[float | None, str], list[Row]] = {}
    for row in rows:
        parts.setdefault((row["target_openness"], row["openness"]), []).append(row)
    return [_section(openness, share, own, reference) for (share, openness), own in parts.items()]


def _section(
    openness: str, share: float | None, rows: Sequence[Row], reference: str | None
) -> Section:
    tasks = tuple(dict.fromkeys(row["task"] for row in rows))
    methods = {}
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [[r for r in rows if (r["method"], r["task"]) == (name, task)] for task in tasks]
        by_task = {task: _figure("hos", [found]) for task, found in zip(tasks, own, strict=True)}
        averages = {metric: _figure(metric, own) for metric in _AVERAGES}
        methods[name] = MethodSummary(name, by_task, averages)
    first = methods.get(reference or "")
    compared = tuple(
        method if first is None or method is first else _compared(method, first)
        for method in methods.values()
    )
    shares = {row["task"]: row["true_share"] for row in rows if row["status"] == OK}
    true_share = fmean(shares.values()) if shares else NAN
    against = None if first is None else first.method
    return Section(openness, share, tasks, compared, against, true_share)


def _figure(metric: str, tasks: Sequence[Sequence[Row]]) -> Figure:
    """Return the mean over tasks of the mean over seeds."""
    good = [[row for row in rows if row["status"] == OK] for rows in tasks]
    means = [fmean(_value(row, metric) for row in rows) for rows in good if rows]
    of_seed: dict[int, list[float]] = {}
    for row in (row for rows in good for row in rows):
        of_seed.setdefault(row["seed"], []).append(_value(row, metric))
    # Means of seeds with failed tasks cannot be compared.
    by_seed = [fmean(values) for values in of_seed.values() if len(values) == len(tasks)]
    defined = len(by_seed) > 1 and not math.isnan(sum(by_seed))
    mean, deviation = fmean(means) if means else NAN, stdev(by_seed) if defined else NAN
    n_runs = sum(map(len, good))
    return Figure(mean, deviation, n_runs, n_failed=sum(map(len, tasks)) - n_runs)


def _value(row: Row, metric: str) -> float:
    """Return a metric of a run; NaN if it is undefined."""
    if metric == "share_error":
        return abs(_value(row, "share") - _value(row, "true_share"))
    return NAN if row[metric] is None else float(row[metric])


def _compared(method: MethodSummary, reference: MethodSummary) -> MethodSummary:
    differences = [reference.tasks[task].mean - own.mean for task, own in method.tasks.items()]
    differences = [difference for difference in differences if not math.isnan(difference)]
    better = sum(difference > 0 for difference in differences)
    p_value = paired_p_value(differences)
    return replace(method, p_value=p_value, n_better=better, n_compared=len(differences))


def paired_p_value(differences: Sequence[float]) -> float:
    """Return the exact two-sided p-value of Wilcoxon's signed-rank test; NaN without any pair.

    Wilcoxon, Biometrics Bulletin 1945; recommended for methods on several data sets by Demsar,
    JMLR 2006. Differences of 0 are left out; ties share the mean of their ranks, which scipy's
    exact distribution does not allow for. If neither method is better, all 2^n sums of positive
    ranks are equally likely: the p-value is twice the share of sums as extreme as the one observed.
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


# Tables ---------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A cell of a table, and whether it is the best of its column."""

    text: str
    best: bool = False


class TextTable(NamedTuple):
    """A table of text; the first column names the row."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]


def task_table(section: Section) -> TextTable:
    """Return HOS of each method on each task, with the average and the test."""
    methods, hos = section.methods, _AVERAGES["hos"]
    columns = {
        task: _shown(hos, [method.tasks[task] for method in methods]) for task in section.tasks
    }
    columns["average"] = _shown(hos, [method.averages["hos"] for method in methods])
    if section.reference is not None:
        p_values = [method.p_value for method in methods]
        columns["p"] = [Entry("<0.001" if p < 0.001 else number(p, 3)) for p in p_values]
        better = [(method.n_better, method.n_compared) for method in methods]
        won = [Entry(f"{n} of {compared}" if compared else DASH) for n, compared in better]
        columns[f"{section.reference} better"] = won
    return _table(section, "HOS in %", columns)


def average_table(section: Section) -> TextTable:
    """Return every average over the tasks; a given share is met by every method."""
    columns = {
        column.heading: _shown(column, [method.averages[name] for method in section.methods])
        for name, column in _AVERAGES.items()
        if section.openness != "true" or name not in _SHARES
    }
    return _table(section, f"averages over {_tasks(len(section.tasks))}", columns)


def _table(section: Section, title: str, columns: dict[str, list[Entry]]) -> TextTable:
    names = [Entry(method.method) for method in section.methods]
    how = _OPENNESS.get(section.openness, section.openness)
    if section.target_openness is not None:
        how += f", targets reduced to {section.target_openness:g} unknown"
    rows = tuple(zip(names, *columns.values(), strict=True))
    return TextTable(f"{how}: {title}", ("method", *columns), rows)


def _shown(column: _Column, figures: Sequence[Figure]) -> list[Entry]:
    """Return a column as text; values with equal digits are equally good."""
    rounded = [round(column.scale * figure.mean, column.digits) for figure in figures]
    whole = [value for value, figure in zip(rounded, figures, strict=True) if figure.complete]
    best = column.best(whole) if column.best is not None and whole else math.nan
    entries = []
    for value, figure in zip(rounded, figures, strict=True):
        text = number(column.scale * figure.mean, column.digits)
        if column.best is max and text != DASH:
            text += f" {PLUS_MINUS} {number(column.scale * figure.deviation, column.digits)}"
        text = text if figure.n_failed == 0 else f"{text} {INCOMPLETE}"
        entries.append(Entry(text, figure.complete and value == best))
    return entries


def _tasks(n_tasks: int) -> str:
    return f"{n_tasks} task" if n_tasks == 1 else f"{n_tasks} tasks"


def number(value: float | None, digits: int) -> str:
    """Return a number with `digits` decimals, or a dash for None and NaN."""
    return DASH if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def notes(rows: Sequence[Row], sections: Sequence[Section]) -> list[str]:
    """Return the notes below the tables."""
    seeds = ", ".join(str(seed) for seed in sorted({row["seed"] for row in rows}))
    said = [
        f"Mean {PLUS_MINUS} deviation over the seeds ({seeds}); a dash for "
        "the deviation of one run: the method is deterministic, or there is one seed."
    ]
    tested = [section for section in sections if section.reference is not None]
    if tested:
        n_tasks = len(tested[0].tasks)
        # That of a method that wins on every task.
        smallest = min(1.0, 2.0 ** (1 - n_tasks))
        said.append(
            f"p: exact two-sided Wilcoxon signed-rank test against {tested[0].reference} over "
            f"{_tasks(n_tasks)}; no result could give less than {smallest:.2g}."
        )
    n_failed = len(failures(rows))
    if n_failed:
        said.append(
            f"{INCOMPLETE} {n_failed} of {len(rows)} runs failed: a mean of the others, "
            "incomplete and never marked as the best."
        )
    return said


def failures(rows: Sequence[Row]) -> list[str]:
    """Return one line per failed run."""
    form = "{method}, {task}, openness {openness}, seed {seed}: {error}"
    return [form.format(**row) for row in rows if row["status"] != OK]


# Forms ----------------------------------------------------------------------------------------


def _markdown(rows: Sequence[Row], sections: Sequence[Section], title: str, command: str) -> str:
    parts = [f"# {title}\n", *([f"```\n{command}\n```\n"] if command else [])]
    for section in sections:
        share = number(100 * section.true_share, 1)
        parts += [markdown(task_table(section)), markdown(average_table(section))]
        parts.append(f"True share of unknowns, averaged over the tasks: {share} %.\n")
    parts.append("\n".join(f"- {line}" for line in notes(rows, sections)) + "\n")
    listed = "\n".join(f"- {markdown_text(line)}" for line in failures(rows))
    return "\n".join([*parts, *([f"Runs that failed:\n\n{listed}\n"] if listed else [])])


def markdown(table: TextTable) -> str:
    """Return a table in GitHub's Markdown, under its title."""
    lines = [[markdown_text(heading) for heading in table.headings]]
    lines.append(["---", *["---:"] * (len(table.headings) - 1)])
    for row in table.rows:
        texts = [(markdown_text(entry.text), entry.best) for entry in row]
        lines.append([f"**{text}**" if best else text for text, best in texts])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{markdown_text(table.title)}**\n\n{body}\n"


def markdown_text(text: str) -> str:
    """Return text escaped for a Markdown table."""
    return re.sub(r"([\\|*_`<>\[\]])", r"\\\1", " ".join(text.split()))


def write_csv(records: Iterable[Row], path: Path) -> None:
    """Write unrounded values by column; NaN and missing ones are empty cells."""
    records = [{k: "" if v != v else v for k, v in record.items()} for record in records]
    headings = list(dict.fromkeys(name for record in records for name in record))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, headings, restval="")
        writer.writeheader()
        writer.writerows(records)


def _records(section: Section) -> Iterator[dict[str, Any]]:
    """Yield one line per method, as fractions."""
    for method in section.methods:
        record: dict[str, Any] = {"openness": section.openness, "method": method.method}
        if section.target_openness is not None:
            record["target openness"] = section.target_openness
        by_task = {f"hos {task}": figure for task, figure in method.tasks.items()}
        for name, figure in (by_task | method.averages).items():
            record |= {name: figure.mean, f"{name} deviation": figure.deviation}
        hos = method.averages["hos"]
        record |= {"runs": hos.n_runs, "failed": hos.n_failed}
        if section.reference is not None:
            record |= {"reference": section.reference, "p": method.p_value}
            record |= {"reference better": method.n_better, "tasks compared": method.n_compared}
        yield record
