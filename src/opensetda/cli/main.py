"""The `osda` command: assembles the commands and turns errors into exit codes.

0 done, 1 failed, 2 wrong use, 130 interrupted. Nothing heavy is imported here:
each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from opensetda import __version__
from opensetda.cli import console
from opensetda.cli.adapt import adapt
from opensetda.cli.analyse import analyse
from opensetda.cli.benchmark import benchmark
from opensetda.cli.compare import compare
from opensetda.cli.data import data_app
from opensetda.cli.demo import demo
from opensetda.cli.drift import drift
from opensetda.cli.evaluate import evaluate
from opensetda.cli.export import export
from opensetda.cli.features import features
from opensetda.cli.fit import fit
from opensetda.cli.options import other, spread
from opensetda.cli.predict import predict
from opensetda.cli.report import report
from opensetda.cli.resume import resume
from opensetda.cli.review import review
from opensetda.errors import InputError, RunPausedError
from opensetda.system import default_cache_folder, is_first_process

app = typer.Typer(
    name="osda",
    help="Label a target domain with the classes of a source domain, and say [bold]unknown[/bold] "
    "where none of them fits.\n\n[bold]Start here:[/bold]  osda demo",
    epilog="Errors are one line. Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted.",
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: list[Callable[..., None]] = [
    demo,
    fit,
    resume,
    predict,
    drift,
    adapt,
    compare,
    evaluate,
    report,
    review,
    export,
    features,
    benchmark,
    analyse,
]
for _command in _COMMANDS:
    # A review is interactive and has no result.
    app.command()(spread(_command, json=_command is not review))
app.add_typer(data_app)

# What a wrong option or value raises; typer's own name for it has moved between releases.
_UsageError = typer.BadParameter.__mro__[1]

_INTERRUPTED = 130
_LIBRARY_CACHES = {"MPLCONFIGDIR": "matplotlib", "TORCHINDUCTOR_CACHE_DIR": "torchinductor"}


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, other("--version", "Show the version.")] = False) -> None:
    if version:
        typer.echo(f"osda {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    # What libraries keep, a list of fonts and a folder for compiled code, is kept with our cache.
    for variable, name in _LIBRARY_CACHES.items():
        os.environ.setdefault(variable, str(default_cache_folder() / name))
    try:
        # Commands record what was typed.
        typed = ("osda", *arguments)
        given = with_optional_values(arguments)
        code = app(args=given, prog_name="osda", standalone_mode=False, obj=typed)
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except SystemExit:
        raise
    except BaseException as error:
        if "--debug" in arguments:
            traceback.print_exc()
        lines, code = _explain(error)
        # Without a command, typer has shown the help.
        if lines[0]:
            console.fail(*lines)
        return code
    finally:
        console.begin()


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


def _explain(error: BaseException) -> tuple[Sequence[str], int]:
    """Return the line about an error, or the lines of a list, and the exit code."""
    match error:
        case RunPausedError():
            return [f"interrupted; {error}"], _INTERRUPTED
        case KeyboardInterrupt() | typer.Abort():
            return ["interrupted; nothing was written"], _INTERRUPTED
        case InputError():
            return getattr(error, "lines", [str(error)]), 2
        case _ if isinstance(error, _UsageError):
            return [_usage(error)], 2
        case MemoryError():
            return ["out of memory; give fewer rows or a smaller graph"], 1
        case OSError():
            reason = error.strerror or str(error)
            return [f"{error.filename}: {reason}" if error.filename else reason], 1
    return [f"{type(error).__name__}: {error} (run again with --debug for the traceback)"], 1


def _usage(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    message = getattr(error, "format_message", error.__str__)().rstrip(".")
    message = message.replace(": Value error, ", ": ")
    text = getattr(getattr(error, "param", None), "help", None)
    if message.startswith("Missing") and text:
        message += f" ({text.rstrip('.')})"
    joint = " See" if message.endswith("?") else "; see"
    return message and f"{message}{joint} '{context.command_path if context else 'osda'} --help'"


def run() -> None:
    """Run `sys.argv`: the entry point of the `osda` command."""
    # Spinning threads make training ten times slower on a machine with other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # As an exception, so that temporary files are removed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if not is_first_process():
        # It helps the first one to train, which says what there is to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
    sys.exit(main(sys.argv[1:]))
