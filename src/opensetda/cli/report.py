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
            help="HTML file to write; by default report.html in the run folder.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    images: SampleImages = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            metavar="DIR",
            help="Write the figures as PDF and PNG, for a paper, instead of the page.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a run: what was found, how sure it is, what the unknowns are, what to check by hand.

    [bold]Examples[/bold]

      osda report run

      osda report run --figures figures/

    One HTML file that needs no network: curves, a map of all samples at every
    step, the surest and the least sure, the unknowns in groups, and all settings.
    What 'osda evaluate' was told about the truth is shown, too.
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
