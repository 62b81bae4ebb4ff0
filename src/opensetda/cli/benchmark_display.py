"""What a person sees of `osda benchmark`: how far it is, and the tables at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensetda.cli import console

if TYPE_CHECKING:
    from rich.table import Table

    from opensetda.benchmark.grid import GridProgress, Results
    from opensetda.benchmark.summary import Section
    from opensetda.benchmark.tables import TextTable

_SHOWN_FAILURES = 10
_FIRST_LINE_SECONDS = 10.0


@contextmanager
def grid_progress(quiet: bool) -> Iterator[GridProgress]:
    """Yield what tells a person how far the grid is: a bar, or a line now and then."""
    if quiet:
        yield lambda done, total, row: None
        return
    from rich.console import Console

    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield _lines()
        return
    from rich.progress import TextColumn

    bar = console.progress_bar(screen, TextColumn("[cyan]{task.fields[state]}"))
    # Runs may take minutes: a rate of the last half minute would be none.
    bar.speed_estimate_period = 3600
    with bar:
        task = bar.add_task("benchmark", total=None, state="")
        state = _state()

        def tell(done: int, total: int, row: dict[str, Any] | None) -> None:
            bar.update(task, completed=done, total=total, state=state(done, total, row))

        yield tell


def _lines() -> GridProgress:
    started = time.monotonic()
    next_line = _FIRST_LINE_SECONDS
    state = _state()

    def tell(done: int, total: int, row: dict[str, Any] | None) -> None:
        nonlocal next_line
        text = state(done, total, row)
        seconds = time.monotonic() - started
        if not done or done == total or seconds < next_line:
            return
        # Ever more seldom: a night's work makes a page.
        next_line = max(seconds + _FIRST_LINE_SECONDS, 1.2 * seconds)
        left = seconds / done * (total - done)
        console.note(f"benchmark: {text}  {seconds:.0f} s, about {left:.0f} s left")

    return tell


def _state() -> Callable[[int, int, dict[str, Any] | None], str]:
    """Return what says how many runs are done, how fast, and how many failed."""
    started = time.monotonic()
    failed = 0

    def state(done: int, total: int, row: dict[str, Any] | None) -> str:
        nonlocal failed
        if row is not None and row["error"] is not None:
            failed += 1
            console.warn(f"{row['method']} on {row['task']} failed: {row['error']}")
        rate = 60 * done / max(time.monotonic() - started, 1e-9)
        parts = [f"{done:,}/{total:,} runs"]
        parts += [f"{rate:.1f} a minute"] if done else []
        parts += [f"{failed:,} failed"] if failed else []
        return ", ".join(parts)

    return state


def show_results(results: Results, sections: Sequence[Section], out: Path, quiet: bool) -> None:
    """Print the tables, what failed, and where the files are."""
    from opensetda.benchmark.report import CSV, LATEX, MARKDOWN, RESULTS, failures, notes
    from opensetda.benchmark.tables import average_table, task_table

    failed = failures(results.rows)
    if not quiet:
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
    if not quiet:
        console.say(f"  runs     {out / RESULTS}")
        console.say(f"  table    {out / MARKDOWN}, {CSV}, {LATEX}")


def _rich(table: TextTable) -> Table:
    """Return a table for the terminal; deviations of tasks only where they have room."""
    from rich.console import Console
    from rich.markup import escape

    from opensetda.benchmark.tables import PLUS_MINUS

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
