"""The options of a fit, each declared once: a field with its type, its default and its help.

The commands (`opensetda.cli.options`), `opensetda.usecases.fit` and the request that a run stores
take them from here. Nothing heavy is imported.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, get_type_hints

from opensetda.errors import InputError

SAMPLE = 65_536
SMALLEST_SAMPLE = 1024
"""Default of the largest number of targets to learn from, and the smallest that is allowed."""
DEFAULT_PROMPT = "a photo of a {}."
ARRAY = "array"
"""Stands in place of the path of a domain that was given as an array."""


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


def declared(group: Any) -> dict[str, tuple[Any, Any]]:
    """Return type and `Option` of each field of a class; None for one that is no option."""
    hints = get_type_hints(group)
    return {one.name: (hints[one.name], one.metadata.get("option")) for one in fields(group)}


def _option(panel: str, flag: str, text: str, default: Any = None, **how: Any) -> Any:
    """Return a field with its option."""
    usual: dict[str, Any] = {"default_factory" if default is dict else "default": default}
    return field(**usual, metadata={"option": Option(flag, text, panel, **how)})


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
    if text in ("auto", "preset"):
        return text
    digits = text.strip(" %").replace(",", ".")
    number = float(digits) if re.fullmatch(r"\d*\.?\d+", digits) else 1.0
    if digits == text and number < 1:
        return number
    meant = number / 100 if number > 1 else number
    hint = f"; did you mean {meant:g}?" if 0 < meant < 1 else ""
    raise InputError(
        f"--openness {text}: give the share of unknowns in the target, a number in [0, 1), "
        f"or 'auto' to have it estimated{hint}"
    )


def parse_prompts(given: Sequence[str]) -> tuple[str, ...]:
    """Return texts as they are given, or the lines of files."""
    texts: list[str] = []
    for word in given:
        if not Path(word).is_file():
            texts.append(word)
            continue
        try:
            texts += Path(word).read_text(encoding="utf-8-sig").splitlines()
        except ValueError:
            raise InputError(f"{word}: not a text file in UTF-8; give one text per line") from None
    return tuple(text.strip() for text in texts if text.strip())


def parse_names(given: Sequence[str]) -> tuple[str, ...]:
    """Return names that are separated by commas, or the lines of files."""
    names = [name.strip() for text in parse_prompts(given) for name in text.split(",")]
    return tuple(name for name in names if name)


def documented(group: type) -> None:
    """Add the help of each option to the docstring of its class."""
    lines = ["", "", "Parameters", "----------"]
    for one in fields(group):
        option = one.metadata.get("option")
        if option is not None:
            lines += [f"{one.name} : {one.type}", f"    {in_python(option.help)}"]
    group.__doc__ = (group.__doc__ or "") + "\n    ".join(lines)


_ARGUMENTS = {"TableOptions": "tables", "ImageOptions": "images"}


def usual_preset(method: str, trains_backbone: bool) -> str | None:
    """Return the preset to take if none is named; None is the method's default."""
    return "end-to-end" if method == "pgl" and trains_backbone else None


def in_python(text: str) -> str:
    """Return a message with the options of the command under their names in Python.

    A command that needs the folder of a run is left out of the warnings of a classifier.
    """
    text = text.replace(" with 'osda review RUN'", "")
    return _FLAG.sub(lambda flag: _named(flag[0]), _ADDED.sub(_as_call, text))


def _named(flag: str) -> str:
    group, name = _python_names().get(flag, ("", ""))
    if not name:
        return flag
    return f"{group}({name}=...)" if group else f"{name}=..."


def _as_call(found: re.Match[str]) -> str:
    """Return "add --drop a,b --id-column n" as the argument that does it."""
    words = shlex.split(found[1])
    groups: dict[str, list[str]] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        group, name = _python_names().get(flag, ("", flag))
        groups.setdefault(group, []).append(f"{name}={value!r}")
    calls = [
        f"{_ARGUMENTS[group]}={group}({', '.join(given)})" if group else ", ".join(given)
        for group, given in groups.items()
    ]
    return f"give {', '.join(calls)}"


@cache
def _python_names() -> dict[str, tuple[str, str]]:
    """Return the class (none of arguments of `fit`) and the name of each option, by its flag."""
    names = {"--out": ("", "out")}
    for group in (TableOptions, ImageOptions, FitOptions):
        of = "" if group is FitOptions else group.__name__
        for name, option in ((f.name, f.metadata.get("option")) for f in fields(group)):
            if option is not None:
                names[option.flag.split()[0]] = of, name
    return names


