"""`osda benchmark`: methods compared on published data or on your own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opensetda.benchmark.variants import COMPARED, OPENNESS
from opensetda.cli import console, options
from opensetda.cli.bars import ConsoleListener, counting_progress
from opensetda.cli.options import Fields, option_of, output
from opensetda.errors import InputError, RunPausedError, visible
from opensetda.runs.options import ImageOptions, TableOptions, parse_openness, parse_settings
from opensetda.runs.registry import METHODS, check_finetuning

if TYPE_CHECKING:
    from opensetda.benchmark.output import TextTable

_METHODS_HELP = (
    f"Method to compare; repeatable. Default: {', '.join(COMPARED)}. There are also "
    f"{', '.join(name for name in METHODS if name not in COMPARED)}; some take a rejector, "
    "as in dann+osvm."
)
_TASKS_HELP = "Task to run; repeatable. Default: all of the protocol."
_OPENNESS_HELP = "Use the true share of unknowns or estimate it; repeatable. Default: both."
_SEEDS_HELP = "Number of seeds, from 0; deterministic methods run once."
_REFERENCE_HELP = "Method to test the others against. Default: the first; none for own data."
_ABLATIONS_HELP = "Also run pgl, named first, without each part that the paper removes."
_SWEEP_HELP = (
    "Run the first method with each of these values of a setting. openness=V1,... drops targets "
    "until these shares are unknown, for all methods."
)
_OUT_HELP = "Folder of the results. Default: benchmark-PROTOCOL or benchmark-SOURCE-TARGET."
_JOBS_HELP = "Run this many fits at a time, one thread each."
PROTOCOLS = "office31, office-home, visda-17, syn2real-o, digits; or demo, which needs no data."
_OR_SOURCE = f"{PROTOCOLS} Or labelled data of your own: images or a table, as in 'osda fit'."
_TARGET_HELP = "Labelled target for a SOURCE of your own; only the evaluator reads its labels."
_UNLABELLED_HELP = (
    "The target has no labels: show how far quick methods agree on it, and how well each finds "
    "hidden classes of the source."
)
_KNOWN_HELP = "Known class of your own source; repeatable, at least two. Default: all of them."
FRONT = "backbone weights size views cache strict"  # of the options of images

_compared = partial(option_of, "What is compared")
COMMITTEE = "committee"
Openness = StrEnum("Openness", ["true", "auto"])


def benchmark(
    context: typer.Context,
    protocol: Annotated[str, typer.Argument(metavar="PROTOCOL|SOURCE", help=_OR_SOURCE)],
    images: Annotated[ImageOptions, Fields(f"{FRONT} finetune")],
    tables: TableOptions,
    target: Annotated[Path | None, typer.Argument(metavar="TARGET", help=_TARGET_HELP)] = None,
    data: options.Data = None,
    methods: Annotated[list[str] | None, _compared("--method NAME", _METHODS_HELP)] = None,
    tasks: Annotated[list[str] | None, _compared("--task SOURCE-TARGET", _TASKS_HELP)] = None,
    known: Annotated[list[str] | None, _compared("--known CLASS", _KNOWN_HELP)] = None,
    unlabelled: Annotated[bool, _compared("--unlabelled", _UNLABELLED_HELP)] = False,
    openness: Annotated[list[Openness] | None, _compared("--openness", _OPENNESS_HELP)] = None,
    seeds: Annotated[int, _compared("--seeds NUMBER", _SEEDS_HELP, low=1)] = 3,
    reference: Annotated[str | None, _compared("--reference NAME", _REFERENCE_HELP)] = None,
    ablations: Annotated[bool, _compared("--ablations", _ABLATIONS_HELP)] = False,
    sweep: Annotated[str | None, _compared("--sweep SETTING=V1,V2,...", _SWEEP_HELP)] = None,
    preset: options.Preset = None,
    changes: options.Changes = None,
    jobs: Annotated[int, options.of_method("--jobs NUMBER", _JOBS_HELP, low=1)] = 2,
    out: Annotated[Path | None, output("--out DIR", _OUT_HELP)] = None,
    scheduler: options.Scheduler = None,
) -> None:
    """Compare methods on a benchmark, or on a labelled source and target of your own.

    [bold]Examples[/bold]

      osda benchmark demo --method moving-means --method source-only

      osda benchmark office31 --data features/ --out office31 --jobs 2

      osda benchmark shop/ street/ --method moving-means --sweep steps=5,10,20

      osda benchmark office-home --data images/ --method pgl --finetune all

      osda benchmark shop/ street/ --unlabelled

    Of your own data, the classes of the source are known, all others of the
    target unknown. Finished runs are kept: the same command resumes an
    interrupted grid. Failed runs are listed, and tried again by the next call.
    Writes results.csv, one row per run, table.md and summary.json.
    """
    if unlabelled:
        if target is None:
            raise InputError("--unlabelled: give a SOURCE and a TARGET of your own")
        _compare_methods(Path(protocol), target, options.cached(images), tables, context.obj)
        return
    names = list(dict.fromkeys(methods or COMPARED))
    settings, (swept, shares_of_targets) = parse_settings(changes), _parse_sweep(sweep)
    from opensetda.benchmark import output as report
    from opensetda.benchmark.grid import grid_cells, n_finished, run_grid
    from opensetda.benchmark.tasks import find_tasks, own_task
    from opensetda.benchmark.variants import make_variants
    from opensetda.usecases.fit_request import trained_part

    images = replace(images, finetune=trained_part(images))
    trains = images.finetune is not None
    variants = make_variants(names, preset, settings, ablations, swept, protocol, trains)
    for variant in variants:
        check_finetuning(variant.method, dict(variant.changes), trains)
    labels = [variant.label for variant in variants]
    if reference not in (None, *labels):
        raise InputError(f"--reference {reference}: the methods are {', '.join(labels)}")
    typed = context.obj
    images = options.cached(images)
    with counting_progress("features") as progress:
        if target is not None:
            if data or tasks:
                raise InputError("--data and --task: for a PROTOCOL; leave them out with a TARGET")
            found = own_task(protocol, target, tables, images, known or (), progress, typed)
        else:
            own = TableOptions(label=tables.label, features=tables.features, drop=tables.drop)
            if known or tables != own:
                raise InputError(
                    "--known, --id-column, --keep, --one-hot, --impute, --path-column and "
                    "--images-root: for a SOURCE and a TARGET; leave them out with a PROTOCOL"
                )
            found = find_tasks(protocol, data, tasks, tables, images, progress)
    for warning in found.warnings:
        console.warn(warning)
    folder = out or Path(f"benchmark-{found.name}")
    shares = [str(share) for share in dict.fromkeys(openness or Openness)]
    cells = grid_cells(variants, found.tasks, shares, tuple(range(seeds)), shares_of_targets)
    kept = n_finished(found, cells, folder)
    console.note(
        f"{found.name}: {console.counted(len(labels), 'method')}, "
        f"{console.counted(len(found.tasks), 'task')}, {console.counted(len(cells), 'run')}"
        + (f", of which {kept:,} are finished already" if kept else "")
    )
    try:
        with counting_progress("benchmark", "run") as progress:

            def tell(done: int, total: int, row: dict[str, Any] | None) -> None:
                if row is not None and row["error"] is not None:
                    console.warn(f"{row['method']} on {row['task']} failed: {row['error']}")
                progress(done, total)

            rows = run_grid(found, cells, folder, jobs, tell, scheduler, ConsoleListener())
    except KeyboardInterrupt:
        raise RunPausedError(
            f"{n_finished(found, cells, folder):,} of {len(cells):,} runs are finished and kept in "
            f"{folder}; continue with the same command: {shlex.join(typed)}"
        ) from None
    # One task of your own is too few for a test, unless it is asked for.
    against = reference or (labels[0] if target is None and labels[1:] else None)
    title = found.name if target is None else visible(f"{protocol} to {target}")
    sections = report.write_report(rows, folder, title, against, shlex.join(typed))
    for section in sections:
        show_text_table(report.task_table(section))
        show_text_table(report.average_table(section))
    if (published := report.published_table(found.name, rows)) is not None:
        show_text_table(published)
    for line in report.notes(rows, sections):
        console.say(line)
    if n_failed := sum(row["error"] is not None for row in rows):
        console.note("The same command tries the failed runs again.")
    names_of = {"runs": report.RESULTS, "table": report.MARKDOWN, "summary": report.SUMMARY}
    files = {name: folder / file for name, file in names_of.items()}
    for warning in report.formulas_in(files["runs"], rows):
        console.warn(warning)
    console.say_places(**files)
    console.result({"rows": rows, "failed": n_failed, "files": files})
    if n_failed == len(cells):
        raise typer.Exit(1)


def _compare_methods(
    source: Path, target: Path, images: ImageOptions, tables: TableOptions, typed: Sequence[str]
) -> None:
    """Compare quick methods on a target without labels."""
    from opensetda.cli.bars import ConsoleListener
    from opensetda.runs.options import FitRequest, absolute
    from opensetda.system.files import temporary_folder
    from opensetda.usecases.compare_methods import clear_winner, compare_methods
    from opensetda.usecases.read_domains import load

    how: Any = {"identity": "", "images": images, "tables": tables, "command": tuple(typed)}
    # First: what follows is easily taken for more than it is.
    console.say("Classes of the source that are hidden in turn know nothing of the domain shift.")
    request = FitRequest(source=absolute(source), target=absolute(target), **how)
    with temporary_folder() as scratch:
        data = load(request, ConsoleListener(), scratch)
        with counting_progress("compare", "method") as progress:
            rows = compare_methods(data.source, data.labels, data.target, progress)
    cells = [
        [
            row.method,
            row.scaling,
            console.percent(row.unknown),
            console.percent(row.agreement),
            console.percent(row.hidden_hos),
            console.percent(row.hidden_error),
        ]
        for row in rows
    ]
    headings = ["unknown", "agrees with the others", "HOS, hidden classes", "+-"]
    console.show_table("Methods (%)", ["method", "columns"], headings, cells)
    best = clear_winner(rows)
    if best is None:
        console.say("Hidden classes do not separate these methods: keep the default.")
    else:
        how = ["--method", best.method]
        if best.method != COMMITTEE:
            how += ["--scaling", best.scaling]
        console.say(f"Best on hidden source classes: {fit_command(typed, how)}")
    console.result({"methods": [asdict(row) for row in rows]})


def fit_command(typed: Sequence[str], how: Sequence[str]) -> str:
    """Return the command that fits to the domains of a comparison, with its options."""
    left_out = {"--unlabelled", "--json", "--quiet", "--debug", "--verbose"}
    kept = [word for word in typed[2:] if word not in left_out]
    if "--out" in kept:
        at = kept.index("--out")
        del kept[at : at + 2]
    return shlex.join(["osda", "fit", *kept, *how, "--out", "run"])


def _parse_sweep(text: str | None) -> tuple[tuple[str, list[str]] | None, Sequence[float | None]]:
    """Split SETTING=V1,V2,...; return it, and the shares of unknowns to reduce targets to."""
    if text is None:
        return None, (None,)
    name, _, given = (part.strip() for part in text.partition("="))
    values = list(dict.fromkeys(value.strip() for value in given.split(",") if value.strip()))
    if not name or not values:
        raise InputError(f"--sweep {text}: write SETTING=V1,V2,..., for example steps=5,10,20")
    if name != OPENNESS:
        return (name, values), (None,)
    shares = [share for share in map(parse_openness, values) if isinstance(share, float) and share]
    if len(shares) < len(values):
        raise InputError(f"--sweep {text}: give shares between 0 and 1")
    return (name, values), shares


def show_text_table(table: TextTable) -> None:
    """Print a table of the reports of a benchmark."""
    kinds = {True: console.Bold, False: str}
    rows = [[kinds[cell.best](cell.text) for cell in row] for row in table.rows]
    console.show_table(table.title, table.headings[:1], table.headings[1:], rows)
