"""`osda fit`: label a target, and leave a run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli.bars import ConsoleListener
from opensetda.cli.finished_run import show_fitted
from opensetda.cli.options import NoCache, RunOut, cached, output
from opensetda.data.names import check_exists
from opensetda.runs.options import FitOptions, ImageOptions, TableOptions

_SOURCE_HELP = "Labelled images (folder per class, list, manifest, tar shards) or feature table."
_TARGET_HELP = "Images or rows to label; labels in it are not read."
_NO_REPORT_HELP = "Write no report; 'osda report' does it later."


def fit(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help=_SOURCE_HELP)],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help=_TARGET_HELP)],
    out: RunOut,
    options: FitOptions,
    images: ImageOptions,
    tables: TableOptions,
    no_cache: NoCache = False,
    no_report: Annotated[bool, output("--no-report", _NO_REPORT_HELP)] = False,
) -> None:
    """Label an unlabelled target by a labelled source, which lacks some of its classes.

    [bold]Examples[/bold]

      osda fit shop/ street/ --out run

      osda fit a.npz b.npz --out run --openness 0.55 --id-column paths

    The source is a folder with one folder per class, a list of 'path label'
    lines, a manifest (.csv or .parquet with the columns path and label), tar
    shards (.tar, a folder or list of them) or a feature table (.npz, .csv, .tsv,
    .xlsx, .feather, .jsonl, .parquet). The target is of the same kind, without labels.
    Columns that look like counters, times or ids are left out, with a warning;
    --keep uses them. The share of unknowns is estimated, unless you give it or
    its audit (--corrections). 'osda resume' continues an interrupted run.
    """
    for path in (source, target):
        check_exists(path)  # Before anything heavy is imported.
    from opensetda.usecases.fit_run import fit as fit_run

    options = replace(options, images=cached(images, no_cache), tables=tables)
    run = fit_run(
        source,
        target,
        out,
        report=not no_report,
        command=context.obj,
        listener=ConsoleListener(),
        **vars(options),
    )
    show_fitted(run)
