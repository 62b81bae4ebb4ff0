"""`osda benchmark`: every method on every task, then one table."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opensetda.benchmark.variants import OWN, benchmark_methods, check_names
from opensetda.cli import console
from opensetda.cli.image_options import (
    Backbone,
    Cache,
    ImageSize,
    Strict,
    Weights,
    cache_folder,
)
from opensetda.cli.options import (
    OUTPUT_PANEL,
    BackendName,
    BenchmarkData,
    Debug,
    Drop,
    FeaturesKey,
    GridBackend,
    GridJobs,
    Json,
    LabelColumn,
    PGLChanges,
    PGLPreset,
    Quiet,
    Scheduler,
    parse_changes,
)
from opensetda.errors import InputError, RunPausedError

if TYPE_CHECKING:
    from rich.table import Table

    from opensetda.benchmark.grid import Cell, GridProgress, Results
    from opensetda.benchmark.output import TextTable
    from opensetda.benchmark.summary import Section
    from opensetda.benchmark.tasks import TaskSet
    from opensetda.benchmark.workers import Backend
    from opensetda.data.tables.loading import TableColumns
    from opensetda.runs.request import ImageOptions

_GRID_PANEL = "What is compared"
_SHOWN_FAILURES = 10


class Openness(StrEnum):
    """The share of unknowns that methods get: the true one, or none, so that they estimate it."""

    true = "true"
    auto = "auto"


Protocol = Annotated[
    str,
    typer.Argument(
        metavar="PROTOCOL",
        help="office31, office-home, visda-17, syn2real-o, digits; or demo, which needs no data.",
    ),
]


def benchmark(
    context: typer.Context,
    protocol: Protocol,
    data: BenchmarkData = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="NAME",
            help=f"Method to compare; repeatable. Default all: {', '.join(benchmark_methods())}.",
            rich_help_panel=_GRID_PANEL,
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="SOURCE-TARGET",
            help="Task to run; repeatable. Default: all of the protocol.",
            rich_help_panel=_GRID_PANEL,
        ),
    ] = None,
    openness: Annotated[
        list[Openness] | None,
        typer.Option(
            "--openness",
            help="Use the true share of unknowns or estimate it; repeatable. Default: both.",
            rich_help_panel=_GRID_PANEL,
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds",
            metavar="NUMBER",
            min=1,
            help="Number of seeds, from 0; deterministic methods run once.",
            rich_help_panel=_GRID_PANEL,
        ),
    ] = 3,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="NAME",
            help=f"Method to test the others against. Default: {OWN}, if compared.",
            rich_help_panel=_GRID_PANEL,
        ),
    ] = None,
    preset: PGLPreset = "default",
    changes: PGLChanges = None,
    jobs: GridJobs = None,
    backend: GridBackend = BackendName.loky,
    scheduler: Scheduler = None,
    backbone: Backbone = None,
    weights: Weights = None,
    image_size: ImageSize = None,
    cache: Cache = None,
    strict: Strict = False,
    label_column: LabelColumn = "y",
    drop: Drop = None,
    features_key: FeaturesKey = "X",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder of the results. Default: benchmark-PROTOCOL.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare methods on a benchmark: every task, true and estimated openness, several seeds.

    [bold]Examples[/bold]

      osda benchmark demo --method source-only --method pgl --seeds 1

      osda benchmark office31 --data features/ --out office31 --jobs 2

      osda benchmark office31 --data /nfs --backend dask --scheduler head:8786

    Finished runs are kept: the same command resumes an interrupted grid. Failed
    runs are listed, and tried again by the next call. Writes results.parquet,
    one row per run, and table.md, table.csv and table.tex.
    """
    names = list(dict.fromkeys(methods or benchmark_methods()))
    check_names(names)
    settings = parse_changes(changes)
    against = _reference(reference, names)
    from opensetda.benchmark.grid import check_folder, grid_cells, n_finished
    from opensetda.benchmark.output import failures, write_report
    from opensetda.benchmark.variants import make_variants
    from opensetda.benchmark.workers import Backend
    from opensetda.data.tables.loading import TableColumns
    from opensetda.runs.request import ImageOptions

    where = Backend(backend.value, scheduler)
    where.check()
    if data is not None and backend is not BackendName.loky:
        # Workers of a cluster have another working directory.
        data = data.absolute()
    columns = TableColumns(label_column, None, features_key, tuple(drop or ()))
    images = ImageOptions(
        backbone=backbone,
        weights=None if weights is None else str(weights.absolute()),
        size=image_size,
        cache=cache_folder(cache, no_cache=False),
        strict=strict,
    )
    found = find_benchmark(protocol, data, tasks, columns, images)
    folder = out or Path(f"benchmark-{found.name}")
    shares = [value.value for value in dict.fromkeys(openness or list(Openness))]
    cells = grid_cells(
        make_variants(names, preset, settings), found.tasks, shares, tuple(range(seeds))
    )
    check_folder(found, cells, folder)
    command = shlex.join(["osda", *(context.obj or ())])
    kept = n_finished(found, cells, folder)
    console.note(
        f"{found.name}: {console.counted(len(names), 'method')}, "
        f"{console.counted(len(found.tasks), 'task')}, {console.counted(len(cells), 'run')}"
        + (f", of which {kept:,} are finished already" if kept else "")
    )
    results = _run(found, cells, folder, jobs, where, command)
    sections = write_report(results.rows, folder, _title(found.name), against, command)
    show_results(results, sections, folder)
    if len(failures(results.rows)) == len(cells):
        raise typer.Exit(1)


