"""`osda analyse`: figures of the paper, each with a table, of one method on one task."""

from __future__ import annotations

import importlib
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opensetda.cli import console
from opensetda.cli.bars import training_progress
from opensetda.cli.benchmark import Images, Openness, Protocol, find_benchmark, rich_table
from opensetda.cli.options import (
    BenchmarkData,
    Fields,
    OwnChanges,
    OwnPreset,
    Seed,
    option_of,
    output,
)
from opensetda.errors import InputError, choice
from opensetda.runs.options import TableOptions, parse_settings

if TYPE_CHECKING:
    from opensetda.analyses.request import AnalysisResult

ANALYSES = {
    "steps": "accuracy over the steps (Fig. 7)",
    "embedding": "t-SNE of features by method (Fig. 5)",
    "edges": "learned edges beside the true ones (Fig. 6)",
    "bound": "terms of the error bound over the steps (Theorems 1 and 2)",
}
EMBEDDED = ("moving-means", "pgl", "osbp")

_of_analysis = partial(option_of, "Analysis")
_OUT_HELP = "Folder of the table and the figure."
_TASK_HELP = "Task to analyse. Default: the first of the protocol."
_METHODS_HELP = (
    f"Method to analyse; embedding: repeatable. Default: pgl; embedding: {', '.join(EMBEDDED)}."
)
_OPENNESS_HELP = "Use the true share of unknowns, or estimate it."


def analyse(
    context: typer.Context,
    analysis: Annotated[
        str, typer.Argument(metavar="ANALYSIS", help=f"{', '.join(ANALYSES)}; described above.")
    ],
    protocol: Protocol,
    out: Annotated[Path, output("--out DIR", _OUT_HELP)],
    images: Images,
    tables: Annotated[TableOptions, Fields(TableOptions, "label features drop")],
    data: BenchmarkData = None,
    task: Annotated[str | None, _of_analysis("--task SOURCE-TARGET", _TASK_HELP)] = None,
    methods: Annotated[list[str] | None, _of_analysis("--method NAME", _METHODS_HELP)] = None,
    openness: Annotated[Openness, _of_analysis("--openness", _OPENNESS_HELP)] = Openness.true,
    seed: Seed = 0,
    preset: OwnPreset = None,
    changes: OwnChanges = None,
) -> None:
    """Draw a figure of the paper: a table (.csv, .md) and a figure (.png).

    [bold]Analyses[/bold]

    {analyses}

    Ablations and sweeps over settings are options of 'osda benchmark'.

    [bold]Examples[/bold]

      osda analyse steps demo --method moving-means --out analyses

      osda analyse edges office31 --data features/ --task amazon-webcam --out analyses
    """
    if analysis not in ANALYSES:
        raise InputError(f"analysis {analysis!r} does not exist; {choice(analysis, ANALYSES)}")
    names = methods or (EMBEDDED if analysis == "embedding" else ("pgl",))
    if analysis != "embedding" and len(names) > 1:
        raise InputError(f"--method {names[1]}: {analysis} is of one method; name one")
    if analysis == "edges" and names[0] != "pgl":
        raise InputError(f"--method {names[0]}: only pgl learns edges; leave --method out")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: a file is in the way; choose another folder")
    from opensetda.analyses.request import fit_methods
    from opensetda.benchmark.variants import make_variants
    from opensetda.system.files import check_writable

    variants = make_variants(names, preset, parse_settings(changes))
    check_writable(out)
    tasks = None if task is None else [task]
    found = find_benchmark(protocol, data, tasks, tables, images, only_first=True)
    module = importlib.import_module(f"opensetda.analyses.{analysis}")
    with training_progress(analysis) as listen:
        fits = fit_methods(found, variants, openness.value, seed, listen)
        result: AnalysisResult = module.analyse(*fits)
    files = result.write(out, analysis, shlex.join(console.typed(context)))
    console.show(rich_table(result.table()))
    made = {"table": files[:2], "figure": files[2:]}
    console.say_places(**{name: ", ".join(map(str, paths)) for name, paths in made.items()})
    told = {"analysis": analysis, "title": result.title, "rows": list(result.rows)}
    console.result({**told, "files": made})


analyse.__doc__ = (analyse.__doc__ or "").format(
    analyses="\n\n    ".join(f"  {name}: {summary}" for name, summary in ANALYSES.items())
)
