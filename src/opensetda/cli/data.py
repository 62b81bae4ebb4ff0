"""`osda data`: published benchmarks, and bundled digits to try."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli import console
from opensetda.cli.options import other, spread
from opensetda.errors import InputError

data_app = typer.Typer(
    name="data",
    help="Published benchmarks, and where to download them; digits to try.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@data_app.command("list")
@spread
def list_benchmarks() -> None:
    """Show the benchmarks: domains, classes, open-set protocol, where they are published."""
    from opensetda.data.benchmarks.protocols import BENCHMARKS

    rows = []
    for spec in BENCHMARKS.values():
        total = sum(spec.domains.values())
        images = f"{total:,}" if total else console.DASH
        unknown = "any other" if spec.others_unknown else str(len(spec.unknown))
        cells = (spec.name, ", ".join(spec.domains), images, str(len(spec.known)), unknown)
        rows.append((*cells, ", ".join(spec.urls)))
    numbers = ["images", "known", "unknown"]
    console.show_table("Benchmarks", ["name", "domains"], numbers, rows, "published at")
    console.result({"benchmarks": [asdict(spec) for spec in BENCHMARKS.values()]})


@data_app.command("digits")
@spread
def digits(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make.")],
    every: Annotated[int, other("--every NUMBER", "Write every NUMBER-th digit only.", low=1)] = 1,
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