def _reference(wanted: str | None, names: Sequence[str]) -> str | None:
    if wanted is None:
        return OWN if OWN in names else None
    if wanted not in names:
        raise InputError(
            f"--reference {wanted}: not among the methods, which are {', '.join(names)}"
        )
    return wanted


def find_benchmark(
    protocol: str,
    data: Path | None,
    tasks: list[str] | None,
    columns: TableColumns,
    images: ImageOptions,
    only_first: bool = False,
) -> TaskSet:
    """Find the tasks of a benchmark, with a progress bar for image features, and warn."""
    from opensetda.benchmark.tasks import find_tasks
    from opensetda.cli.counting import counting_progress

    with counting_progress("features") as progress:
        found = find_tasks(protocol, data, tasks, columns, images, progress)
        if only_first:
            found = find_tasks(protocol, data, found.tasks[:1], columns, images)
    for warning in found.warnings:
        console.warn(warning)
    return found


def _title(name: str) -> str:
    from opensetda.data.benchmarks.catalogue import BENCHMARKS

    return BENCHMARKS[name].title if name in BENCHMARKS else "Embedded digits (demo)"


def _run(
    tasks: TaskSet,
    cells: Sequence[Cell],
    out: Path,
    jobs: int | None,
    backend: Backend,
    command: str,
) -> Results:
    from opensetda.benchmark.grid import n_finished, run_grid

    try:
        with grid_progress() as progress:
            return run_grid(tasks, cells, out, jobs, progress, backend)
    except KeyboardInterrupt:
        raise RunPausedError(
            f"{n_finished(tasks, cells, out):,} of {len(cells):,} runs are finished and kept in "
            f"{out}; continue with the same command: {command}"
        ) from None


# What is shown -------------------------------------------------------------------------------


@contextmanager
def grid_progress() -> Iterator[GridProgress]:
    """Yield a function that shows progress and warns of failed runs."""
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
    """Print the tables, the failures and the paths of the files."""
    from opensetda.benchmark.output import (
        CSV,
        LATEX,
        MARKDOWN,
        RESULTS,
        average_table,
        failures,
        notes,
        task_table,
    )

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
        console.note("The same command tries the failed runs again.")
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
    """Return a table for the terminal, without deviations if it would be too wide."""
    from rich.console import Console
    from rich.markup import escape

    from opensetda.benchmark.output import PLUS_MINUS

    columns = list(zip(table.headings, *[[e.text for e in row] for row in table.rows], strict=True))
    screen = Console()
    wide = sum(max(map(len, column)) + 2 for column in columns) > screen.width
    short = wide and screen.is_terminal
    shown = console.new_table(
        escape(table.title),
        # "amazon-dslr" on two lines, for narrow columns.
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
