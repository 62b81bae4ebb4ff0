"""Options of the commands: groups of `opensetda.runs.options`, and others that several share.

A command names a group as one parameter, and `spread` gives typer its fields instead.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from opensetda.cli import console
from opensetda.errors import InputError
from opensetda.runs.options import FitOptions, ImageOptions, Option, absolute, declared

METHOD_PANEL, OUTPUT_PANEL, IMAGE_PANEL = "Method", "Output", "Images"


def of_typer(option: Option, **more: Any) -> Any:
    """Return an option as typer declares it."""
    flag, _, metavar = option.flag.partition(" ")
    more |= {"min": option.low, "max": option.high}
    more |= {"metavar": metavar or None, "rich_help_panel": option.panel}
    return typer.Option(flag, help=option.help, **more)


def option_of(panel: str | None, flag: str, text: str, **more: Any) -> Any:
    """Return an option of one command; `flag` may have a metavar after a space."""
    low, high = more.pop("min", None), more.pop("max", None)
    return of_typer(Option(flag, text, panel, low=low, high=high), **more)


output, method_option, other = (
    functools.partial(option_of, panel) for panel in (OUTPUT_PANEL, METHOD_PANEL, None)
)

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of 'osda fit'.")]
RunOut = Annotated[Path, output("--out RUN", "Run folder to make.")]
Overwrite = Annotated[bool, of_typer(declared(FitOptions)["overwrite"][1])]
Seed = Annotated[int, of_typer(declared(FitOptions)["seed"][1])]
NoCache = Annotated[bool, option_of(IMAGE_PANEL, "--no-cache", "Do not cache features.")]
SampleImages = Annotated[
    Path | None,
    other(
        "--images FOLDER",
        "Find the images of a feature table here: its ids are paths that start in this folder.",
    ),
]
BenchmarkData = Annotated[
    Path | None,
    other(
        "--data PATH",
        "Folder with one feature file per domain (amazon.npz, .parquet, .csv), or image folders.",
    ),
]
OwnPreset = Annotated[
    str | None, method_option("--preset NAME", "Start from these settings, of the first method.")
]
OwnChanges = Annotated[
    list[str] | None,
    method_option("--set NAME=VALUE", "Change a setting of the first method; may be repeated."),
]

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
Debug = Annotated[bool, output("--debug", "Show the traceback of an error.")]
# The console handles them, not the command.
_COMMON = {"quiet": Quiet, "as_json": Json, "debug": Debug}


@dataclass(frozen=True)
class Fields:
    """Some fields of a group of options, as the annotation of a parameter.

    With `as_in_fit`, what is not given is None: the run knows what `osda fit` was given.
    """

    group: type
    names: str = ""
    as_in_fit: bool = False

    def __iter__(self) -> Iterator[tuple[str, Any, Option | None, Any]]:
        defaults = {field.name: field.default for field in dataclasses.fields(self.group)}
        for name, (kind, option) in declared(self.group).items():
            if not self.names or name in self.names.split():
                yield name, kind, option, None if self.as_in_fit else defaults[name]

    def parameters(self, prefix: str) -> Iterator[inspect.Parameter]:
        """Yield the parameters that typer sees."""
        for name, kind, option, default in self:
            if option is None:
                yield from Fields(kind).parameters(f"{prefix}_{name}")
                continue
            if self.as_in_fit:
                text = option.help.partition("; by default")[0].rstrip(".")
                kind, option = kind | None, replace(option, help=f"{text}; by default as in fit.")
            shown = default if isinstance(default, str | int) else None
            annotated: Any = Annotated  # Its arguments are known here only.
            annotation = annotated[option.kind or kind, of_typer(option)]
            yield _keyword(f"{prefix}_{name}", annotation, shown)

    def values(self, prefix: str, given: dict[str, Any]) -> dict[str, Any]:
        """Take the values of the fields from what typer has read."""
        found = {}
        for name, kind, option, _ in self:
            if option is None:
                found[name] = kind(**Fields(kind).values(f"{prefix}_{name}", given))
                continue
            value = given.pop(f"{prefix}_{name}")
            if value is not None:
                found[name] = value if option.parse is None else option.parse(value)
        return found


def spread(command: Callable[..., None], json: bool = True) -> Callable[..., None]:
    """Return a command for typer: groups of options as their fields, and the output options."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, Fields]] = {}
    for parameter in signature.parameters.values():
        kind: Any = parameter.annotation
        fields = getattr(kind, "__metadata__", (None,))[0]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            fields = Fields(kind)
        if isinstance(fields, Fields):
            groups[parameter.name] = getattr(kind, "__origin__", kind), fields
            parameters += fields.parameters(parameter.name)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    common = {name: kind for name, kind in _COMMON.items() if json or name != "as_json"}
    parameters += [_keyword(name, kind, False) for name, kind in common.items()]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for name in common:
            del given[name]
        made = {name: kind(**own.values(name, given)) for name, (kind, own) in groups.items()}
        command(**given, **made)

    run.__dict__["__signature__"] = signature.replace(parameters=parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def with_optional_values(arguments: Sequence[str]) -> list[str]:
    """Give --finetune its value where it has none, and --openness its other name.

    typer has no options with an optional value, and cuts two long names in the help.
    """
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    given[:end] = [re.sub("^--unknown-share(?=$|=)", "--openness", word) for word in given[:end]]
    for place in (number for number in range(end) if given[number] == "--finetune"):
        if not {"auto", "last", "all"}.intersection(given[place + 1 : place + 2]):
            given[place] = "--finetune=auto"
    return given


def with_cache(images: ImageOptions, no_cache: bool = False) -> ImageOptions:
    """Return options with the folder of the feature cache: that given, the usual one, or none."""
    from opensetda.system.cache_folder import default_cache_folder

    given = images.cache
    if given is not None and no_cache:
        raise InputError(f"--cache {given}: contradicts --no-cache; leave one of them out")
    if given is not None and Path(given).is_file():
        raise InputError(f"--cache {given}: this is a file; give a folder")
    folder = None if no_cache else absolute(given or default_cache_folder())
    return replace(images, cache=folder)
