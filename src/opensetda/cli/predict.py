"""`osda predict`: label later samples with the model of a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from opensetda.cli import console
from opensetda.cli.bars import ConsoleListener
from opensetda.cli.options import Fields, Overwrite, OwnBackbone, RunArgument, Scheduler, output
from opensetda.runs.options import TableOptions

_PATHS_HELP = "Images: files, folders, lists, manifests or tar shards; or one feature table."
_OUT_HELP = "The .csv or .parquet file to make; with --scheduler, the folder of Parquet parts."
_AS_IN_FIT = "id features drop path"


def predict(
    run: RunArgument,
    paths: Annotated[list[Path], typer.Argument(metavar="PATHS...", help=_PATHS_HELP)],
    out: Annotated[Path, output("--out LABELS", _OUT_HELP)],
    tables: Annotated[TableOptions, Fields(f"{_AS_IN_FIT} root", _AS_IN_FIT)],
    overwrite: Overwrite = False,
    scheduler: Scheduler = None,
    backbone: OwnBackbone = None,
) -> None:
    """Label later samples with the model of a run, independently of each other.

    [bold]Examples[/bold]

      osda predict run new-photos/ --out labels.csv

      osda predict run new.csv --out labels.parquet

    Any number of images is read, labelled and written part by part. Features of
    a table that had names in 'osda fit' are found by name, empty cells and
    categories are treated as there, and other columns are ignored.
    """
    from opensetda.usecases.predict_samples import predict as predict_samples

    written: Any = predict_samples(
        run,
        paths,
        out,
        tables=tables,
        overwrite=overwrite,
        scheduler=scheduler,
        backbone=backbone,
        listener=ConsoleListener(),
    )
    labels = console.show_labels(written.counts, written.unknown_label)
    total = written.counts.total()
    console.say(f"Labelled {console.counted(total, written.noun)}.")
    drift = getattr(written, "drift", None)
    if drift is not None:
        console.say(drift.line)
    console.say_places(labels=out)
    files = {"labels": out, "broken": written.broken_list}
    console.result(
        {
            "samples": total,
            **labels,
            "broken": written.n_broken,
            "drift": None if drift is None else asdict(drift),
            "files": files,
        }
    )
