"""`osda predict`: label samples that came after `osda fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli import console, options


def predict(
    run: options.RunArgument,
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATHS...",
            help="Images to label: files, folders, lists, manifests or tar shards; or one "
            "feature table.",
        ),
    ],
    out: Annotated[
        Path, options.output("--out LABELS", "The .csv, .json or .parquet file to make.")
    ],
    top_k: Annotated[
        int | None,
        options.output(
            "--top-k NUMBER",
            "Write this many of the likeliest classes; by default 5 for images, all for tables.",
            min=1,
        ),
    ] = None,
    strict: options.Strict = False,
    id_column: options.IdAsInFit = None,
    drop: options.Drop = None,
    features_key: options.FeaturesAsInFit = None,
    path_column: options.PathColumn = None,
    images_root: options.ImagesRoot = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Label later samples with the model of a run, independently of each other.

    [bold]Examples[/bold]

      osda predict run new-photos/ --out labels.csv

      osda predict run new.csv --out labels.parquet

    Images are read, labelled and written part by part: a folder may hold any
    number of them. A table is of any format of 'osda fit'. Features that had
    names there are found by name, empty cells and categories are treated as
    there, and other columns are ignored.
    """
    from opensetda.cli.fit_display import ConsoleListener
    from opensetda.runs.predicting import WrittenLabels
    from opensetda.runs.predicting import predict as predict_samples

    written = predict_samples(
        run,
        paths,
        out,
        top_k=top_k,
        strict=strict,
        id_column=id_column,
        drop=drop,
        features_key=features_key,
        path_column=path_column,
        images_root=images_root,
        overwrite=overwrite,
        listener=ConsoleListener(),
    )
    assert isinstance(written, WrittenLabels), "a file is written"
    counts, unknown_label = written.counts, written.unknown_label
    console.show(console.label_counts(counts, unknown_label))
    many = f"{counts.total():,} rows of {paths[0].name}"
    if written.has_images:
        many = console.counted(counts.total(), "image")
    console.say(f"Labelled {many}.")
    console.say(f"  labels   {out}")
    files = {"labels": out, "broken": written.broken_list}
    summary = console.label_summary(counts, unknown_label)
    n_broken = len(written.broken)
    summary |= {"broken": n_broken, "files": files}
    console.result({"samples": counts.total(), **summary})
