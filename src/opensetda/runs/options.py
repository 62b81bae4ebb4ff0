"""The options of a fit, each declared once: a field with its type, its default and its help.

The commands (`opensetda.cli.options`), `opensetda.runs.fit` and the stored request
(`opensetda.runs.request`) take them from here. Nothing heavy is imported.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from opensetda.errors import InputError

T = TypeVar("T")

SAMPLE, SMALLEST_SAMPLE = 65_536, 1024
"""Default of the largest number of targets to learn from, and the smallest that is allowed."""
LARGEST_SEED = 2**32 - 1

FineTuning = Literal["auto", "last", "all"] | None


@dataclass(frozen=True)
class Option:
    """How a field is given on the command line; in Python, `help` is its documentation.

    `flag` may have a metavar after a space. `kind` is the type on the command line, where it is
    not that of the field, and `parse` makes one of the other.
    """

    flag: str
    help: str
    panel: str | None = None
    kind: Any = None
    parse: Callable[[Any], Any] | None = None
    low: int | None = None
    high: int | None = None
    names: Callable[[], Sequence[str]] | None = None


def declared(group: type) -> dict[str, tuple[Any, Option | None]]:
    """Return type and option of each field of a class; a group of others has no option."""
    hints = get_type_hints(group, include_extras=True)
    return {
        name: (getattr(hint, "__origin__", hint), getattr(hint, "__metadata__", (None,))[0])
        for name, hint in hints.items()
    }


def _documented(group: type[T]) -> type[T]:
    """Add the help of all options to the docstring of their class."""
    lines = ["", "", "Attributes", "----------"]
    for name, (_, option) in declared(group).items():
        if option is not None:
            lines += [name, textwrap.indent(textwrap.fill(option.help, 90), "    ")]
    group.__doc__ = f"{group.__doc__}" + "\n".join(lines) + "\n"
    return group


def parse_settings(changes: Sequence[str] | None) -> dict[str, str]:
    """Turn ``["a.b=1", ...]`` into a dict."""
    parsed = {}
    for change in changes or ():
        name, sign, value = (part.strip() for part in change.partition("="))
        if not (sign and name and value):
            raise InputError(f"--set {change}: write NAME=VALUE, for example --set steps=5")
        parsed[name] = value
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
    if 0 <= openness < 1:
        return openness
    percent = re.fullmatch(r"(0?[.,]\d+|\d\d?[.,]?\d*) ?%?", text.strip())
    meant = float(percent[1].replace(",", ".")) if percent else 0.0
    meant = meant / 100 if meant > 1 else meant
    hint = f"; did you mean {meant:g}?" if 0 < meant < 1 else ""
    raise InputError(
        f"--openness {text}: give the share of unknowns in the target, a number in [0, 1), "
        f"or 'auto' to have it estimated{hint}"
    )


def absolute(path: str | Path) -> str:
    """Return a path as a request holds it, so that it may be resumed from any folder."""
    return str(Path(path).absolute())


def _method_names() -> Sequence[str]:
    from opensetda.runs.methods import METHODS

    return list(METHODS)


def _choice(*values: str) -> dict[str, Any]:
    make: Any = StrEnum
    return {"kind": make("Choice", {value: value for value in values}) | None, "parse": str}


_PATH: dict[str, Any] = {"kind": Path | None, "parse": absolute}
_NAMES: dict[str, Any] = {"kind": list[str] | None, "parse": tuple}
_table, _image, _method, _output = (
    partial(Option, panel=panel) for panel in ("Columns of tables", "Images", "Method", "Output")
)

OVERWRITE = _output("--overwrite", "Replace existing output, once the new one is complete.")
SEED = _method("--seed NUMBER", "Seed of all random draws.", low=0, high=LARGEST_SEED)


@_documented
@dataclass(frozen=True)
class TableOptions:
    """Names of columns and arrays in feature tables, lists and manifests."""

    label: Annotated[
        str | None,
        _table(
            "--label-column NAME",
            "Column of the labels; by default 'y' in tables (.npz: array, with names in "
            "'classes'), 'label' in manifests.",
        ),
    ] = None
    id: Annotated[
        str | None,
        _table("--id-column NAME", "Column that names the samples; by default row numbers."),
    ] = None
    features: Annotated[
        str, _table("--features-key NAME", "Array of the features in .npz files.")
    ] = "X"
    drop: Annotated[
        tuple[str, ...],
        _table("--drop NAMES", "Leave out these columns: a,b or repeated.", **_NAMES),
    ] = ()
    keep: Annotated[
        tuple[str, ...],
        _table(
            "--keep NAMES",
            "Use these columns even if they look like counters, times, ids or marks of a domain: "
            "a,b or repeated.",
            **_NAMES,
        ),
    ] = ()
    one_hot: Annotated[
        tuple[str, ...],
        _table(
            "--one-hot NAMES",
            "Turn these columns of text into features, one per value (at most 50): a,b or "
            "repeated.",
            **_NAMES,
        ),
    ] = ()
    impute: Annotated[
        Literal["none", "median"],
        _table(
            "--impute",
            "Fill empty cells with the median of their column and domain.",
            **_choice("none", "median"),
        ),
    ] = "none"
    path: Annotated[
        str | None,
        _table("--path-column NAME", "Column of the image files in manifests; by default 'path'."),
    ] = None
    root: Annotated[
        str | None,
        _table(
            "--images-root FOLDER",
            "Folder that relative paths in lists and manifests start from; by default the file's "
            "own.",
            **_PATH,
        ),
    ] = None


@_documented
@dataclass(frozen=True)
class ImageOptions:
    """How images become features; a `cache` of None keeps none."""

    backbone: Annotated[
        str | None,
        _image(
            "--backbone NAME",
            "Network that turns images into features: efficientnet-lite0 (default; its weights "
            "are bundled), resnet50, vgg19, dinov2-small, dinov2-base, clip-vit-base, "
            "clip-vit-large, convnext-tiny, convnext-base, or timm:NAME.",
        ),
    ] = None
    weights: Annotated[
        str | None,
        _image(
            "--weights FILE",
            "Weights of the backbone (.safetensors, .pth); by default downloaded from the hub.",
            **_PATH,
        ),
    ] = None
    size: Annotated[
        int | None,
        _image("--image-size PIXELS", "Resize images to this side; by default the backbone's own."),
    ] = None
    cache: Annotated[
        str | None,
        _image(
            "--cache FOLDER",
            "Keep features here for the next run; by default in $OSDA_CACHE or ~/.cache/opensetda.",
            kind=Path | None,
            parse=str,
        ),
    ] = None
    strict: Annotated[
        bool, _image("--strict", "Stop at broken images instead of leaving them out.")
    ] = False
    finetune: Annotated[
        FineTuning,
        _method(
            "--finetune [last|all]",
            "Train the backbone, too; images only: its last stages, from activations that are "
            "stored once (last), or all of it (all); by default last on a CPU, all on a GPU. For "
            "methods that train nothing themselves it is trained on their labels, in rounds.",
            **_choice("auto", "last", "all"),
        ),
    ] = None


@_documented
@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What a fit may be told; columns of tables, and how images become features, in groups."""

    openness: Annotated[
        float | str,
        _method(
            "--openness SHARE",
            "Share of unknown samples in the target, in [0, 1), or 'auto': by the audit in "
            "--corrections, or estimated; with pgl also 'preset', the paper's. Also "
            "--unknown-share: papers call another figure openness, made of numbers of classes.",
            kind=str,
            parse=parse_openness,
        ),
    ] = "auto"
    method: Annotated[
        str,
        _method(
            "--method NAME",
            "Use moving-means, pgl, or another: class-means, source-only, dann+osvm ...; "
            "'osda benchmark --help' lists all.",
            names=_method_names,
        ),
    ] = "moving-means"
    preset: Annotated[
        str | None,
        _method(
            "--preset NAME",
            "Start from the paper's settings for a dataset, pgl only: office-home (default), "
            "visda-17, syn2real-o.",
        ),
    ] = None
    settings: Annotated[
        Mapping[str, Any],
        _method(
            "--set NAME=VALUE",
            "Change a setting of the method, or of --finetune (finetune.flip=false); may be "
            "repeated.",
            kind=list[str] | None,
            parse=parse_settings,
        ),
    ] = field(default_factory=dict)
    scaling: Annotated[
        str | None,
        _method(
            "--scaling HOW",
            "Scale columns within each domain: none (as given), standard (mean 0, deviation 1) or "
            "ranks; by default ranks for moving-means, none for the others.",
        ),
    ] = None
    seed: Annotated[int, SEED] = 0
    sample: Annotated[
        int,
        _method(
            "--sample NUMBER",
            "Learn from at most this many targets, drawn at random; all are labelled.",
            low=SMALLEST_SAMPLE,
        ),
    ] = SAMPLE
    corrections: Annotated[
        str | None,
        _method(
            "--corrections FILE",
            "Learn from manually corrected labels of targets, new classes included, and take the "
            "share of unknowns from the audit: the CSV file of 'osda review'.",
            **_PATH,
        ),
    ] = None
    tensorboard: Annotated[
        str | None,
        _method(
            "--tensorboard DIR",
            "Write the loss and the numbers of every step to this folder, for TensorBoard.",
            **_PATH,
        ),
    ] = None
    images: ImageOptions = ImageOptions()
    tables: TableOptions = TableOptions()
    unknown_label: Annotated[
        str, _output("--unknown-label TEXT", "Label unknowns with this word.")
    ] = "unknown"
    overwrite: Annotated[bool, OVERWRITE] = False
