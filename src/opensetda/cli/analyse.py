"""`osda analyse`: a figure of the paper."""

from __future__ import annotations

import importlib
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli import console, options
from opensetda.cli.bars import counting_progress, training_progress
from opensetda.cli.benchmark import FRONT, PROTOCOLS, Openness, show_text_table
from opensetda.cli.options import Fields, option_of, output
from opensetda.errors import InputError, choice
from opensetda.runs.options import ImageOptions, TableOptions, parse_settings

ANALYSES = {
    "steps": "accuracy over the steps (Fig. 7)",
    "embedding": "t-SNE of features by method (Fig. 5)",
    "edges": "learned edges beside the true ones (Fig. 6)",
    "bound": "terms of the error bound over the steps (Theorems 1 and 2)",
}
EMBEDDED = ("moving-means", "pgl", "osbp")
_ANALYSIS_HELP = "; ".join(f"{name}: {summary}" for name, summary in ANALYSES.items())
_FIGURE_HELP = "Folder of the table and the figure."
_TASK_HELP = "Task to analyse. Default: the first of the protocol."
_ANALYSED_HELP = (
    f"Method to analyse; embedding: repeatable. Default: pgl; embedding: {', '.join(EMBEDDED)}."
)
_SHARE_HELP = "Use the true share of unknowns, or estimate it."

_of_analysis = partial(option_of, "Analysis")


def analyse(
    context: typer.Context,
    analysis: Annotated[str, typer.Argument(metavar="ANALYSIS", help=_ANALYSIS_HELP)],
    protocol: Annotated[str, typer.Argument(metavar="PROTOCOL", help=PROTOCOLS)],
    out: Annotated[Path, output("--out DIR", _FIGURE_HELP)],
    images: Annotated[ImageOptions, Fields(FRONT)],
    tables: Annotated[TableOptions, Fields("label features drop")],
    data: options.Data = None,
    task: Annotated[str | None, _of_analysis("--task SOURCE-TARGET", _TASK_HELP)] = None,
    methods: Annotated[list[str] | None, _of_analysis("--method NAME", _ANALYSED_HELP)] = None,
    openness: Annotated[Openness, _of_analysis("--openness", _SHARE_HELP)] = Openness.true,
    seed: options.Seed = 0,
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
    from opensetda.benchmark.output import formulas_in
    from opensetda.benchmark.tasks import find_tasks
    from opensetda.benchmark.variants import make_variants
    from opensetda.system.files import check_writable

    variants = make_variants(names, preset, parse_settings(changes))
    check_writable(out / f"{analysis}.csv")
    with counting_progress("features") as progress:
        found = find_tasks(
            protocol,
            data,
            tasks=None if task is None else [task],
            tables=tables,
            images=options.cached(images),
            progress=progress,
            only_first=True,
        )
    for warning in found.warnings:
        console.warn(warning)
    module = importlib.import_module(f"opensetda.analyses.{analysis}")
    with training_progress(analysis) as listen:
        result = module.analyse(*fit_methods(found, variants, str(openness), seed, listen))
    files = result.write(out, analysis, shlex.join(context.obj))
    for warning in formulas_in(files[0], result.rows):
        console.warn(warning)
    show_text_table(result.table())
    made = {"table": files[:2], "figure": files[2:]}
    console.say_places(**{name: ", ".join(map(str, paths)) for name, paths in made.items()})
    console.result(
        {
            "analysis": analysis,
            "title": result.title,
            "rows": list(result.rows),
            "files": made,
        }
    )
