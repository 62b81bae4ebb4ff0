"""From the rows of a grid to its files: results.csv, table.md and summary.json.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from opensetda.benchmark.grid import OK, PAPER
from opensetda.data.benchmarks.protocols import BENCHMARKS
from opensetda.data.names import formula_warning
from opensetda.system.files import new_file, plain, write_json

RESULTS = "results.csv"
MARKDOWN = "table.md"
SUMMARY = "summary.json"
DASH = "-"
INCOMPLETE = "†"
PLUS_MINUS = "±"
NAN = float("nan")
RULES = (
    "The paper stops at step m of M and labels the share of unknowns times m/M of the targets "
    "unknown, which raises OS* and lowers UNK; HOS is of labels by the whole share."
)

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


def write_report(
    rows: Sequence[Row], out: Path, title: str, reference: str | None = None, command: str = ""
) -> list[Section]:
    """Write all files of a benchmark into the folder `out`, and return the summaries.

    `rows` are those of `run_grid`; the others are tested against the method `reference`, if any;
    `command` is the command line, which is written above the tables.
    """
    sections = summarise(rows, reference)
    with new_file(out / RESULTS) as aside:
        write_csv(rows, aside)
    with new_file(out / MARKDOWN) as aside:
        aside.write_text(_page(rows, sections, title, command), encoding="utf-8")
    with new_file(out / SUMMARY) as aside:
        write_json(aside, plain([asdict(section) for section in sections]))
    return sections


# Figures --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A mean, its deviation, and the numbers of successful and failed runs."""

    mean: float
    deviation: float
    n_runs: int
    n_failed: int


@dataclass(frozen=True)
class Section:
    """All methods with true or with estimated openness; `true_share` is a mean over tasks.

    `hos` is by method and task, `averages` by method and metric. `tests` against the reference
    are the p-value, the number of tasks on which the reference is better, and of those compared.
    """

    openness: str
    target_openness: float | None
    true_share: float
    hos: dict[str, dict[str, Figure]]
    averages: dict[str, dict[str, Figure]]
    reference: str | None
    tests: dict[str, tuple[float, int, int]]


def summarise(rows: Sequence[Row], reference: str | None = None) -> list[Section]:
    """Return one section per kind of openness and share that targets were reduced to."""
    parts: dict[tuple[float | None, str], list[Row]] = {}
    for row in rows:
        parts.setdefault((row["target_openness"], row["openness"]), []).append(row)
    sections = []
    for (share, openness), part in parts.items():
        tasks = dict.fromkeys(row["task"] for row in part)
        hos = {}
        averages = {}
        tests = {}
        for method in dict.fromkeys(row["method"] for row in part):
            runs = {
                task: [r for r in part if (r["method"], r["task"]) == (method, task)]
                for task in tasks
            }
            hos[method] = {task: _figure("hos", [own]) for task, own in runs.items()}
            averages[method] = {metric: _figure(metric, [*runs.values()]) for metric in _AVERAGES}
        against = reference if reference in hos else None
        for method in [name for name in hos if against is not None and name != against]:
            apart = [hos[str(against)][task].mean - own.mean for task, own in hos[method].items()]
            apart = [difference for difference in apart if not math.isnan(difference)]
            tests[method] = paired_p_value(apart), sum(d > 0 for d in apart), len(apart)
        shares = {row["task"]: row["true_share"] for row in part if row["status"] == OK}
        true_share = fmean(shares.values()) if shares else NAN
        sections.append(Section(openness, share, true_share, hos, averages, against, tests))
    return sections


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
    mean = fmean(means) if means else NAN
    deviation = stdev(by_seed) if defined else NAN
    n_runs = sum(map(len, good))
    return Figure(mean, deviation, n_runs, n_failed=sum(map(len, tasks)) - n_runs)


def _value(row: Row, metric: str) -> float:
    """Return a metric of a run; NaN if it is undefined."""
    if metric == "share_error":
        return abs(_value(row, "share") - _value(row, "true_share"))
    return NAN if row[metric] is None else float(row[metric])


