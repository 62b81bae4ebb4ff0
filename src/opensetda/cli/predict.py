"""`osda predict`, `osda export` and `osda features`: later samples, the model, images as rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from opensetda.cli import console
from opensetda.cli.bars import ConsoleListener
from opensetda.cli.options import Fields, NoCache, Overwrite, RunArgument, cached, output
from opensetda.runs.options import ImageOptions, TableOptions

_PATHS_HELP = "Images: files, folders, lists, manifests or tar shards; or one feature table."
_TOP_HELP = "Write this many of the likeliest classes; by default 5 for images, all for tables."
_OUT_HELP = "The .csv or .parquet file to make."
_TO_HELP = "The .onnx file to make, or a folder for it, its description and a script."
_IMAGES_HELP = "Images: a folder, a list (.txt), a manifest (.csv, .parquet) or tar shards."


def predict(
    run: RunArgument,
    paths: Annotated[list[Path], typer.Argument(metavar="PATHS...", help=_PATHS_HELP)],
    out: Annotated[Path, output("--out LABELS", _OUT_HELP)],
    as_in_fit: Annotated[dict[str, Any], Fields(TableOptions, "id features", as_in_fit=True)],
    tables: Annotated[TableOptions, Fields(TableOptions, "drop path root")],
    top_k: Annotated[int | None, output("--top-k NUMBER", _TOP_HELP, low=1)] = None,
    overwrite: Overwrite = False,
) -> None:
    """Label later samples with the model of a run, independently of each other.

    [bold]Examples[/bold]

      osda predict run new-photos/ --out labels.csv

      osda predict run new.csv --out labels.parquet

    Any number of images is read, labelled and written part by part. Features of
    a table that had names in 'osda fit' are found by name, empty cells and
    categories are treated as there, and other columns are ignored.
    """
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
    labels = console.show_labels(written.counts, written.unknown_label)
    total = written.counts.total()
    console.say(f"Labelled {console.counted(total, written.noun)}.")
    console.say_places(labels=out)
    files = {"labels": out, "broken": written.broken_list}
    console.result({"samples": total, **labels, "broken": written.n_broken, "files": files})


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
    confidence, probabilities (unknown last) and known score; use.py in the folder
    resizes images. It is compared with 'osda predict' before it is written.
    """
    from opensetda.runs.exporting import export as export_model

    written = export_model(run, to, overwrite=overwrite)
    many = console.counted(written.n_checked, "image" if written.has_images else "row")
    console.say(
        f"Same labels as 'osda predict' for {many}; "
        f"probabilities differ by at most {written.difference:.0e}."
    )
    in_folder = written.path != written.model
    try_it = f"python {written.path / 'use.py'} FILE" if in_folder else None
    console.say_places(model=written.model, try_it=try_it)
    checked = {"samples": written.n_checked, "difference": written.difference}
    console.result({**checked, "files": {"model": written.model}})


def features(
    data: Annotated[Path, typer.Argument(metavar="DATA", help=_IMAGES_HELP)],
    out: Annotated[Path, output("--out FILE", "The .npz file to make.")],
    images: Annotated[ImageOptions, Fields(ImageOptions, "backbone weights size cache strict")],
    columns: Annotated[TableOptions, Fields(TableOptions, "label path root")],
    no_cache: NoCache = False,
    overwrite: Overwrite = False,
) -> None:
    """Turn images into features, one row per image.

    [bold]Examples[/bold]

      osda features photos/ --out photos.npz

      osda fit photos.npz drawings.npz --out run --id-column paths

    The file holds X, paths and, if the images have classes, y and classes. Images
    that cannot be read are left out and listed beside it.
    """
    from opensetda.runs.pictures import broken_list
    from opensetda.runs.predicting import extract_features

    written = extract_features(
        data,
        out,
        cached(images, no_cache),
        tables=columns,
        overwrite=overwrite,
        listener=ConsoleListener(),
    )
    n_images, n_features = written.X.shape
    console.say(
        f"{n_images:,} images, {n_features:,} features each, in "
        f"{written.seconds:.1f} s ({written.n_cached:,} from the cache)."
    )
    console.say_places(features=out)
    counts = {"images": n_images, "features": n_features}
    counts |= {"broken": len(written.broken), "cached": written.n_cached}
    files = {"features": out, "broken": broken_list(out) if written.broken else None}
    console.result({**counts, "seconds": written.seconds, "files": files})
