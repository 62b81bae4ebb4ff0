"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli import console
from opensetda.errors import InputError

TABLE_PANEL = "What is where in the tables"
TRAINING_PANEL = "Training"
OUTPUT_PANEL = "Output"

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of 'osda fit'.")]
SampleImages = Annotated[
    Path | None,
    typer.Option(
        "--images",
        metavar="FOLDER",
        help="Where the images of a feature table are: its ids are paths from here.",
    ),
]
LabelColumn = Annotated[
    str,
    typer.Option(
        "--label-column",
        metavar="NAME",
        help="Column of the labels (.npz: array, with names in 'classes').",
        rich_help_panel=TABLE_PANEL,
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option(
        "--id-column",
        metavar="NAME",
        help="Column that names the samples.",
        rich_help_panel=TABLE_PANEL,
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        "--drop",
        metavar="NAME",
        help="Column to leave out; may be repeated.",
        rich_help_panel=TABLE_PANEL,
    ),
]
FeaturesKey = Annotated[
    str,
    typer.Option(
        "--features-key",
        metavar="NAME",
        help="Array of the features in .npz files.",
        rich_help_panel=TABLE_PANEL,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        min=0,
        max=2**32 - 1,
        metavar="NUMBER",
        help="Seed of all random draws.",
        rich_help_panel=TRAINING_PANEL,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace what is there, once all went well.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=OUTPUT_PANEL),
]
# The console knows of these two: a command only has to have them.
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        callback=console.be_quiet,
        help="No progress, no notes: only warnings and errors on stderr.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        callback=console.speak_json,
        help="The result as one JSON object on stdout, instead of tables and lines.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]


def check_new_file(option: str, path: Path, suffixes: Sequence[str], overwrite: bool) -> None:
    """Raise an `InputError` unless a file can be made at `path`; better before than after.

    Parameters
    ----------
    option : str
        The option that names the file, for messages.
    path : Path
        The file to make.
    suffixes : sequence of str
        How its name may end, in lower case.
    overwrite : bool
        Whether a file that is there may be replaced.
    """
    if path.suffix.lower() not in suffixes:
        *others, last = suffixes
        endings = f"{', '.join(others)} or {last}" if others else last
        raise InputError(f"{option} {path}: the name must end in {endings}")
    if path.is_dir():
        raise InputError(f"{option} {path}: a folder is in the way; choose another name")
    if path.exists() and not overwrite:
        raise InputError(f"{option} {path}: exists already; choose another name or add --overwrite")
    if not path.resolve().parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}; make it first")


def broken_list(out: Path) -> Path:
    """Return the file beside `out` that lists the images that cannot be read."""
    return out.with_name(f"{out.name}.broken.csv")


def parse_changes(changes: list[str] | None) -> dict[str, str]:
    """Turn ``["a.b=1", ...]`` into a dict."""
    parsed = {}
    for change in changes or []:
        name, sign, value = change.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise InputError(f"--set {change}: write NAME=VALUE, for example --set steps=5")
        parsed[name.strip()] = value.strip()
    return parsed


BenchmarkData = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Folder of feature files, one a domain (amazon.npz, .parquet, .csv), or of image "
        "folders.",
    ),
]
PGLPreset = Annotated[
    str,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="Settings of pgl, as in fit.",
        rich_help_panel=TRAINING_PANEL,
    ),
]
PGLChanges = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change a setting of pgl; may be repeated.",
        rich_help_panel=TRAINING_PANEL,
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        metavar="NUMBER",
        min=1,
        help="Runs at once, each on one thread.",
        rich_help_panel=TRAINING_PANEL,
    ),
]
GridJobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        metavar="NUMBER",
        min=1,
        help="Runs at once, each on one thread; by default 2, or one a worker of the --scheduler.",
        rich_help_panel=TRAINING_PANEL,
    ),
]


class BackendName(StrEnum):
    """Whose processes work."""

    loky = "loky"
    dask = "dask"
    ray = "ray"


GridBackend = Annotated[
    BackendName,
    typer.Option(
        "--backend",
        help="Whose processes work: of this machine, or of a cluster of dask or ray.",
        rich_help_panel=TRAINING_PANEL,
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="ADDRESS",
        help="Cluster of dask or ray; without, one is started here for --jobs runs at once.",
        rich_help_panel=TRAINING_PANEL,
    ),
]
