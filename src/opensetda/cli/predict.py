"""`osda predict` labels samples that came after `osda fit`; `osda export` takes the model away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from opensetda.cli import console
from opensetda.cli.options import Fields, Overwrite, RunArgument, output
from opensetda.runs.options import TableOptions

_PATHS_HELP = (
    "Images to label: files, folders, lists, manifests or tar shards; or one feature table."
)
_TOP_HELP = "Write this many of the likeliest classes; by default 5 for images, all for tables."
_OUT_HELP = "The .csv, .json or .parquet file to make."
_TO_HELP = "The .onnx file to make, or a folder for it, its description and a script."


def predict(
    run: RunArgument,
    paths: Annotated[list[Path], typer.Argument(metavar="PATHS...", help=_PATHS_HELP)],
    out: Annotated[Path, output("--out LABELS", _OUT_HELP)],
    as_in_fit: Annotated[dict[str, Any], Fields(TableOptions, "id features", as_in_fit=True)],
    tables: Annotated[TableOptions, Fields(TableOptions, "drop path root")],
    top_k: Annotated[int | None, output("--top-k NUMBER", _TOP_HELP, min=1)] = None,
    overwrite: Overwrite = False,
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
    from opensetda.cli.fit import ConsoleListener
    from opensetda.runs.predicting import WrittenLabels
    from opensetda.runs.predicting import predict as predict_samples

    written = predict_samples(
        run,
        paths,
        out,
        top_k=top_k,
        tables=replace(tables, **as_in_fit),
        overwrite=overwrite,
        listener=ConsoleListener(),
    )
    assert isinstance(written, WrittenLabels), "a file is written"
    counts, unknown_label = written.counts, written.unknown_label
    console.show(console.label_counts(counts, unknown_label))
    console.say(f"Labelled {console.counted(counts.total(), written.noun)}.")
    console.say_places(labels=out)
    summary = {"samples": counts.total(), **console.label_summary(counts, unknown_label)}
    files = {"labels": out, "broken": written.broken_list}
    console.result({**summary, "broken": written.n_broken, "files": files})


def export(
    run: RunArgument,
    to: Annotated[Path, output("--to PLACE", _TO_HELP)],
    overwrite: Overwrite = False,
) -> None:
    """Write the model of a run as ONNX, to label samples without torch and OpenSetDA.

    [bold]Examples[/bold]

      osda export run --to model.onnx

      osda export run --to model && python model/use.py photo.jpg

    The file takes resized RGB images, or rows of features, and returns label,
    confidence, probabilities (unknown last) and known score. Scaling, backbone
    and rejection are in it; use.py in the folder resizes images. It is compared
    with 'osda predict' before it is written: same labels, probabilities within
    1e-4.
    """
    from opensetda.runs.exporting import export as export_model

    written = export_model(run, to, overwrite=overwrite)
    many = console.counted(written.n_checked, "image" if written.has_images else "row")
    console.say(
        f"Same labels as 'osda predict' for {many}; "
        f"probabilities differ by at most {written.difference:.0e}."
    )
    use = written.path != written.model
    console.say_places(
        model=written.model, try_it=f"python {written.path / 'use.py'} FILE" if use else None
    )
    checked = {"samples": written.n_checked, "difference": written.difference}
    console.result({**checked, "files": {"model": written.model}})