def paired_p_value(differences: Sequence[float]) -> float:
    """Return the exact two-sided p-value of Wilcoxon's signed-rank test; NaN without any pair.

    Recommended for methods on several data sets by Demsar, JMLR 2006. Differences of 0 are left
    out; ties share the mean of their ranks, which scipy's exact distribution does not allow for.
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
    column = _AVERAGES["hos"]
    by_method = section.hos.values()
    tasks = next(iter(by_method))
    columns = {task: _shown(column, [own[task] for own in by_method]) for task in tasks}
    columns["average"] = _shown(column, [own["hos"] for own in section.averages.values()])
    if section.reference is not None:
        tests = [section.tests.get(method, (NAN, 0, 0)) for method in section.hos]
        columns["p"] = [Entry("<0.001" if p < 0.001 else number(p, 3)) for p, *_ in tests]
        won = [Entry(f"{better} of {n}" if n else DASH) for _, better, n in tests]
        columns[f"{section.reference} better"] = won
    return _table(section, "HOS in %", columns)


def average_table(section: Section) -> TextTable:
    """Return every average over the tasks; a given share is met by every method."""
    columns = {
        column.heading: _shown(column, [own[name] for own in section.averages.values()])
        for name, column in _AVERAGES.items()
        if section.openness != "true" or not name.startswith("share")
    }
    return _table(section, "averages over the tasks", columns)


def published_table(name: str, rows: Sequence[Row]) -> TextTable | None:
    """Return what the paper prints for a benchmark, and PGL's own figures by the paper's rule."""
    published = BENCHMARKS[name].published if name in BENCHMARKS else {}
    found = [(method, [*values, NAN][:3]) for method, values in published.items()]
    measured = [row for row in rows if row["status"] == OK and row[PAPER[0]] is not None]
    for method, openness in dict.fromkeys((row["method"], row["openness"]) for row in measured):
        own = [row for row in measured if (row["method"], row["openness"]) == (method, openness)]
        tasks = [[r for r in own if r["task"] == task] for task in {row["task"]: 0 for row in own}]
        figures = [100 * _figure(metric, tasks).mean for metric in PAPER]
        found.append((f"{method} here, {_OPENNESS[openness].lower()}", figures))
    cells = [(Entry(method), *(Entry(number(v, 1)) for v in values)) for method, values in found]
    title = "The paper (Luo et al., 2020), and PGL here by its rule, in %: averages over the tasks"
    return TextTable(title, ("method", "OS", "OS*", "UNK"), tuple(cells)) if cells else None


def _table(section: Section, title: str, columns: dict[str, list[Entry]]) -> TextTable:
    how = _OPENNESS[section.openness]
    if section.target_openness is not None:
        how += f", targets reduced to {section.target_openness:g} unknown"
    rows = tuple(zip(map(Entry, section.hos), *columns.values(), strict=True))
    return TextTable(f"{how}: {title}", ("method", *columns), rows)


def _shown(column: _Column, figures: Sequence[Figure]) -> list[Entry]:
    """Return a column as text; values with equal digits are equally good."""
    scale = column.scale
    digits = column.digits
    rounded = [round(scale * figure.mean, digits) for figure in figures]
    pairs = list(zip(rounded, figures, strict=True))
    # Of an undefined mean, and if some runs failed, there is no best.
    whole = [value for value, figure in pairs if not math.isnan(value) and not figure.n_failed]
    best = column.best(whole) if column.best is not None and whole else math.nan
    entries = []
    for value, figure in pairs:
        text = number(scale * figure.mean, digits)
        if column.best is max and text != DASH:
            text += f" {PLUS_MINUS} {number(scale * figure.deviation, digits)}"
        text = text if figure.n_failed == 0 else f"{text} {INCOMPLETE}"
        entries.append(Entry(text, figure.n_failed == 0 and value == best))
    return entries


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
    if reference := sections[0].reference:
        test = "exact two-sided Wilcoxon signed-rank test"
        said.append(f"p: {test} against {reference} over the tasks.")
    if any(row[PAPER[0]] is not None for row in rows):
        said.append(RULES)
    if n_failed := sum(row["status"] != OK for row in rows):
        failed = f"{INCOMPLETE} {n_failed} of {len(rows)} runs failed"
        said.append(f"{failed}: a mean of the others, never the best; {RESULTS} says why.")
    return said


# Forms ----------------------------------------------------------------------------------------


def _page(rows: Sequence[Row], sections: Sequence[Section], title: str, command: str) -> str:
    parts = [f"# {title}\n", *([f"```\n{command}\n```\n"] if command else [])]
    for section in sections:
        share = number(100 * section.true_share, 1)
        parts += [markdown(task_table(section)), markdown(average_table(section))]
        parts.append(f"True share of unknowns, averaged over the tasks: {share} %.\n")
    if (published := published_table(rows[0]["benchmark"], rows)) is not None:
        parts.append(markdown(published))
    return "\n".join([*parts, *(f"- {line}" for line in notes(rows, sections)), ""])


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


def formulas_in(path: Path, records: Sequence[Row]) -> list[str]:
    """Return a warning if `write_csv` wrote cells that start a formula in a spreadsheet."""
    values = (value for record in records for value in record.values())
    return formula_warning(path, (value for value in values if isinstance(value, str)))


def write_csv(records: Sequence[Row], path: Path) -> None:
    """Write unrounded values by column; NaN and missing ones are empty cells."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(records[0]))
        writer.writeheader()
        writer.writerows({k: "" if v != v else v for k, v in row.items()} for row in records)
