"""`osda benchmark`: every method on every task, then one table."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opensetda.benchmark.variants import OWN, benchmark_methods, check_names
from opensetda.cli import console
from opensetda.cli.options import (
    OUTPUT_PANEL,
    Backbone,
    BackendName,
    BenchmarkData,
    Cache,
    Debug,
    Drop,
    FeaturesKey,
    GridBackend,
    GridJobs,
    ImageSize,
    Json,
    LabelColumn,
    PGLChanges,
    PGLPreset,
    Quiet,
    Scheduler,
    Strict,
    Weights,
    cache_folder,
    parse_changes,
)
from opensetda.errors import InputError, RunPausedError

if TYPE_CHECKING:
    from opensetda.benchmark.grid import Cell, Results
    from opensetda.benchmark.tasks import TaskSet
    from opensetda.benchmark.workers import Backend

_GRID_PANEL = "What is compared"


class Openness(StrEnum):
    """Whether methods are told the share of unknowns."""

    true = "true"
    auto = "auto"


def benchmark(
    context: typer.Context,
    protocol: Annotated[
        str,
        typer.Argument(
            metavar="PROTOCOL",
            help="office31, office-home, visda-17, syn2real-o, digits; or demo, which needs no "
            "data.",
        ),
    ],
    data: BenchmarkData = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="NAME",
            help=f"May be repeated; by default all: {', '.join(benchmark_methods())}.",
            rich_help_panel=_GRID_PANEL,
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="SOURCE-TARGET",
            help="May be repeated; by default all of the protocol.",
            rich_help_panel=_GRID_PANEL,
        ),
    ] = None,
    openness: Annotated[
        list[Openness] | None,
        typer.Option(
            "--openness",
            help="Whether the true share of unknowns is told; may be repeated; by default both.",
            rich_help_panel=_GRID_PANEL,
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds",
            metavar="NUMBER",
            min=1,
            help="How many seeds, from 0; methods that draw nothing at random run once.",
            rich_help_panel=_GRID_PANEL,
        ),
    ] = 3,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="NAME",
            help=f"Method that the others are tested against; {OWN} if it is there.",
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
            help="Folder of the results; by default benchmark-PROTOCOL.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare methods on a benchmark: every task, told and estimated openness, several seeds.

    [bold]Examples[/bold]

      osda benchmark demo --method source-only --method pgl --seeds 1

      osda benchmark office31 --data features/ --out office31 --jobs 2

      osda benchmark office31 --data /nfs --backend dask --scheduler head:8786

    Finished runs are kept: the same command again goes on where it was cut. A run
    that fails is listed, not fatal, and tried again the next time. Leaves
    results.parquet, one row a run, and table.md, table.csv and table.tex.
    """
    names = list(dict.fromkeys(methods or benchmark_methods()))
    check_names(names)
    settings = parse_changes(changes)
    against = _reference(reference, names)
    from opensetda.benchmark.grid import check_folder, grid_cells, n_finished
    from opensetda.benchmark.output import failures, write_report
    from opensetda.benchmark.variants import make_variants
    from opensetda.benchmark.workers import Backend
    from opensetda.cli.benchmark_display import show_results
    from opensetda.data.tables.loading import TableColumns
    from opensetda.runs.request import ImageOptions

    where = Backend(backend.value, scheduler)
    where.check()
    if data is not None and backend is not BackendName.loky:
        # A worker of a cluster starts in a folder of its own.
        data = data.absolute()
    found = _find(
        protocol,
        data,
        tasks,
        TableColumns(label_column, None, features_key, tuple(drop or ())),
        ImageOptions(
            backbone=backbone,
            weights=None if weights is None else str(weights.absolute()),
            size=image_size,
            cache=cache_folder(cache, no_cache=False),
            strict=strict,
        ),
    )
    folder = out or Path(f"benchmark-{found.name}")
    told = [value.value for value in dict.fromkeys(openness or list(Openness))]
    cells = grid_cells(
        make_variants(names, preset, settings), found.tasks, told, tuple(range(seeds))
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


def _find(
    protocol: str,
    data: Path | None,
    tasks: list[str] | None,
    columns: Any,
    images: Any,
) -> TaskSet:
    from opensetda.benchmark.tasks import find_tasks
    from opensetda.cli.counting import counting_progress

    with counting_progress("features") as progress:
        found = find_tasks(protocol, data, tasks, columns, images, progress)
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
    from opensetda.cli.benchmark_display import grid_progress

    try:
        with grid_progress() as progress:
            return run_grid(tasks, cells, out, jobs, progress, backend)
    except KeyboardInterrupt:
        raise RunPausedError(
            f"{n_finished(tasks, cells, out):,} of {len(cells):,} runs are finished and kept in "
            f"{out}; go on with the same command: {command}"
        ) from None
