"""`osda adapt`: label a new target from what a run kept of its source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli import console
from opensetda.cli.bars import ConsoleListener
from opensetda.cli.finished_run import show_fitted
from opensetda.cli.options import (
    Fields,
    NoCache,
    Overwrite,
    RunArgument,
    RunOut,
    cached,
    of_method,
    option_of_fit,
    output,
)
from opensetda.runs.options import ImageOptions, TableOptions, parse_openness, parse_settings

_TARGET_HELP = "Images or rows to label, of the same kind as the target of RUN."
_METHOD_HELP = "Method of the new run; by default as in RUN."
_SEED_HELP = "Seed of all random draws; by default as in RUN."
_KEEP_HELP = "What the new run keeps of the source: rows, statistics or none; by default as RUN."
_NO_REPORT_HELP = "Write no report; 'osda report' does it later."
_AS_IN_FIT = "id features drop path"


def adapt(
    context: typer.Context,
    run: RunArgument,
    target: Annotated[Path, typer.Argument(metavar="NEW_TARGET", help=_TARGET_HELP)],
    out: RunOut,
    tables: Annotated[TableOptions, Fields(f"{_AS_IN_FIT} root", _AS_IN_FIT)],
    images: Annotated[ImageOptions, Fields("backbone cache strict", "backbone")],
    openness: Annotated[str, option_of_fit("openness")] = "auto",
    method: Annotated[str | None, of_method("--method NAME", _METHOD_HELP)] = None,
    preset: Annotated[str | None, option_of_fit("preset")] = None,
    settings: Annotated[list[str] | None, option_of_fit("settings")] = None,
    seed: Annotated[int | None, of_method("--seed NUMBER", _SEED_HELP, low=0)] = None,
    sample: Annotated[int | None, option_of_fit("sample")] = None,
    corrections: Annotated[Path | None, option_of_fit("corrections")] = None,
    keep_source: Annotated[str | None, of_method("--keep-source HOW", _KEEP_HELP)] = None,
    no_cache: NoCache = False,
    no_report: Annotated[bool, output("--no-report", _NO_REPORT_HELP)] = False,
    overwrite: Overwrite = False,
) -> None:
    """Label a new target without the source, by the labelled rows that a run kept.

    [bold]Examples[/bold]

      osda adapt run april/ --out run-april

      osda adapt run april.csv --out run-april --keep-source none

      osda adapt run april.csv --out run-april --preset sf-pgl

    The new run is like one of 'osda fit': review it, predict with it, adapt it
    again. Columns, backbone, method and settings are those of RUN, whose marks
    join the labelled rows; the share of unknowns is estimated anew.
    """
    from opensetda.data.names import check_exists
    from opensetda.runs.folder import check_destination

    check_exists(target)
    check_destination(out, overwrite)
    from opensetda.usecases.adapt_run import adapt as adapt_run

    found = adapt_run(
        run,
        target,
        out,
        images=cached(images, no_cache),
        report=not no_report,
        command=context.obj,
        listener=ConsoleListener(),
        tables=tables,
        openness=parse_openness(openness),
        method=method,
        preset=preset,
        settings=parse_settings(settings),
        seed=seed,
        sample=sample,
        corrections=corrections,
        keep_source=keep_source,
        overwrite=overwrite,
    )
    chain = found.folder.chain
    console.say(
        f"{console.counted(len(chain), 'step')} from labelled data; {chain[-1]['agreement']:.0%} "
        f"of the labels agree with those of {run}"
    )
    show_fitted(found)
