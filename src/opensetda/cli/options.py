"""Options of the commands: groups of `opensetda.runs.options`, and others that several share.

A command names a group as one parameter, and `spread` gives typer its fields instead.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import Parameter as _Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from opensetda.cli import console
from opensetda.cli.heartbeat import heartbeat
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
_keyword = functools.partial(_Parameter, kind=_Parameter.KEYWORD_ONLY)
_QUIET = "Show no progress, notes or tables: only results, warnings and errors."
_VERBOSE = "Show the steps of the method, too."
_JSON = "Print the result as one JSON object on stdout, instead of tables and lines."
_IMAGES = "Find the images of a feature table here: its ids are paths that start in this folder."
_DATA = "Folder with one feature file per domain (amazon.npz, .parquet, .csv), or image folders."
_PRESET = "Start from these settings, of the first method."
_SCHEDULER = (
    "Work in pieces on the workers of dask: address or file of its scheduler, or local:N for N "
    "worker processes on this machine."
)
_SET = "Change a setting of the first method; may be repeated."


def option_of_fit(name: str) -> Any:
    """Return an option of `osda fit` for a parameter of another command."""
    return _of_typer(declared(FitOptions)[name][1])


def _checked_run(path: Path) -> Path:
    """Return the path of a run, which is there; nothing heavy is imported until then."""
    from opensetda.runs.place import check_is_run
    from opensetda.system.files import is_being_written

    if not is_being_written(path):
        check_is_run(path)
    return path


_RUN_HELP = "Run folder of 'osda fit'."
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help=_RUN_HELP, callback=_checked_run)]
RunOut = Annotated[Path, output("--out RUN", "Run folder to make.")]
NoCache = Annotated[bool, option_of("Images", "--no-cache", "Do not cache features.")]
Overwrite = Annotated[bool, _of_typer(declared(FitOptions)["overwrite"][1])]
Seed = Annotated[int, _of_typer(declared(FitOptions)["seed"][1])]
_OWN = "The network of a run that was fitted with one of your own: package.module:function."
OwnBackbone = Annotated[str | None, option_of("Images", "--backbone NAME", _OWN)]
Scheduler = Annotated[str | None, other("--scheduler ADDRESS", _SCHEDULER)]
SampleImages = Annotated[Path | None, other("--images FOLDER", _IMAGES)]
Data = Annotated[Path | None, other("--data PATH", _DATA)]
Preset = Annotated[str | None, of_method("--preset NAME", _PRESET)]
Changes = Annotated[list[str] | None, of_method("--set NAME=VALUE", _SET)]
# Of every command; the console handles them.
_COMMON = {
    "quiet": Annotated[bool, output("--quiet", _QUIET)],
    "as_json": Annotated[bool, output("--json", _JSON)],
    "verbose": Annotated[bool, output("--verbose", _VERBOSE)],
    "debug": Annotated[bool, output("--debug", "Show the traceback of an error.")],
}


class Fields(NamedTuple):
    """The fields of a group of options that a command has, all if none are named.

    Some are by default as in fit: what is not given there, the run knows.
    """

    names: str = ""
    as_in_fit: str = ""

    def parameters(self, group: Any, prefix: str) -> Iterator[tuple[str, Option, _Parameter]]:
        """Yield the name of each field, its option, and the parameter that typer sees."""
        defaults = {field.name: field.default for field in dataclasses.fields(group)}
        for name, (kind, option) in declared(group).items():
            if option is None or (self.names and name not in self.names.split()):
                continue
            default = defaults[name] if isinstance(defaults[name], str | int) else None
            if name in self.as_in_fit.split():
                text = option.help.partition("; by default")[0].rstrip(".")
                default = None
                option = replace(option, help=f"{text}; by default as in fit.")
            annotated: Any = Annotated  # Its arguments are known here only.
            annotation = annotated[option.kind or kind, _of_typer(option)]
            own = _keyword(f"{prefix}_{name}", annotation=annotation, default=default)
            yield name, option, own


def spread(command: Callable[..., None], json: bool = True) -> Callable[..., None]:
    """Return a command for typer: groups of options as their fields, and the output options."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[_Parameter] = []
    groups: dict[str, tuple[Any, list[tuple[str, Option, _Parameter]]]] = {}
    for parameter in signature.parameters.values():
        group: Any = getattr(parameter.annotation, "__origin__", parameter.annotation)
        if dataclasses.is_dataclass(group):
            fields = getattr(parameter.annotation, "__metadata__", (Fields(),))[0]
            own = list(fields.parameters(group, parameter.name))
            groups[parameter.name] = group, own
            parameters += [shown for *_, shown in own]
        else:
            parameters.append(parameter.replace(kind=_Parameter.KEYWORD_ONLY))
    common = {name: kind for name, kind in _COMMON.items() if json or name != "as_json"}
    parameters += [_keyword(name, annotation=kind, default=False) for name, kind in common.items()]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        flags = {name: given.pop(name) for name in common}
        console.begin(flags["quiet"], flags.get("as_json", False), flags["verbose"])
        for place, (group, own) in groups.items():
            values = {}
            for name, option, shown in own:
                if (value := given.pop(shown.name)) is not None:
                    values[name] = option.parse(value) if option.parse else value
            given[place] = group(**values)
        if not json:
            command(**given)
            return
        with heartbeat():
            command(**given)

    run.__dict__["__signature__"] = signature.replace(parameters=parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def cached(images: ImageOptions, no_cache: bool = False) -> ImageOptions:
    """Return options with the folder of the feature cache: that given, the usual one, or none."""
    folder = None if no_cache else absolute(images.cache or default_cache_folder())
    return replace(images, cache=folder)
