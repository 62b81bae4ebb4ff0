"""Options for images that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli.options import TABLE_PANEL
from opensetda.errors import InputError

IMAGE_PANEL = "Images"

Backbone = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        metavar="NAME",
        help="Network that turns images into features: efficientnet-lite0 (default; its weights "
        "are installed along), resnet50, vgg19, dinov2-small, dinov2-base, clip-vit-base, "
        "clip-vit-large, convnext-tiny, convnext-base, or timm:NAME.",
        rich_help_panel=IMAGE_PANEL,
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="Weights of the backbone (.safetensors, .pth); fetched from the hub otherwise.",
        rich_help_panel=IMAGE_PANEL,
    ),
]
ImageSize = Annotated[
    int | None,
    typer.Option(
        "--image-size",
        metavar="PIXELS",
        help="Side of the images that the backbone gets.",
        rich_help_panel=IMAGE_PANEL,
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="FOLDER",
        help="Where features are kept for the next run; OSDA_CACHE or ~/.cache/opensetda.",
        rich_help_panel=IMAGE_PANEL,
    ),
]
NoCache = Annotated[
    bool,
    typer.Option("--no-cache", help="Keep no features.", rich_help_panel=IMAGE_PANEL),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Stop at broken images instead of leaving them out.",
        rich_help_panel=IMAGE_PANEL,
    ),
]
PathColumn = Annotated[
    str | None,
    typer.Option(
        "--path-column",
        metavar="NAME",
        help="Column of the image files in manifests.",
        rich_help_panel=TABLE_PANEL,
    ),
]
ImagesRoot = Annotated[
    Path | None,
    typer.Option(
        "--images-root",
        metavar="FOLDER",
        help="Where the paths in lists and manifests start.",
        rich_help_panel=TABLE_PANEL,
    ),
]


def cache_folder(cache: Path | None, no_cache: bool) -> str | None:
    """Return the folder in which features are kept; None: they are not."""
    if no_cache:
        if cache is not None:
            raise InputError(f"--cache {cache}: contradicts --no-cache; leave one of them out")
        return None
    if cache is not None:
        if cache.exists() and not cache.is_dir():
            raise InputError(f"--cache {cache}: this is a file; give a folder")
        return str(cache.absolute())
    from opensetda.backbones.cache import default_cache_folder

    return str(default_cache_folder().absolute())
