"""`osda report`: one HTML file to look at a run, and figures for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli import console
from opensetda.cli.options import (
    OUTPUT_PANEL,
    Debug,
    Json,
    Overwrite,
    Quiet,
    RunArgument,
    SampleImages,
)


def report(
    run: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="HTML file to write. Default: report.html in the run folder.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    images: SampleImages = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            metavar="DIR",
            help="Write figures for a paper, as PDF and PNG, instead of the page.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a report of a run: labels, confidence, unknowns, and samples to check manually.

    [bold]Examples[/bold]

      osda report run

      osda report run --figures figures/

    One HTML file that needs no network: curves, a map of the samples at every
    step, the most and least confident labels, groups of unknowns, and all settings;
    after 'osda evaluate' also the metrics.
    """
    from opensetda.cli.reporting import make_figures, make_report
    from opensetda.runs.folder import RunFolder
    from opensetda.runs.outputs import check_new_file

    if out is not None:
        check_new_file("--out", out, (".html", ".htm"), overwrite)
    folder = RunFolder.open(run)
    drawn: list[Path] = []
    page: Path | None = None
    if figures is not None:
        drawn = make_figures(folder, figures, overwrite)
        for path in drawn:
            console.say(f"  figure   {path}")
    if figures is None or out is not None:
        page = make_report(folder, out, images).resolve()
        console.say(f"  report   {page}")
    console.result({"run": folder.path, "report": page, "figures": drawn})