def absolute(path: str | Path) -> str:
    """Return a path as a request holds it, so that it may be resumed from any folder."""
    return str(Path(path).absolute())


_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_ADDED = re.compile(r"\b(?:[Aa]dd|take) ((?:--[a-z-]+ (?:'[^']*'|[^\s';]+)(?: |$))+)", re.M)
_PATH: dict[str, Any] = {"kind": Path | None, "parse": absolute}
_NAMES: dict[str, Any] = {"default": (), "kind": list[str] | None, "parse": tuple}
_table, _image, _method, _output = (
    partial(_option, panel) for panel in ("Columns of tables", "Images", "Method", "Output")
)


@dataclass(frozen=True)
class TableOptions:
    """Names of columns and arrays in feature tables, lists and manifests (`osda fit --help`)."""

    label: str | None = _table(
        "--label-column NAME",
        "Column of the labels; by default 'y' in tables (.npz: array, with names in 'classes'), "
        "'label' in manifests.",
    )
    id: str | None = _table(
        "--id-column NAME", "Column that names the samples; by default row numbers."
    )
    features: str = _table("--features-key NAME", "Array of the features in .npz files.", "X")
    drop: tuple[str, ...] = _table(
        "--drop NAMES", "Leave out these columns: a,b or repeated.", **_NAMES
    )
    keep: tuple[str, ...] = _table(
        "--keep NAMES",
        "Use these columns even if they look like counters, times, ids or marks of a domain: a,b "
        "or repeated.",
        **_NAMES,
    )
    one_hot: tuple[str, ...] = _table(
        "--one-hot NAMES",
        "Turn these columns of text into features, one per value (at most 50): a,b or repeated.",
        **_NAMES,
    )
    impute: Literal["none", "median"] = _table(
        "--impute", "Fill empty cells with the median of their column and domain.", "none"
    )
    path: str | None = _table(
        "--path-column NAME", "Column of the image files in manifests; by default 'path'."
    )
    root: str | None = _table(
        "--images-root FOLDER",
        "Folder that relative paths in lists and manifests start from; by default the file's own.",
        **_PATH,
    )

    def __post_init__(self) -> None:
        for name in ("drop", "keep", "one_hot"):
            if isinstance(given := getattr(self, name), str):
                # One name, where several may be given; frozen for everybody else.
                object.__setattr__(self, name, (given,))


