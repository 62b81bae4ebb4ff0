"""`osda predict`: label samples that came after `osda fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli import console
from opensetda.cli.options import (
    OUTPUT_PANEL,
    TABLE_PANEL,
    Debug,
    Drop,
    IdColumn,
    Overwrite,
    RunArgument,
)
from opensetda.errors import InputError


def predict(
    run: RunArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Rows to label (.npz, .csv or .parquet).")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="LABELS",
            help="The .csv or .parquet file to make.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ],
    id_column: IdColumn = None,
    drop: Drop = None,
    features_key: Annotated[
        str | None,
        typer.Option(
            "--features-key",
            metavar="NAME",
            help="Array of the features in .npz files.",
            rich_help_panel=TABLE_PANEL,
        ),
    ] = None,
    overwrite: Overwrite = False,
    debug: Debug = False,
) -> None:
    """Label later samples with the model of a run. Each row is judged on its own.

    [bold]Example[/bold]

      osda predict run new.csv --out labels.csv

    Features that had names in 'osda fit' are found by name; other columns do
    not matter.
    """
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"--out {out}: the name must end in .csv or .parquet")
    if out.is_dir():
        raise InputError(f"--out {out}: a folder is in the way; choose another name")
    if out.exists() and not overwrite:
        raise InputError(f"--out {out}: exists already; choose another name or add --overwrite")
    if not out.resolve().parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}; make it first")

    from opensetda.data.tables import TableColumns, read_samples
    from opensetda.runs.files import check_writable, new_file
    from opensetda.runs.folder import RunFolder
    from opensetda.runs.predictions import PredictionTable

    check_writable(out)
    folder = RunFolder.open(run)
    model = folder.model()
    columns = TableColumns(
        label=folder.column("label") or "y",
        id=id_column,
        features=features_key or folder.column("features") or "X",
        drop=tuple(drop or folder.column("drop") or ()),
    )
    samples = read_samples(
        file, model.n_features_in_, folder.feature_names(), columns, usual_id=folder.column("id")
    )
    table = PredictionTable.of_samples(model, samples.X, samples.ids)
    with new_file(out) as aside:
        table.write(aside)
    console.show(console.label_counts(table.labels.tolist(), folder.unknown_label))
    console.say(f"Labelled {len(table):,} rows of {file.name}.")
    console.say(f"  labels   {out}")
