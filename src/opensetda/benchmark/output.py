"""The files of a benchmark: all rows as Parquet, and tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opensetda.benchmark.grid import MEASURED, OK
from opensetda.benchmark.summary import AVERAGED, Section, smallest_p_value, summarise
from opensetda.benchmark.text_tables import (
    INCOMPLETE,
    PLUS_MINUS,
    average_table,
    counted,
    latex,
    markdown,
    markdown_text,
    task_table,
)
from opensetda.system.files import new_file

RESULTS = "results.parquet"
MARKDOWN, CSV, LATEX = "table.md", "table.csv", "table.tex"

Row = Mapping[str, Any]

_TEXT = ("benchmark", "task", "method", "openness", "status", "error", "warnings")
_WHOLE = ("seed", "kept_step")
_ORDER = (
    *("benchmark", "task", "method", "openness", "target_openness", "seed"),
    *MEASURED,
    *("status", "error", "warnings"),
)


def write_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write one row per cell, with nulls for missing values."""
    import pyarrow as pa
    import pyarrow.parquet

    def kind(name: str) -> Any:
        if name in _TEXT:
            return pa.string()
        return pa.int64() if name in _WHOLE else pa.float64()

    # Explicit types: a column of nulls has none of its own.
    schema = pa.schema([(name, kind(name)) for name in _ORDER])
    columns = {name: [row.get(name) for row in rows] for name in _ORDER}
    with new_file(path) as aside:
        pyarrow.parquet.write_table(pa.table(columns, schema=schema), aside)


def write_report(
    rows: Sequence[Row], out: Path, title: str, reference: str | None = None, command: str = ""
) -> list[Section]:
    """Write all files of a benchmark into its folder, and return the summaries.

    Parameters
    ----------
    rows : sequence of mappings
        `Results.rows`.
    out : Path
        The folder.
    title : str
        Title of the tables.
    reference : str, optional
        The method that the others are tested against; no test if it has no row.
    command : str
        The command line, which is written above the tables.
    """
    sections = summarise(rows, reference)
    write_parquet(rows, out / RESULTS)
    for name, text in (
        (MARKDOWN, _markdown(rows, sections, title, command)),
        (LATEX, _latex(rows, sections, title, command)),
    ):
        with new_file(out / name) as aside:
            aside.write_text(text, encoding="utf-8")
    with new_file(out / CSV) as aside:
        _write_csv(sections, aside)
    return sections


def notes(rows: Sequence[Row], sections: Sequence[Section]) -> list[str]:
    """Return the notes below the tables."""
    seeds = sorted({row["seed"] for row in rows})
    said = [
        f"Mean {PLUS_MINUS} deviation over the seeds ({', '.join(map(str, seeds))}); a dash for "
        "the deviation of one run: the method is deterministic, or there is one seed."
    ]
    for section in sections:
        if section.reference is not None:
            said.append(
                f"p: exact two-sided Wilcoxon signed-rank test against {section.reference} over "
                f"{counted(len(section.tasks))}; no result could give less than "
                f"{smallest_p_value(len(section.tasks)):.2g}."
            )
            break
    failed = [row for row in rows if row["status"] != OK]
    if failed:
        said.append(
            f"{INCOMPLETE} {len(failed)} of {len(rows)} runs failed: a mean of the others, "
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


def _markdown(rows: Sequence[Row], sections: Sequence[Section], title: str, command: str) -> str:
    parts = [f"# {title}\n"]
    if command:
        parts.append(f"```\n{command}\n```\n")
    for section in sections:
        share = f"{100 * section.true_share:.1f}" if math.isfinite(section.true_share) else "-"
        parts.append(markdown(task_table(section)))
        parts.append(markdown(average_table(section)))
        parts.append(f"True share of unknowns, averaged over the tasks: {share} %.\n")
    parts.append("\n".join(f"- {line}" for line in notes(rows, sections)) + "\n")
    failed = failures(rows)
    if failed:
        listed = "\n".join(f"- {markdown_text(line)}" for line in failed)
        parts.append(f"Runs that failed:\n\n{listed}\n")
    return "\n".join(parts)


def _latex(rows: Sequence[Row], sections: Sequence[Section], title: str, command: str) -> str:
    said = [title, command, r"Needs \usepackage{booktabs}.", *notes(rows, sections)]
    said += [f"Failed: {line}" for line in failures(rows)]
    comments = "".join(f"% {' '.join(line.split())}\n" for line in said if line)
    tables = [
        latex(table(section)) for section in sections for table in (task_table, average_table)
    ]
    return "\n".join([comments, *tables])


def _write_csv(sections: Sequence[Section], path: Path) -> None:
    """Write one line per method and openness, as unrounded fractions."""
    records = [record for section in sections for record in _records(section)]
    headings = list(dict.fromkeys(name for record in records for name in record))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, headings, restval="")
        writer.writeheader()
        writer.writerows(records)


def _records(section: Section) -> Iterator[dict[str, Any]]:
    for method in section.methods:
        record: dict[str, Any] = {"openness": section.openness, "method": method.method}
        for task in section.tasks:
            figure = method.tasks[task]
            record[f"hos {task}"] = figure.mean
            record[f"hos {task} deviation"] = figure.deviation
        for name in AVERAGED:
            record[name] = method.averages[name].mean
            record[f"{name} deviation"] = method.averages[name].deviation
        figure = method.averages["hos"]
        record |= {"runs": figure.n_runs, "failed": figure.n_failed}
        if section.reference is not None:
            record |= {
                "reference": section.reference,
                "p": method.p_value,
                "reference better": method.n_better,
                "tasks compared": method.n_compared,
            }
        yield {
            name: "" if isinstance(value, float) and math.isnan(value) else value
            for name, value in record.items()
        }
