"""`osda benchmark`: every method on every task, then one table."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opensetda.benchmark.variants import COMPARED, OPENNESS, benchmark_methods, check_names
from opensetda.cli import console
from opensetda.cli.bars import counting_progress
from opensetda.cli.options import (
    BenchmarkData,
    Fields,
    OwnChanges,
    OwnPreset,
    method_option,
    option_of,
    output,
    with_cache,
)
from opensetda.errors import InputError, RunPausedError, visible
from opensetda.runs.options import ImageOptions, TableOptions, parse_openness, parse_settings

if TYPE_CHECKING:
    from rich.table import Table

    from opensetda.benchmark.grid import GridProgress, Results
    from opensetda.benchmark.output import Section, TextTable
    from opensetda.benchmark.tasks import TaskSet

_SHOWN_FAILURES = 10
_METHODS_HELP = (
    f"Method to compare; repeatable. Default: {', '.join(COMPARED)}. There are also "
    f"{', '.join(benchmark_methods()[len(COMPARED) :])}; some take a rejector, as in dann+osvm."
)
_TASKS_HELP = "Task to run; repeatable. Default: all of the protocol."
_OPENNESS_HELP = "Use the true share of unknowns or estimate it; repeatable. Default: both."
_SEEDS_HELP = "Number of seeds, from 0; deterministic methods run once."
_REFERENCE_HELP = (
    "Method to test the others against. Default: the first; none for data of your own."
)
_ABLATIONS_HELP = "Also run pgl, named first, without each part that the paper removes."
_SWEEP_HELP = (
    "Run the first method with each of these values of a setting. openness=V1,... drops targets "
    "until these shares are unknown, for all methods."
)
_OUT_HELP = "Folder of the results. Default: benchmark-PROTOCOL or benchmark-SOURCE-TARGET."
_JOBS_HELP = "Run this many fits at a time, one thread each."
_PROTOCOLS = "office31, office-home, visda-17, syn2real-o, digits; or demo, which needs no data."
_OR_SOURCE = f"{_PROTOCOLS} Or labelled data of your own: images or a table, as in 'osda fit'."
_TARGET_HELP = "Labelled target for a SOURCE of your own; only the evaluator reads its labels."
_KNOWN_HELP = "Known class of your own source; repeatable, at least two. Default: all of them."

_compared = partial(option_of, "What is compared")


class Openness(StrEnum):
    """The share of unknowns that methods get: the true one, or none, so that they estimate it."""

    true = "true"
    auto = "auto"


Protocol = Annotated[str, typer.Argument(metavar="PROTOCOL", help=_PROTOCOLS)]
Images = Annotated[ImageOptions, Fields(ImageOptions, "backbone weights size cache strict")]


def benchmark(
    context: typer.Context,
    protocol: Annotated[str, typer.Argument(metavar="PROTOCOL|SOURCE", help=_OR_SOURCE)],
    images: Images,
    tables: TableOptions,
    target: Annotated[Path | None, typer.Argument(metavar="TARGET", help=_TARGET_HELP)] = None,
    data: BenchmarkData = None,
    methods: Annotated[list[str] | None, _compared("--method NAME", _METHODS_HELP)] = None,
    tasks: Annotated[list[str] | None, _compared("--task SOURCE-TARGET", _TASKS_HELP)] = None,
    known: Annotated[list[str] | None, _compared("--known CLASS", _KNOWN_HELP)] = None,
    openness: Annotated[list[Openness] | None, _compared("--openness", _OPENNESS_HELP)] = None,
    seeds: Annotated[int, _compared("--seeds NUMBER", _SEEDS_HELP, min=1)] = 3,
    reference: Annotated[str | None, _compared("--reference NAME", _REFERENCE_HELP)] = None,
    ablations: Annotated[bool, _compared("--ablations", _ABLATIONS_HELP)] = False,
    sweep: Annotated[str | None, _compared("--sweep SETTING=V1,V2,...", _SWEEP_HELP)] = None,
    preset: OwnPreset = None,
    changes: OwnChanges = None,
    jobs: Annotated[int, method_option("--jobs NUMBER", _JOBS_HELP, min=1)] = 2,
    out: Annotated[Path | None, output("--out DIR", _OUT_HELP)] = None,
) -> None:
    """Compare methods on a benchmark, or on a labelled source and target of your own.

    [bold]Examples[/bold]

      osda benchmark demo --method moving-means --method source-only

      osda benchmark office31 --data features/ --out office31 --jobs 2

      osda benchmark shop/ street/ --method moving-means --sweep steps=5,10,20

      osda benchmark office31 --data features/ --method pgl --ablations

    Every task runs with true and with estimated openness, and several seeds.
    Of your own data, the classes of the source are known, all others of the
    target unknown. Finished runs are kept: the same command resumes an
    interrupted grid. Failed runs are listed, and tried again by the next call.
    Writes results.parquet, one row per run, and table.md and table.csv.
    """
    names = list(dict.fromkeys(methods or COMPARED))
    check_names(names)
    settings, swept = parse_settings(changes), _parse_sweep(sweep)
    shares_of_targets = _shares(swept)
    from opensetda.benchmark.grid import check_folder, grid_cells, n_finished, run_grid
    from opensetda.benchmark.output import write_report
    from opensetda.benchmark.variants import make_variants
    from opensetda.system.files import check_writable

    variants = make_variants(names, preset, settings, ablations, swept)
    labels = [variant.label for variant in variants]
    if reference is not None and reference not in labels:
        raise InputError(
            f"--reference {reference}: not among the methods, which are {', '.join(labels)}"
        )
    if out is not None:
        check_writable(out)
    typed = console.typed(context)
    if target is not None:
        _refuse("a source and a target of your own", {"--data": data, "--task": tasks})
        found = _find_own(protocol, target, tables, images, known or (), typed)
    else:
        own: dict[str, Any] = {
            "--known": known,
            "--path-column": tables.path,
            "--images-root": tables.root,
        }
        own |= {"--id-column": tables.id, "--keep": tables.keep, "--one-hot": tables.one_hot}
        _refuse("PROTOCOL alone", {**own, "--impute": tables.impute != "none"})
        found = find_benchmark(protocol, data, tasks, tables, images)
    folder = out or Path(f"benchmark-{found.name}")
    shares = [value.value for value in dict.fromkeys(openness or list(Openness))]
    cells = grid_cells(variants, found.tasks, shares, tuple(range(seeds)), shares_of_targets)
    check_folder(found, folder)
    kept = n_finished(found, cells, folder)
    console.note(
        f"{found.name}: {console.counted(len(labels), 'method')}, "
        f"{console.counted(len(found.tasks), 'task')}, {console.counted(len(cells), 'run')}"
        + (f", of which {kept:,} are finished already" if kept else "")
    )
    try:
        with grid_progress() as progress:
            results = run_grid(found, cells, folder, jobs, progress)
    except KeyboardInterrupt:
        raise RunPausedError(
            f"{n_finished(found, cells, folder):,} of {len(cells):,} runs are finished and kept in "
            f"{folder}; continue with the same command: {shlex.join(typed)}"
        ) from None
    # One task of your own is too few for a test, unless it is asked for.
    against = reference or (labels[0] if target is None and labels[1:] else None)
    title = _title(found.name, protocol, target)
    sections = write_report(results.rows, folder, title, against, shlex.join(typed))
    _show_results(results, sections, folder)
    if len(results.failed) == len(cells):
        raise typer.Exit(1)


def _parse_sweep(text: str | None) -> tuple[str, list[str]] | None:
    """Split SETTING=V1,V2,..."""
    if text is None:
        return None
    name, sign, values = (part.strip() for part in text.partition("="))
    found = list(dict.fromkeys(value.strip() for value in values.split(",") if value.strip()))
    if not sign or not name or not found:
        raise InputError(f"--sweep {text}: write SETTING=V1,V2,..., for example steps=5,10,20")
    return name, found


def _shares(swept: tuple[str, list[str]] | None) -> Sequence[float | None]:
    """Return the shares of unknowns that targets are reduced to; None leaves them."""
    if swept is None or swept[0] != OPENNESS:
        return (None,)
    shares = [(text, parse_openness(text)) for text in swept[1]]
    for text, share in shares:
        if not isinstance(share, float) or share == 0:
            raise InputError(f"--sweep openness={text}: give shares between 0 and 1")
    return [float(share) for _, share in shares]


def _refuse(given: str, wrong: dict[str, Any]) -> None:
    for name, value in wrong.items():
        if value:
            raise InputError(f"{name}: has no meaning with {given}; leave it out")


def _find_own(
    source: str,
    target: Path,
    tables: TableOptions,
    images: ImageOptions,
    known: Sequence[str],
    command: tuple[str, ...],
) -> TaskSet:
    """Read a source and a target, with a progress bar for image features, and warn."""
    from opensetda.benchmark.own_tasks import own_task
    from opensetda.data.benchmarks.catalogue import BENCHMARKS

    if source in BENCHMARKS and not Path(source).exists():
        advice = f"give its folder as --data {target}, or a source of your own"
        raise InputError(f"{source}: a published benchmark, not a file or folder; {advice}")
    with counting_progress("features") as progress:
        found = own_task(source, target, tables, with_cache(images), known, progress, command)
    return _with_warnings(found)


def find_benchmark(
    protocol: str,
    data: Path | None,
    tasks: list[str] | None,
    tables: TableOptions,
    images: ImageOptions,
    only_first: bool = False,
) -> TaskSet:
    """Find the tasks of a benchmark, with a progress bar for image features, and warn."""
    from opensetda.benchmark.tasks import find_tasks
    from opensetda.runs.fit_data import table_columns

    columns, images = table_columns(tables), with_cache(images)
    with counting_progress("features") as progress:
        found = find_tasks(protocol, data, tasks, columns, images, progress, only_first)
    return _with_warnings(found)


def _with_warnings(found: TaskSet) -> TaskSet:
    for warning in found.warnings:
        console.warn(warning)
    return found


def _title(name: str, protocol: str, target: Path | None) -> str:
    from opensetda.data.benchmarks.catalogue import BENCHMARKS

    if target is not None:
        return visible(f"{protocol} to {target}")
    return BENCHMARKS[name].title if name in BENCHMARKS else "Embedded digits (demo)"


@contextmanager
def grid_progress() -> Iterator[GridProgress]:
    """Yield a function that shows progress and warns of failed runs."""
    failed = 0
    with counting_progress("benchmark", "run") as progress:

        def tell(done: int, total: int, row: dict[str, Any] | None) -> None:
            nonlocal failed
            if row is not None and row["error"] is not None:
                failed += 1
                console.warn(f"{row['method']} on {row['task']} failed: {row['error']}")
            progress(done, total, f"{failed:,} failed" if failed else "")

        yield tell


def _show_results(results: Results, sections: Sequence[Section], out: Path) -> None:
    """Print the tables, the failures and the paths of the files."""
    from opensetda.benchmark import output

    failed = output.failures(results.rows)
    runs, page = out / output.RESULTS, out / output.MARKDOWN
    for section in sections:
        console.show(rich_table(output.task_table(section)))
        console.show(rich_table(output.average_table(section)))
    for line in output.notes(results.rows, sections):
        console.say(line)
    for line in failed[:_SHOWN_FAILURES]:
        console.warn(f"failed: {line}")
    if len(failed) > _SHOWN_FAILURES:
        console.warn(f"{len(failed) - _SHOWN_FAILURES:,} more failed; {page} lists all")
    if failed:
        console.note("The same command tries the failed runs again.")
    console.say_places(runs=runs, table=f"{page}, {output.CSV}")
    files = {"runs": runs, "table": [page, out / output.CSV]}
    console.result({"rows": results.rows, "failed": len(failed), "files": files})


def rich_table(table: TextTable) -> Table:
    """Return a table for the terminal, without deviations if it would be too wide."""
    from rich.console import Console
    from rich.text import Text

    from opensetda.benchmark.output import PLUS_MINUS

    columns = list(zip(table.headings, *[[e.text for e in row] for row in table.rows], strict=True))
    screen = Console()
    wide = sum(max(map(len, column)) + 2 for column in columns) > screen.width
    short = wide and screen.is_terminal
    # "amazon-dslr" on two lines, for narrow columns.
    headings = [text.replace("-", "-\n") if short else text for text in table.headings]
    shown = console.new_table(table.title, headings[:1], headings[1:])
    for row in table.rows:
        texts = [entry.text.split(f" {PLUS_MINUS}")[0] if short else entry.text for entry in row]
        styles = ["bold" if entry.best else "" for entry in row]
        shown.add_row(*map(Text, map(visible, texts), styles))
    return shown
