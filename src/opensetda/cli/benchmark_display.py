"""What a person sees of `osda benchmark`: how far it is, and the tables at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensetda.cli import console

if TYPE_CHECKING:
    from rich.table import Table

    from opensetda.benchmark.grid import GridProgress, Results
    from opensetda.benchmark.summary import Section
    from opensetda.benchmark.text_tables import TextTable

_SHOWN_FAILURES = 10


@contextmanager
def grid_progress() -> Iterator[GridProgress]:
    """Yield what tells a person how far the grid is, and warns of runs that failed."""
    from opensetda.cli.counting import counting_progress

    failed = 0
    with counting_progress("benchmark", "run") as progress:

        def tell(done: int, total: int, row: dict[str, Any] | None) -> None:
            nonlocal failed
            if row is not None and row["error"] is not None:
                failed += 1
                console.warn(f"{row['method']} on {row['task']} failed: {row['error']}")
            progress(done, total, f"{failed:,} failed" if failed else "")

        yield tell


def show_results(results: Results, sections: Sequence[Section], out: Path) -> None:
    """Print the tables, what failed, and where the files are."""
    from opensetda.benchmark.output import CSV, LATEX, MARKDOWN, RESULTS, failures, notes
    from opensetda.benchmark.text_tables import average_table, task_table

    failed = failures(results.rows)
    for section in sections:
        console.show(_rich(task_table(section)))
        console.show(_rich(average_table(section)))
    for line in notes(results.rows, sections):
        console.say(line)
    for line in failed[:_SHOWN_FAILURES]:
        console.warn(f"failed: {line}")
    if len(failed) > _SHOWN_FAILURES:
        console.warn(f"{len(failed) - _SHOWN_FAILURES:,} more failed; {out / MARKDOWN} lists all")
    if failed:
        console.note("The same command tries again what failed.")
    console.say(f"  runs     {out / RESULTS}")
    console.say(f"  table    {out / MARKDOWN}, {CSV}, {LATEX}")
    console.result(
        {
            "rows": results.rows,
            "failed": len(failed),
            "files": {"runs": out / RESULTS, "table": [out / MARKDOWN, out / CSV, out / LATEX]},
        }
    )


def _rich(table: TextTable) -> Table:
    """Return a table for the terminal; deviations of tasks only where they have room."""
    from rich.console import Console
    from rich.markup import escape

    from opensetda.benchmark.text_tables import PLUS_MINUS

    columns = list(zip(table.headings, *[[e.text for e in row] for row in table.rows], strict=True))
    screen = Console()
    wide = sum(max(map(len, column)) + 2 for column in columns) > screen.width
    short = wide and screen.is_terminal
    shown = console.new_table(
        escape(table.title),
        # Of "amazon-dslr" each domain on a line of its own: narrow columns.
        {
            (heading.replace("-", "-\n") if short else heading): "right" if place else "left"
            for place, heading in enumerate(table.headings)
        },
    )
    for row in table.rows:
        texts = []
        for entry in row:
            text = entry.text.split(f" {PLUS_MINUS}")[0] if short else entry.text
            texts.append(f"[bold]{escape(text)}[/bold]" if entry.best else escape(text))
        shown.add_row(*texts)
    return shown
