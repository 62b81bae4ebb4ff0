"""The files of a benchmark: all rows as Parquet, and tables as Markdown and CSV.

A section has two tables: HOS by task, and all averages.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet

from opensetda.benchmark.grid import COLUMNS, OK
from opensetda.benchmark.summary import AVERAGED, Figure, Section, smallest_p_value, summarise
from opensetda.system.files import new_file

RESULTS = "results.parquet"
MARKDOWN, CSV = "table.md", "table.csv"
DASH, INCOMPLETE, PLUS_MINUS = "-", "†", "±"

Row = Mapping[str, Any]

_TEXT = ("benchmark", "task", "method", "openness", "scaling", "status", "error", "warnings")
_OPENNESS = {"true": "True share of unknowns given", "auto": "Share of unknowns estimated"}


class Entry(NamedTuple):
    """A cell of a table, and whether it is the best of its column."""

    text: str
    best: bool = False


class TextTable(NamedTuple):
    """A table of text; the first column names the row."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]


class _Column(NamedTuple):
    """The format of a figure, and which value is best."""

    heading: str
    scale: float
    digits: int
    best: Callable[[Sequence[float]], float] | None


_NAMES = {"os": "OS", "os_star": "OS*", "unk": "UNK", "hos": "HOS", "all": "ALL", "auroc": "AUROC"}
_COLUMNS = {
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
    _write_parquet(rows, out / RESULTS)
    with new_file(out / MARKDOWN) as aside:
        aside.write_text(_markdown(rows, sections, title, command), encoding="utf-8")
    records = [record for section in sections for record in _records(section)]
    with new_file(out / CSV) as aside:
        write_csv(records, aside)
    return sections


def _write_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write one row per cell, with nulls for missing values."""
    # Explicit types: a column of nulls has none of its own.
    types = dict.fromkeys(_TEXT, pa.string()) | {"seed": pa.int64()}
    schema = pa.schema([(name, types.get(name, pa.float64())) for name in COLUMNS])
    columns = {name: [row.get(name) for row in rows] for name in COLUMNS}
    with new_file(path) as aside:
        pyarrow.parquet.write_table(pa.table(columns, schema=schema), aside)


def notes(rows: Sequence[Row], sections: Sequence[Section]) -> list[str]:
    """Return the notes below the tables."""
    seeds = sorted({row["seed"] for row in rows})
    said = [
        f"Mean {PLUS_MINUS} deviation over the seeds ({', '.join(map(str, seeds))}); a dash for "
        "the deviation of one run: the method is deterministic, or there is one seed."
    ]
    tested = [section for section in sections if section.reference is not None]
    if tested:
        n_tasks = len(tested[0].tasks)
        said.append(
            f"p: exact two-sided Wilcoxon signed-rank test against {tested[0].reference} over "
            f"{_tasks(n_tasks)}; no result could give less than {smallest_p_value(n_tasks):.2g}."
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
    return [
        f"{row['method']}, {row['task']}, openness {row['openness']}, seed {row['seed']}: "
        f"{row['error']}"
        for row in rows
        if row["status"] != OK
    ]


# The two tables -----------------------------------------------------------------------------


def task_table(section: Section) -> TextTable:
    """Return HOS of each method on each task, with the average and the test."""
    methods, hos = section.methods, _COLUMNS["hos"]
    columns = [_shown(hos, [method.tasks[task] for method in methods]) for task in section.tasks]
    columns.append(_shown(hos, [method.averages["hos"] for method in methods]))
    headings = ["method", *section.tasks, "average"]
    if section.reference is not None:
        headings += ["p", f"{section.reference} better"]
        p_values = [method.p_value for method in methods]
        columns.append([Entry("<0.001" if p < 0.001 else number(p, 3)) for p in p_values])
        better = [(method.n_better, method.n_compared) for method in methods]
        columns.append([Entry(f"{won} of {of}" if of else DASH) for won, of in better])
    return _table(section, "HOS in %", headings, columns)


def average_table(section: Section) -> TextTable:
    """Return every average over the tasks."""
    # A given share is met by every method.
    shown = {n: c for n, c in _COLUMNS.items() if section.openness != "true" or n not in _SHARES}
    columns = [
        _shown(column, [method.averages[name] for method in section.methods])
        for name, column in shown.items()
    ]
    headings = ["method", *(column.heading for column in shown.values())]
    return _table(section, f"averages over {_tasks(len(section.tasks))}", headings, columns)


def _table(
    section: Section, title: str, headings: Sequence[str], columns: Sequence[Sequence[Entry]]
) -> TextTable:
    names = [Entry(method.method) for method in section.methods]
    how = _OPENNESS.get(section.openness, section.openness)
    if section.target_openness is not None:
        how += f", targets reduced to {section.target_openness:g} unknown"
    return TextTable(f"{how}: {title}", tuple(headings), tuple(zip(names, *columns, strict=True)))


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


# Forms --------------------------------------------------------------------------------------


def _markdown(rows: Sequence[Row], sections: Sequence[Section], title: str, command: str) -> str:
    parts = [f"# {title}\n"]
    if command:
        parts.append(f"```\n{command}\n```\n")
    for section in sections:
        share = number(100 * section.true_share, 1)
        parts += [markdown(task_table(section)), markdown(average_table(section))]
        parts.append(f"True share of unknowns, averaged over the tasks: {share} %.\n")
    parts.append("\n".join(f"- {line}" for line in notes(rows, sections)) + "\n")
    failed = failures(rows)
    if failed:
        listed = "\n".join(f"- {markdown_text(line)}" for line in failed)
        parts.append(f"Runs that failed:\n\n{listed}\n")
    return "\n".join(parts)


def markdown(table: TextTable) -> str:
    """Return a table in GitHub's Markdown, under its title."""
    lines = [["---", *["---:"] * (len(table.headings) - 1)]]
    lines.insert(0, [markdown_text(heading) for heading in table.headings])
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
        figures = {f"hos {task}": method.tasks[task] for task in section.tasks}
        for name, figure in (figures | {name: method.averages[name] for name in AVERAGED}).items():
            record |= {name: figure.mean, f"{name} deviation": figure.deviation}
        figure = method.averages["hos"]
        record |= {"runs": figure.n_runs, "failed": figure.n_failed}
        if section.reference is not None:
            record |= {"reference": section.reference, "p": method.p_value}
            record |= {"reference better": method.n_better, "tasks compared": method.n_compared}
        yield record
