"""`osda features`: images as a feature table; `osda data`: published benchmarks, digits to try."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli import console
from opensetda.cli.options import Fields, NoCache, Overwrite, other, output, spread, with_cache
from opensetda.errors import InputError
from opensetda.runs.options import ImageOptions, TableOptions

_IMAGES_HELP = "Images: a folder, a list (.txt), a manifest (.csv, .parquet) or tar shards."

data_app = typer.Typer(
    name="data",
    help="Published benchmarks, and where to download them; digits to try.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def features(
    data: Annotated[Path, typer.Argument(metavar="DATA", help=_IMAGES_HELP)],
    out: Annotated[Path, output("--out FILE", "The .npz or .parquet file to make.")],
    images: Annotated[ImageOptions, Fields(ImageOptions, "backbone weights size cache strict")],
    columns: Annotated[TableOptions, Fields(TableOptions, "label path root")],
    no_cache: NoCache = False,
    overwrite: Overwrite = False,
) -> None:
    """Turn images into features, one row per image.

    [bold]Examples[/bold]

      osda features photos/ --out photos.npz

      osda fit photos.npz drawings.npz --out run --id-column paths

    A .npz file holds X, paths and, if the images have classes, y and classes; a
    .parquet file the columns f0, f1, ..., path and label. Images that cannot be
    read are left out and listed beside the file.
    """
    from opensetda.cli.fit import ConsoleListener
    from opensetda.runs.feature_files import extract_features

    written = extract_features(
        data,
        out,
        with_cache(images, no_cache),
        label_column=columns.label,
        path_column=columns.path,
        images_root=columns.root,
        overwrite=overwrite,
        listener=ConsoleListener(),
    )
    console.say(
        f"{written.n_images:,} images, {written.n_features:,} features each, in "
        f"{written.seconds:.1f} s ({written.n_cached:,} from the cache)."
    )
    console.say_places(features=out)
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


@data_app.command("list")
@spread
def list_benchmarks() -> None:
    """Show the benchmarks: domains, classes, open-set protocol, where they are published.

    [bold]Example[/bold]

      osda data list
    """
    from opensetda.data.benchmarks.catalogue import BENCHMARKS

    table = console.new_table("Benchmarks", ["name", "domains"], ["images", "known", "unknown"])
    table.add_column("published at")
    for spec in BENCHMARKS.values():
        total = sum(spec.domains.values())
        table.add_row(
            spec.name,
            ", ".join(spec.domains),
            f"{total:,}" if total else console.DASH,
            str(len(spec.known)),
            "any other" if spec.others_unknown else str(len(spec.unknown)),
            "\n".join(spec.urls),
        )
    console.show(table)
    console.result({"benchmarks": [asdict(spec) for spec in BENCHMARKS.values()]})


@data_app.command("digits")
@spread
def digits(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make.")],
    every: Annotated[int, other("--every NUMBER", "Write every NUMBER-th digit only.", min=1)] = 1,
) -> None:
    """Write the bundled digits as two folders of images, to try commands on.

    [bold]Example[/bold]

      osda data digits digits --every 5

      osda fit digits/mnist digits/scikit-learn --out run --image-size 64
    """
    from opensetda.data.benchmarks.digits import write_image_folders
    from opensetda.system.files import check_writable, new_folder

    if folder.exists():
        raise InputError(f"{folder}: exists already; choose another name")
    check_writable(folder)
    with new_folder(folder) as aside:
        names = [path.name for path in write_image_folders(aside, every)]
    source, target = (folder / name for name in names)
    console.say_places(source=source, target=target)
    console.result({"source": source, "target": target})
