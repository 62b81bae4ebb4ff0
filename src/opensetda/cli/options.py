"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opensetda.errors import InputError

TABLE_PANEL = "What is where in the tables"
TRAINING_PANEL = "Training"
OUTPUT_PANEL = "Output"

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of 'osda fit'.")]
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


def parse_changes(changes: list[str] | None) -> dict[str, str]:
    """Turn ``["a.b=1", ...]`` into a dict."""
    parsed = {}
    for change in changes or []:
        name, sign, value = change.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise InputError(f"--set {change}: write NAME=VALUE, for example --set steps=5")
        parsed[name.strip()] = value.strip()
    return parsed
