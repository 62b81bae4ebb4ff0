"""`osda analyse` draws figures of the paper; `osda data` lists its benchmarks, and has digits."""

from __future__ import annotations

import importlib
import shlex
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli import console, options
from opensetda.cli.bars import counting_progress, training_progress
from opensetda.cli.benchmark import Images, Openness, Protocol, rich_table
from opensetda.cli.options import Fields, Seed, option_of, other, output, spread
from opensetda.errors import InputError, choice
from opensetda.runs.options import TableOptions, parse_settings

data_app = typer.Typer(
    name="data",
    help="Published benchmarks, and where to download them; digits to try.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
ANALYSES = {
    "steps": "accuracy over the steps (Fig. 7)",
    "embedding": "t-SNE of features by method (Fig. 5)",
    "edges": "learned edges beside the true ones (Fig. 6)",
    "bound": "terms of the error bound over the steps (Theorems 1 and 2)",
}
EMBEDDED = ("moving-means", "pgl", "osbp")

_of_analysis = partial(option_of, "Analysis")
_ANALYSIS_HELP = "; ".join(f"{name}: {summary}" for name, summary in ANALYSES.items())
_OUT_HELP = "Folder of the table and the figure."
_TASK_HELP = "Task to analyse. Default: the first of the protocol."
_METHODS_HELP = (
    f"Method to analyse; embedding: repeatable. Default: pgl; embedding: {', '.join(EMBEDDED)}."
)
_OPENNESS_HELP = "Use the true share of unknowns, or estimate it."


def analyse(
    context: typer.Context,
    analysis: Annotated[str, typer.Argument(metavar="ANALYSIS", help=_ANALYSIS_HELP)],
    protocol: Protocol,
    out: Annotated[Path, output("--out DIR", _OUT_HELP)],
    images: Images,
    tables: Annotated[TableOptions, Fields(TableOptions, "label features drop")],
    data: options.Data = None,
    task: Annotated[str | None, _of_analysis("--task SOURCE-TARGET", _TASK_HELP)] = None,
    methods: Annotated[list[str] | None, _of_analysis("--method NAME", _METHODS_HELP)] = None,
    openness: Annotated[Openness, _of_analysis("--openness", _OPENNESS_HELP)] = Openness.true,
    seed: Seed = 0,
    preset: options.Preset = None,
    changes: options.Changes = None,
) -> None:
    """Draw a figure of the paper: a table (.csv, .md) and a figure (.png).

    [bold]Example[/bold]

      osda analyse edges office31 --data features/ --task amazon-webcam --out analyses
    """
    if analysis not in ANALYSES:
        raise InputError(f"analysis {analysis!r} does not exist; {choice(analysis, ANALYSES)}")
    names = methods or (EMBEDDED if analysis == "embedding" else ("pgl",))
    if analysis != "embedding" and len(names) > 1:
        raise InputError(f"--method {names[1]}: {analysis} is of one method; name one")
    if analysis == "edges" and names[0] != "pgl":
        raise InputError(f"--method {names[0]}: only pgl learns edges; leave --method out")
    from opensetda.analyses.request import fit_methods
    from opensetda.benchmark.tasks import find_tasks
    from opensetda.benchmark.variants import make_variants
    from opensetda.system.files import check_writable

    variants = make_variants(names, preset, parse_settings(changes))
    check_writable(out / f"{analysis}.csv")
    asked = (None if task is None else [task]), tables, options.cached(images)
    with counting_progress("features") as progress:
        found = find_tasks(protocol, data, *asked, progress, only_first=True)
    for warning in found.warnings:
        console.warn(warning)
    module = importlib.import_module(f"opensetda.analyses.{analysis}")
    with training_progress(analysis) as listen:
        result = module.analyse(*fit_methods(found, variants, openness.value, seed, listen))
    files = result.write(out, analysis, shlex.join(context.obj))
    console.show(rich_table(result.table()))
    made = {"table": files[:2], "figure": files[2:]}
    console.say_places(**{name: ", ".join(map(str, paths)) for name, paths in made.items()})
    told = {"analysis": analysis, "title": result.title, "rows": list(result.rows)}
    console.result({**told, "files": made})


@data_app.command("list")
@spread
def list_benchmarks() -> None:
    """Show the benchmarks: domains, classes, open-set protocol, where they are published."""
    from opensetda.data.benchmarks.protocols import BENCHMARKS

    table = console.new_table("Benchmarks", ["name", "domains"], ["images", "known", "unknown"])
    table.add_column("published at")
    for spec in BENCHMARKS.values():
        total = sum(spec.domains.values())
        images = f"{total:,}" if total else console.DASH
        unknown = "any other" if spec.others_unknown else str(len(spec.unknown))
        cells = (spec.name, ", ".join(spec.domains), images, str(len(spec.known)), unknown)
        table.add_row(*cells, "\n".join(spec.urls))
    console.show(table)
    console.result({"benchmarks": [asdict(spec) for spec in BENCHMARKS.values()]})


@data_app.command("digits")
@spread
def digits(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make.")],
    every: Annotated[int, other("--every NUMBER", "Write every NUMBER-th digit only.", low=1)] = 1,
) -> None:
    """Write the bundled digits as two folders of images, to try commands on.

    [bold]Example[/bold]

      osda data digits digits --every 5

      osda fit digits/mnist digits/scikit-learn --out run --image-size 64
    """
    from opensetda.data.benchmarks.digits import write_image_folders
    from opensetda.system.files import check_writable, new_folder

    if folder.exists():
        raise InputError(f"{folder}: exists already; choose another name")
    check_writable(folder)
    with new_folder(folder) as aside:
        names = [path.name for path in write_image_folders(aside, every)]
    source, target = (folder / name for name in names)
    console.say_places(source=source, target=target)
    console.result({"source": source, "target": target})
