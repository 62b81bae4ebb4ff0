"""Options that several commands share, each declared once."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from opensetda.cli import console
from opensetda.errors import InputError

TABLE_PANEL = "Columns of tables"
TRAINING_PANEL = "Method"
OUTPUT_PANEL = "Output"
IMAGE_PANEL = "Images"


def option_of(panel: str | None, declared: str, text: str, **more: Any) -> Any:
    """Return an option of a panel; `declared` is its flag, and after a space its metavar."""
    flag, _, metavar = declared.partition(" ")
    return typer.Option(flag, metavar=metavar or None, help=text, rich_help_panel=panel, **more)


output, table, training, image, other = (
    functools.partial(option_of, panel)
    for panel in (OUTPUT_PANEL, TABLE_PANEL, TRAINING_PANEL, IMAGE_PANEL, None)
)

# arguments and output ------------------------------------------------------------------------

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of 'osda fit'.")]
RunOut = Annotated[Path, output("--out RUN", "Run folder to make.")]
Overwrite = Annotated[
    bool, output("--overwrite", "Replace existing output, once the new one is complete.")
]
Debug = Annotated[bool, output("--debug", "Show the traceback of an error.")]
Quiet = Annotated[
    bool,
    output(
        "--quiet",
        "Show no progress, notes or tables: only warnings and errors on stderr.",
        callback=console.be_quiet,
    ),
]
Json = Annotated[
    bool,
    output(
        "--json",
        "Print the result as one JSON object on stdout, instead of tables and lines.",
        callback=console.speak_json,
    ),
]
SampleImages = Annotated[
    Path | None,
    other(
        "--images FOLDER",
        "Find the images of a feature table here: its ids are paths that start in this folder.",
    ),
]

# tables --------------------------------------------------------------------------------------

LabelColumn = Annotated[
    str,
    table("--label-column NAME", "Column of the labels (.npz: array, with names in 'classes')."),
]
ManifestLabel = Annotated[
    str | None,
    table(
        "--label-column NAME",
        "Column of the labels; by default 'y' in tables (.npz: array, with names in 'classes'), "
        "'label' in manifests.",
    ),
]
LabelAsInFit = Annotated[
    str | None, table("--label-column NAME", "Column of the labels; by default as in fit.")
]
IdColumn = Annotated[
    str | None, table("--id-column NAME", "Column that names the samples; by default row numbers.")
]
IdAsInFit = Annotated[
    str | None, table("--id-column NAME", "Column of the ids; by default as in fit.")
]
Drop = Annotated[
    list[str] | None,
    table("--drop NAMES", "Leave out these columns: a,b or repeated."),
]
Keep = Annotated[
    list[str] | None,
    table(
        "--keep NAMES",
        "Use these columns even if they look like counters, times, ids or marks of a domain: "
        "a,b or repeated.",
    ),
]
OneHot = Annotated[
    list[str] | None,
    table(
        "--one-hot NAMES",
        "Turn these columns of text into features, one per value (at most 50): a,b or repeated.",
    ),
]


class Imputation(StrEnum):
    """What empty cells of tables get."""

    none = "none"
    median = "median"


Impute = Annotated[
    Imputation,
    table("--impute", "Fill empty cells with the median of their column and domain."),
]
FeaturesKey = Annotated[str, table("--features-key NAME", "Array of the features in .npz files.")]
FeaturesAsInFit = Annotated[
    str | None,
    table("--features-key NAME", "Array of the features in .npz files; by default as in fit."),
]
PathColumn = Annotated[
    str | None,
    table("--path-column NAME", "Column of the image files in manifests; by default 'path'."),
]
ImagesRoot = Annotated[
    Path | None,
    table(
        "--images-root FOLDER",
        "Folder that relative paths in lists and manifests start from; by default the file's own.",
    ),
]

# training ------------------------------------------------------------------------------------

Seed = Annotated[int, training("--seed NUMBER", "Seed of all random draws.", min=0, max=2**32 - 1)]
OwnPreset = Annotated[
    str | None, training("--preset NAME", "Start from these settings, of the first method.")
]
OwnChanges = Annotated[
    list[str] | None,
    training("--set NAME=VALUE", "Change a setting of the first method; may be repeated."),
]
BenchmarkData = Annotated[
    Path | None,
    other(
        "--data PATH",
        "Folder with one feature file per domain (amazon.npz, .parquet, .csv), or image folders.",
    ),
]
Jobs = Annotated[
    int, training("--jobs NUMBER", "Run this many fits at a time, one thread each.", min=1)
]


class FineTuned(StrEnum):
    """What of a backbone is trained."""

    auto = "auto"
    last = "last"
    all = "all"


# images --------------------------------------------------------------------------------------

Backbone = Annotated[
    str | None,
    image(
        "--backbone NAME",
        "Network that turns images into features: efficientnet-lite0 (default; its weights are "
        "bundled), resnet50, vgg19, dinov2-small, dinov2-base, clip-vit-base, clip-vit-large, "
        "convnext-tiny, convnext-base, or timm:NAME.",
    ),
]
Weights = Annotated[
    Path | None,
    image(
        "--weights FILE",
        "Weights of the backbone (.safetensors, .pth); by default downloaded from the hub.",
    ),
]
ImageSize = Annotated[
    int | None,
    image("--image-size PIXELS", "Resize images to this side; by default the backbone's own."),
]
Cache = Annotated[
    Path | None,
    image(
        "--cache FOLDER",
        "Keep features here for the next run; by default in $OSDA_CACHE or ~/.cache/opensetda.",
    ),
]
NoCache = Annotated[bool, image("--no-cache", "Do not cache features.")]
Strict = Annotated[bool, image("--strict", "Stop at broken images instead of leaving them out.")]

_UNKNOWN_SHARE = re.compile(r"--unknown-share(?=$|=)")
_COMMON = {"quiet": Quiet, "as_json": Json, "debug": Debug}


def with_output_options(command: Callable[..., None], json: bool = True) -> Callable[..., None]:
    """Add --quiet, --json and --debug to a command: the console handles them, not the command."""
    signature = inspect.signature(command, eval_str=True)
    wanted = {name: kind for name, kind in _COMMON.items() if json or name != "as_json"}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in wanted.items()
    ]

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        for parameter in added:
            arguments.pop(parameter.name)
        command(**arguments)

    parameters = [*signature.parameters.values(), *added]
    run.__dict__["__signature__"] = signature.replace(parameters=parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def with_optional_values(arguments: Sequence[str]) -> list[str]:
    """Give --finetune its value where it has none, and --openness its other name.

    typer has no options with an optional value, and cuts two long names in the help.
    """
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    given[:end] = [_UNKNOWN_SHARE.sub("--openness", word) for word in given[:end]]
    for place in (number for number in range(end) if given[number] == "--finetune"):
        if not {*FineTuned}.intersection(given[place + 1 : place + 2]):
            given[place] = f"--finetune={FineTuned.auto}"
    return given


def cache_folder(cache: Path | None, no_cache: bool) -> str | None:
    """Return the folder of the feature cache; None for no cache."""
    if no_cache and cache is not None:
        raise InputError(f"--cache {cache}: contradicts --no-cache; leave one of them out")
    if no_cache:
        return None
    if cache is None:
        from opensetda.system.cache_folder import default_cache_folder

        cache = default_cache_folder()
    elif cache.exists() and not cache.is_dir():
        raise InputError(f"--cache {cache}: this is a file; give a folder")
    return str(cache.absolute())


def parse_changes(changes: list[str] | None) -> dict[str, str]:
    """Turn ``["a.b=1", ...]`` into a dict."""
    parsed = {}
    for change in changes or []:
        name, sign, value = change.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise InputError(f"--set {change}: write NAME=VALUE, for example --set steps=5")
        parsed[name.strip()] = value.strip()
    return parsed


def parse_openness(text: str) -> float | str:
    """Return the value of --openness: a share, "auto", or "preset" (of pgl)."""
    # Checked here as well: importing the module that estimates would slow down the error.
    if text in ("auto", "preset"):
        return text
    try:
        openness = float(text)
    except ValueError:
        openness = float("nan")
    if not 0 <= openness < 1:
        percent = re.fullmatch(r"(0?[.,]\d+|\d\d?[.,]?\d*) ?%?", text.strip())
        meant = float(percent[1].replace(",", ".")) if percent else 0.0
        meant = meant / 100 if meant > 1 else meant
        hint = f"; did you mean {meant:g}?" if 0 < meant < 1 else ""
        raise InputError(
            f"--openness {text}: give the share of unknowns in the target, a number in [0, 1), "
            f"or 'auto' to have it estimated{hint}"
        )
    return openness
