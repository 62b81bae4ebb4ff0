"""`osda features`: turn images into a feature table that other commands and tools can read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli import console, options


def features(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Images: a folder, a list (.txt), a manifest (.csv, .parquet) or tar shards.",
        ),
    ],
    out: Annotated[Path, options.output("--out FILE", "The .npz or .parquet file to make.")],
    backbone: options.Backbone = None,
    weights: options.Weights = None,
    image_size: options.ImageSize = None,
    cache: options.Cache = None,
    no_cache: options.NoCache = False,
    strict: options.Strict = False,
    label_column: options.ManifestLabel = None,
    path_column: options.PathColumn = None,
    images_root: options.ImagesRoot = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Turn images into features, one row per image.

    [bold]Examples[/bold]

      osda features photos/ --out photos.npz

      osda fit photos.npz drawings.npz --out run --id-column paths

    A .npz file holds X, paths and, if the images have classes, y and classes; a
    .parquet file the columns f0, f1, ..., path and label. Images that cannot be
    read are left out and listed beside the file.
    """
    from opensetda.cli.fit_display import ConsoleListener
    from opensetda.runs.feature_files import extract_features
    from opensetda.runs.request import ImageOptions

    images = ImageOptions(
        backbone=backbone,
        weights=None if weights is None else str(weights),
        size=image_size,
        cache=options.cache_folder(cache, no_cache),
        strict=strict,
    )
    written = extract_features(
        data,
        out,
        images,
        label_column=label_column,
        path_column=path_column,
        images_root=images_root,
        overwrite=overwrite,
        listener=ConsoleListener(),
    )
    console.say(
        f"{written.n_images:,} images, {written.n_features:,} features each, in "
        f"{written.seconds:.1f} s ({written.n_cached:,} from the cache)."
    )
    console.say(f"  features {out}")
    console.result(
        {
            "images": written.n_images,
            "features": written.n_features,
            "broken": written.n_broken,
            "cached": written.n_cached,
            "seconds": written.seconds,
            "files": {"features": out, "broken": written.broken_list},
        }
    )
