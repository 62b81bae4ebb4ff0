"""`osda features`: images to a feature table that the other commands and tools can read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opensetda.cli import console
from opensetda.cli.image_options import (
    Backbone,
    Cache,
    ImageSize,
    ImagesRoot,
    NoCache,
    PathColumn,
    Strict,
    Weights,
    cache_folder,
)
from opensetda.cli.options import (
    OUTPUT_PANEL,
    TABLE_PANEL,
    Debug,
    Json,
    Overwrite,
    Quiet,
    broken_list,
    check_new_file,
)
from opensetda.cli.processes import join_team, shared_folder
from opensetda.errors import InputError

if TYPE_CHECKING:
    from opensetda.backbones.extraction import Extraction
    from opensetda.backbones.recipe import Recipe
    from opensetda.data.images.lists import ImageColumns
    from opensetda.data.images.loading import ImageList
    from opensetda.system.team import Team

_SUFFIXES = (".npz", ".parquet")


def features(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Images: a folder, a list (.txt), a manifest (.csv, .parquet) or tar shards.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FILE",
            help="The .npz or .parquet file to make.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ],
    backbone: Backbone = None,
    weights: Weights = None,
    image_size: ImageSize = None,
    cache: Cache = None,
    no_cache: NoCache = False,
    strict: Strict = False,
    label_column: Annotated[
        str | None,
        typer.Option(
            "--label-column",
            metavar="NAME",
            help="Column of the labels in manifests.",
            rich_help_panel=TABLE_PANEL,
        ),
    ] = None,
    path_column: PathColumn = None,
    images_root: ImagesRoot = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Turn images into features, one row an image.

    [bold]Examples[/bold]

      osda features photos/ --out photos.npz

      osda fit photos.npz drawings.npz --out run --id-column paths

    A .npz file holds X, paths and, if the images have classes, y and classes; a
    .parquet file the columns f0, f1, ..., path and label. Images that cannot be
    read are left out and listed beside the file.
    """
    team = join_team()
    team.first_does(lambda: check_new_file("--out", out, _SUFFIXES, overwrite))
    from opensetda.data.images.lists import ImageColumns
    from opensetda.system.files import check_writable

    team.first_does(lambda: check_writable(out))
    folder = cache_folder(cache, no_cache)
    images = _find(data, ImageColumns(path_column, label_column, images_root))
    recipe = _recipe(backbone, weights, image_size, folder)
    with shared_folder(out, team) as scratch:
        extraction = _extract(images, recipe, folder, scratch, team)
        _check(extraction, images, data, strict)
        if team.is_first:
            _finish(extraction, images, out)


def _finish(extraction: Extraction, images: ImageList, out: Path) -> None:
    from opensetda.system.files import new_file

    with new_file(out) as aside:
        _write(aside, images.select(extraction.rows), extraction)
    _show_result(extraction, images, out)


def _check(extraction: Extraction, images: ImageList, data: Path, strict: bool) -> None:
    """Raise an `InputError` if there are broken images that must not be, or no other."""
    if extraction.broken and strict:
        first = extraction.broken[0]
        raise InputError(
            f"{first.path}: {first.reason} ({len(extraction.broken):,} broken in all); "
            "repair or remove it, or leave out --strict"
        )
    if not len(extraction.rows):
        first = extraction.broken[0]
        raise InputError(
            f"{data}: none of its {len(images):,} images can be read; the first is "
            f"{first.id} ({first.reason})"
        )


def _find(data: Path, columns: ImageColumns) -> ImageList:
    """Find images, with their classes if every one has one."""
    from opensetda.data.images.loading import read_images

    try:
        images = read_images(data, columns, labelled=True)
    except InputError as error:
        images = read_images(data, columns)
        console.note(f"no classes are written: {error}")
    for line in images.notes:
        console.note(line)
    return images


def _recipe(
    backbone: str | None, weights: Path | None, image_size: int | None, folder: str | None
) -> Recipe:
    from opensetda.backbones.registry import DEFAULT_BACKBONE, resolve

    memory = None if folder is None else Path(folder)
    return resolve(backbone or DEFAULT_BACKBONE, weights, image_size, memory)


def _extract(
    images: ImageList, recipe: Recipe, folder: str | None, scratch: Path, team: Team
) -> Extraction:
    from opensetda.backbones.cache import FeatureCache
    from opensetda.backbones.extraction import extract
    from opensetda.cli.counting import counting_progress

    memory = None if folder is None else Path(folder)
    kept = None if memory is None else FeatureCache(memory, recipe.key, recipe.width)
    try:
        with counting_progress("features") as progress:
            extraction = extract(
                recipe,
                images.ids.tolist(),
                images.paths,
                kept,
                progress,
                scratch=scratch,
                team=team,
            )
    finally:
        if kept is not None:
            kept.close()
    for warning in extraction.warnings:
        console.warn(warning)
    return extraction


def _write(path: Path, images: ImageList, extraction: Extraction) -> None:
    import numpy as np

    if path.suffix.lower() == ".npz":
        # Numbers and text only: an array of objects would be pickled.
        arrays: dict[str, Any] = {"X": extraction.X, "paths": images.ids.astype(np.str_)}
        if images.labels is not None:
            classes, y = np.unique(images.labels, return_inverse=True)
            arrays |= {"y": y.astype(np.int64), "classes": classes.astype(np.str_)}
        with path.open("wb") as stream:
            np.savez(stream, **arrays)
        return
    import pyarrow as pa
    import pyarrow.parquet

    columns = {f"f{number}": column for number, column in enumerate(extraction.X.T)}
    table = pa.table({name: pa.array(np.ascontiguousarray(v)) for name, v in columns.items()})
    table = table.append_column("path", pa.array(images.ids.tolist(), pa.string()))
    if images.labels is not None:
        table = table.append_column("label", pa.array(images.labels.tolist(), pa.string()))
    pyarrow.parquet.write_table(table, path)


def _show_result(extraction: Extraction, images: ImageList, out: Path) -> None:
    from opensetda.runs.writing import write_broken
    from opensetda.system.files import new_file

    listed = broken_list(out)
    listed.unlink(missing_ok=True)
    if extraction.broken:
        with new_file(listed) as aside:
            write_broken(aside, extraction.broken)
        console.warn(
            f"{len(extraction.broken):,} of {len(images):,} images cannot be read and are left "
            f"out; they are listed in {listed}"
        )
    n_rows, width = extraction.X.shape
    console.say(
        f"{n_rows:,} images, {width:,} features each, in {extraction.seconds:.1f} s "
        f"({extraction.n_cached:,} from the cache)."
    )
    console.say(f"  features {out}")
    console.result(
        {
            "images": n_rows,
            "features": width,
            "broken": len(extraction.broken),
            "cached": extraction.n_cached,
            "seconds": extraction.seconds,
            "files": {"features": out, "broken": listed if extraction.broken else None},
        }
    )
