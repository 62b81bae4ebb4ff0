"""Options of the commands: groups of `opensetda.runs.options`, and others that several share.

A command names a group as one parameter, and `spread` gives typer its fields instead.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from opensetda.cli import console
from opensetda.runs.options import FitOptions, ImageOptions, Option, absolute, declared
from opensetda.system import default_cache_folder


def _of_typer(option: Option) -> Any:
    flag, _, metavar = option.flag.partition(" ")
    more: dict[str, Any] = {"min": option.low, "max": option.high}
    more |= {"metavar": metavar or None, "rich_help_panel": option.panel}
    return typer.Option(flag, help=option.help, **more)


def option_of(panel: str | None, flag: str, text: str, **more: Any) -> Any:
    """Return an option of one command; `flag` may have a metavar after a space."""
    return _of_typer(Option(flag, text, panel, **more))


output, of_method, other = (
    functools.partial(option_of, panel) for panel in ("Output", "Method", None)
)
_keyword = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
_QUIET = "Show no progress, notes or tables: only results, warnings and errors."
_JSON = "Print the result as one JSON object on stdout, instead of tables and lines."
_IMAGES = "Find the images of a feature table here: its ids are paths that start in this folder."
_DATA = "Folder with one feature file per domain (amazon.npz, .parquet, .csv), or image folders."
_PRESET = "Start from these settings, of the first method."
_SET = "Change a setting of the first method; may be repeated."

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of 'osda fit'.")]
RunOut = Annotated[Path, output("--out RUN", "Run folder to make.")]
Overwrite = Annotated[bool, _of_typer(declared(FitOptions)["overwrite"][1])]
Seed = Annotated[int, _of_typer(declared(FitOptions)["seed"][1])]
NoCache = Annotated[bool, option_of("Images", "--no-cache", "Do not cache features.")]
SampleImages = Annotated[Path | None, other("--images FOLDER", _IMAGES)]
Data = Annotated[Path | None, other("--data PATH", _DATA)]
Preset = Annotated[str | None, of_method("--preset NAME", _PRESET)]
Changes = Annotated[list[str] | None, of_method("--set NAME=VALUE", _SET)]
# Of every command; the console handles them.
_COMMON = {
    "quiet": Annotated[bool, output("--quiet", _QUIET)],
    "as_json": Annotated[bool, output("--json", _JSON)],
    "debug": Annotated[bool, output("--debug", "Show the traceback of an error.")],
}


@dataclass(frozen=True)
class Fields:
    """Some fields of a group of options, as the annotation of a parameter.

    With `as_in_fit`, what is not given is None: the run knows what `osda fit` was given.
    """

    group: type
    names: str = ""
    as_in_fit: bool = False

    def options(self, prefix: str) -> Iterator[tuple[str, str, Any, Option]]:
        """Yield the name of each field, that of its parameter, its type and its option."""
        for name, (kind, option) in declared(self.group).items():
            if option is not None and (not self.names or name in self.names.split()):
                yield name, f"{prefix}_{name}", kind, option

    def parameters(self, prefix: str) -> Iterator[inspect.Parameter]:
        """Yield the parameters that typer sees."""
        defaults = {field.name: field.default for field in dataclasses.fields(self.group)}
        for name, parameter, kind, option in self.options(prefix):
            default = defaults[name]
            if self.as_in_fit:
                text = option.help.partition("; by default")[0].rstrip(".")
                option = replace(option, help=f"{text}; by default as in fit.")
                kind, default = kind | None, None
            annotated: Any = Annotated  # Its arguments are known here only.
            annotation = annotated[option.kind or kind, _of_typer(option)]
            shown = default if isinstance(default, str | int) else None
            yield _keyword(parameter, annotation=annotation, default=shown)

    def values(self, prefix: str, given: dict[str, Any]) -> dict[str, Any]:
        """Take the values of the fields from what typer has read."""
        found = {}
        for name, parameter, _, option in self.options(prefix):
            if (value := given.pop(parameter)) is not None:
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
    parameters += [_keyword(name, annotation=kind, default=False) for name, kind in common.items()]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        flags = {name: given.pop(name) for name in common}
        console.begin(flags["quiet"], flags.get("as_json", False))
        made = {name: kind(**own.values(name, given)) for name, (kind, own) in groups.items()}
        command(**given, **made)

    run.__dict__["__signature__"] = signature.replace(parameters=parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def cached(images: ImageOptions, no_cache: bool = False) -> ImageOptions:
    """Return options with the folder of the feature cache: that given, the usual one, or none."""
    folder = None if no_cache else absolute(images.cache or default_cache_folder())
    return replace(images, cache=folder)
