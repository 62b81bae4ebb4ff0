"""`osda features`: images as rows of features."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from opensetda.cli import console
from opensetda.cli.bars import ConsoleListener
from opensetda.cli.options import Fields, NoCache, Overwrite, Scheduler, cached, output
from opensetda.runs.options import ImageOptions, TableOptions

_IMAGES_HELP = "Images: a folder, a list (.txt), a manifest (.csv, .parquet) or tar shards."
_OUT_HELP = "The .npz file to make; with --scheduler, the folder of Parquet parts."


def features(
    data: Annotated[Path, typer.Argument(metavar="DATA", help=_IMAGES_HELP)],
    out: Annotated[Path, output("--out FILE", _OUT_HELP)],
    images: Annotated[ImageOptions, Fields("backbone weights size views cache strict")],
    columns: Annotated[TableOptions, Fields("label path root")],
    no_cache: NoCache = False,
    overwrite: Overwrite = False,
    scheduler: Scheduler = None,
) -> None:
    """Turn images into features, one row per image.

    [bold]Examples[/bold]

      osda features photos/ --out photos.npz

      osda fit photos.npz drawings.npz --out run --id-column paths

    The file holds X, paths and, if the images have classes, y and classes. Images
    that cannot be read are left out and listed beside it.
    """
    from opensetda.runs.pictures import broken_list
    from opensetda.usecases.predict_samples import extract_features

    written: Any = extract_features(
        data,
        out,
        cached(images, no_cache),
        tables=columns,
        overwrite=overwrite,
        scheduler=scheduler,
        listener=ConsoleListener(),
    )
    n_images, n_features = written.X.shape if scheduler is None else written.shape
    console.say(
        f"{n_images:,} images, {n_features:,} features each, in "
        f"{console.waited():.1f} s ({written.n_cached:,} from the cache)."
    )
    console.say_places(features=out)
    console.result(
        {
            "images": n_images,
            "features": n_features,
            "broken": len(written.broken),
            "cached": written.n_cached,
            "seconds": written.seconds,
            "files": {"features": out, "broken": broken_list(out) if written.broken else None},
        }
    )