@dataclass(frozen=True)
class ImageOptions:
    """How images become features (`osda fit --help`); a `cache` of None keeps none.

    In Python `backbone` may also be a network, see `opensetda.use_backbone`.
    """

    backbone: str | None = _image(
        "--backbone NAME",
        "Network that turns images into features: efficientnet-lite0 (default) or "
        "efficientnet-lite2, whose weights are bundled, resnet50, vgg19, dinov2-small, "
        "dinov2-base, clip-vit-base, clip-vit-large, convnext-tiny, convnext-base, timm:NAME, "
        "hf:NAME (Hugging Face), clip:NAME (open_clip), or your own: package.module:function.",
    )
    weights: str | None = _image(
        "--weights FILE",
        "Weights of the backbone (.safetensors, .pth); by default downloaded from the hub.",
        **_PATH,
    )
    size: int | None = _image(
        "--image-size PIXELS", "Resize images to this side; by default the backbone's own."
    )
    views: int | None = _image(
        "--views NUMBER",
        "Average the features of 1 to 4 views of each image: as it is, mirrored, grey, both. Takes "
        "as many times as long. Default: 1; with --finetune 4.",
    )
    cache: str | None = _image(
        "--cache FOLDER",
        "Keep features here for the next run; by default in $OSDA_CACHE or ~/.cache/opensetda.",
        kind=Path | None,
        parse=str,
    )
    strict: bool = _image("--strict", "Stop at broken images instead of leaving them out.", False)
    finetune: Literal["auto", "last", "all"] | None = _method(
        "--finetune [last|all]",
        "Train the backbone, too; images only: its last stages, from activations that are stored "
        "once (last), or all of it (all); by default last on a CPU, all on a GPU. For methods that "
        "train nothing themselves it is trained on their labels, in rounds.",
    )

    prompts: tuple[str, ...] = _image(
        "--prompts TEMPLATE",
        "Let the names of the classes vote, too, in texts such as 'a photo of a {}.': a template, "
        "repeated, or a file of one per line. With --backbone clip:NAME and committee.",
        default=(),
        kind=list[str] | None,
        parse=parse_prompts,
    )
    unknown_prompts: tuple[str, ...] = _image(
        "--unknown-prompts NAMES",
        "Names of what may be unknown: a,b, repeated, or a file of one per line. The default of "
        "--prompts is then 'a photo of a {}.'",
        default=(),
        kind=list[str] | None,
        parse=parse_names,
    )

    def __post_init__(self) -> None:
        """Turn a network into a name that can be stored, and check prompts."""
        for name in ("prompts", "unknown_prompts"):
            if isinstance(given := getattr(self, name), str):
                object.__setattr__(self, name, (given,))
        if self.unknown_prompts and not self.prompts:
            object.__setattr__(self, "prompts", (DEFAULT_PROMPT,))
        for template in self.prompts:
            if "{}" not in template:
                advice = f"write {{}} for the name, as in '{DEFAULT_PROMPT}'"
                raise InputError(f"--prompts {template!r}: {advice}")
        if self.backbone is not None and not isinstance(self.backbone, str):
            from opensetda.backbones.own import use_backbone

            object.__setattr__(self, "backbone", use_backbone(self.backbone))


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What a fit may be told; columns of tables, and how images become features, in groups."""

    openness: float | str = _method(
        "--openness SHARE",
        "Share of unknown samples in the target, in [0, 1), or 'auto': by the audit in "
        "--corrections, or estimated; with pgl also 'preset', the paper's. Also --unknown-share.",
        "auto",
        kind=str,
        parse=parse_openness,
    )
    method: str = _method(
        "--method NAME",
        "Use committee (several quick methods that vote), moving-means, pgl, or another: "
        "class-means, source-only, dann+osvm ...; 'osda benchmark --help' lists all.",
        "committee",
    )
    preset: str | None = _method(
        "--preset NAME",
        "Start from the paper's settings for a dataset, pgl only: office-home, visda-17, "
        "syn2real-o. Default: default, or with --finetune end-to-end.",
    )
    settings: Mapping[str, Any] = _method(
        "--set NAME=VALUE",
        "Change a setting of the method, or of --finetune (finetune.flip=false); may be repeated.",
        dict,
        kind=list[str] | None,
        parse=parse_settings,
    )
    scaling: str | None = _method(
        "--scaling HOW",
        "Scale columns within each domain: none (as given), standard (mean 0, deviation 1) or "
        "ranks. Default: ranks with moving-means, none with others; the members of a committee "
        "have their own.",
    )
    seed: int = _method("--seed NUMBER", "Seed of all random draws.", 0, low=0, high=2**32 - 1)
    sample: int = _method(
        "--sample NUMBER",
        "Learn from at most this many targets, drawn at random; all are labelled.",
        SAMPLE,
        low=SMALLEST_SAMPLE,
    )
    corrections: str | None = _method(
        "--corrections FILE",
        "Learn from manually corrected labels of targets, new classes included, and take the "
        "share of unknowns from the audit: the CSV file of 'osda review'.",
        **_PATH,
    )
    keep_source: Literal["rows", "statistics", "none"] = _method(
        "--keep-source",
        "What the run keeps of the source for 'osda adapt': 800 rows of features, more of narrow "
        "tables (rows), statistics of each class (as good for images, worse for tables), or none.",
        "rows",
    )
    tensorboard: str | None = _method(
        "--tensorboard DIR",
        "Write the loss and the numbers of every step to this folder, for TensorBoard.",
        **_PATH,
    )
    images: ImageOptions = ImageOptions()
    tables: TableOptions = TableOptions()
    unknown_label: str = _output(
        "--unknown-label TEXT", "Label unknowns with this word.", "unknown"
    )
    overwrite: bool = _output(
        "--overwrite", "Replace existing output, once the new one is complete.", False
    )


@dataclass(frozen=True, kw_only=True)
class FitRequest(FitOptions):
    """The options of a fit and its domains, as stored; `identity` is that of the run."""

    identity: str
    source: str
    target: str
    adapts: bool = False
    """Whether the source is a run folder, which kept labelled rows."""
    report: bool = True
    command: tuple[str, ...] = ()

    def method_arguments(self) -> dict[str, Any]:
        """Return the arguments of `opensetda.runs.registry.build_method`."""
        names = ("method", "openness", "seed", "unknown_label", "scaling")
        preset = self.preset or usual_preset(self.method, self.images.finetune is not None)
        own = {"changes": self.settings, "preset": preset}
        return own | {name: getattr(self, name) for name in names}


for _group in (TableOptions, ImageOptions, FitOptions):
    documented(_group)
