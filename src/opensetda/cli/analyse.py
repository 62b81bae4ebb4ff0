"""`osda analyse`: the paper's analyses, each with a table and a figure."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opensetda.analyses.listing import ANALYSES, find_analysis, run_analysis
from opensetda.cli import console, options
from opensetda.cli.benchmark import Openness, Protocol, find_benchmark
from opensetda.cli.options import Backbone, Cache, ImageSize, Strict, Weights
from opensetda.errors import InputError, RunPausedError

if TYPE_CHECKING:
    from opensetda.analyses.contract import ResultTable

_of_analysis = partial(options.option_of, "Analysis")
_DEFAULT_SEEDS = 3
_OUT_HELP = "Folder of the table and the figure; finished runs are kept in it."
_TASKS_HELP = "Task to run; repeatable. Default: all (edges, embedding: the first)."
_METHODS_HELP = "openness, embedding: method to compare; repeatable."
_VALUES_HELP = "alpha, openness, losses: value to try; repeatable."
_OPENNESS_HELP = "Use the true share of unknowns, or estimate it."
_SEEDS_HELP = f"Number of seeds, from 0. Default: {_DEFAULT_SEEDS} (edges, embedding: 1)."


def analyse(
    context: typer.Context,
    analysis: Annotated[
        str, typer.Argument(metavar="ANALYSIS", help=f"{', '.join(ANALYSES)}; described above.")
    ],
    protocol: Protocol,
    out: Annotated[Path, options.output("--out DIR", _OUT_HELP)],
    data: options.BenchmarkData = None,
    tasks: Annotated[list[str] | None, _of_analysis("--task SOURCE-TARGET", _TASKS_HELP)] = None,
    methods: Annotated[list[str] | None, _of_analysis("--method NAME", _METHODS_HELP)] = None,
    values: Annotated[list[float] | None, _of_analysis("--value NUMBER", _VALUES_HELP)] = None,
    openness: Annotated[Openness, _of_analysis("--openness", _OPENNESS_HELP)] = Openness.true,
    seeds: Annotated[int | None, _of_analysis("--seeds NUMBER", _SEEDS_HELP, min=1)] = None,
    preset: options.PGLPreset = "default",
    changes: options.PGLChanges = None,
    jobs: options.Jobs = 2,
    backbone: Backbone = None,
    weights: Weights = None,
    image_size: ImageSize = None,
    cache: Cache = None,
    strict: Strict = False,
    label_column: options.LabelColumn = "y",
    drop: options.Drop = None,
    features_key: options.FeaturesKey = "X",
) -> None:
    """Run one of the paper's analyses: a table (.csv, .md) and a figure (.png, .pdf).

    [bold]Analyses[/bold]

    {analyses}

    [bold]Examples[/bold]

      osda analyse steps demo --out analyses

      osda analyse ablation office31 --data features/ --out analyses
    """
    chosen = find_analysis(analysis)
    if chosen.one_run and tasks and len(tasks) > 1:
        raise InputError(f"--task {tasks[1]}: {analysis} has one task only; name one")
    if chosen.one_run and seeds is not None and seeds > 1:
        raise InputError(f"--seeds {seeds}: {analysis} has one run only; leave --seeds out")
    if methods and not chosen.methods:
        raise InputError(f"--method {methods[0]}: {analysis} is about pgl; leave --method out")
    if values and not chosen.values:
        raise InputError(f"--value {values[0]:g}: {analysis} varies no number; leave --value out")
    from opensetda.analyses.contract import AnalysisRequest, write_analysis
    from opensetda.cli.counting import counting_progress
    from opensetda.pgl.settings import PGLSettings
    from opensetda.system.files import check_writable

    settings = options.parse_changes(changes)
    PGLSettings.preset(preset).with_changes(settings)
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: a file is in the way; choose another folder")
    check_writable(out)
    tables, images = (label_column, features_key, drop), (backbone, weights, image_size, strict)
    found = find_benchmark(protocol, data, tasks, tables, images, cache, chosen.one_run)
    n_seeds = seeds or (1 if chosen.one_run else _DEFAULT_SEEDS)
    request = AnalysisRequest(
        *(found, out, tuple(range(n_seeds))),
        openness=openness.value,
        preset=preset,
        changes=tuple(settings.items()),
        methods=tuple(methods or ()),
        values=tuple(values or ()),
        jobs=jobs,
    )
    try:
        with counting_progress(analysis, "run") as tell:
            counted = replace(request, progress=lambda done, total, row: tell(done, total))
            result = run_analysis(analysis, counted)
    except KeyboardInterrupt:
        if not chosen.keeps_runs:
            raise
        raise RunPausedError(
            f"finished runs are kept in {out}; continue with the same command"
        ) from None
    files = write_analysis(out, analysis, result, shlex.join(["osda", *(context.obj or ())]))
    show_table(result.table)
    console.say(f"  table    {', '.join(str(file) for file in files[:2])}")
    console.say(f"  figure   {', '.join(str(file) for file in files[2:4])}")
    if files[4:]:
        console.say(f"  runs     {files[4]}")
    failed = [] if result.runs is None else result.runs.failed
    if failed:
        console.warn(
            f"{console.counted(len(failed), 'run')} failed, the first: {failed[0]['error']}; "
            "the same command tries again"
        )
    made = {"table": files[:2], "figure": files[2:4], "runs": next(iter(files[4:]), None)}
    shown = {"analysis": analysis, "title": result.table.title, "rows": result.table.plain_rows()}
    ending = {"failed": len(failed), "expected": console.expected(), "files": made}
    console.result({**shown, "notes": result.table.notes, **ending})
    if result.runs is not None and failed and len(failed) == len(result.runs.rows):
        raise typer.Exit(1)


analyse.__doc__ = (analyse.__doc__ or "").format(
    analyses="\n\n    ".join(f"  {name}: {kind.summary}" for name, kind in ANALYSES.items())
)


def show_table(table: ResultTable) -> None:
    """Print a table and its notes, without details on a narrow screen."""
    from rich.console import Console

    # One word per line in headings, for narrow columns.
    columns = [
        [column.heading.replace(" ", "\n"), *(table.cells(row)[place] for row in table.rows)]
        for place, column in enumerate(table.columns)
    ]
    widths = [2 + max(len(line) for text in own for line in text.split("\n")) for own in columns]
    screen = Console()
    narrow = screen.is_terminal and sum(widths) > screen.width
    kept = [p for p, column in enumerate(table.columns) if not (narrow and column.detail)]
    sides = ["left" if column.form == "text" else "right" for column in table.columns]
    headings = {columns[place][0]: sides[place] for place in kept}
    shown = console.new_table(table.title, headings)
    for number in range(len(table.rows)):
        cells = [columns[place][number + 1] for place in kept]
        shown.add_row(*cells, style="bold" if number in table.marked else None)
    # Numbers are never cut.
    console.show(shown, at_least=sum(widths[place] for place in kept) + 2)
    for note in table.notes:
        console.say(note)
