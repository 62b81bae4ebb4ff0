"""`osda data`: published benchmarks, and digits to try commands on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli import console
from opensetda.cli.options import other, with_output_options
from opensetda.errors import InputError

data_app = typer.Typer(
    name="data",
    help="Published benchmarks, and where to download them; digits to try.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@data_app.command("list")
@with_output_options
def list_benchmarks() -> None:
    """Show the benchmarks: domains, classes, open-set protocol, where they are published.

    [bold]Example[/bold]

      osda data list
    """
    from opensetda.data.benchmarks.catalogue import BENCHMARKS

    columns = {"name": "left", "domains": "left"} | dict.fromkeys(("images", "known"), "right")
    columns |= {"unknown": "right", "published at": "left"}
    table = console.new_table("Benchmarks", columns)
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
@with_output_options
def digits(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make.")],
    every: Annotated[int, other("--every NUMBER", "Write every NUMBER-th digit only.", min=1)] = 1,
) -> None:
    """Write the bundled digits as two folders of images, to try commands on.

    [bold]Example[/bold]

      osda data digits digits --every 5

      osda fit digits/mnist digits/scikit-learn --out run --image-size 64
    """
    from opensetda.cli.bars import counting_progress
    from opensetda.data.benchmarks.digits import write_image_folders
    from opensetda.system.files import check_writable, new_folder

    if folder.exists():
        raise InputError(f"{folder}: exists already; choose another name")
    check_writable(folder)
    with counting_progress("digits") as progress, new_folder(folder) as aside:
        names = [path.name for path in write_image_folders(aside, every, progress)]
    source, target = (folder / name for name in names)
    console.say(f"  source   {source}")
    console.say(f"  target   {target}")
    console.result({"source": source, "target": target})
