"""The `osda` command: assembles the commands and turns errors into exit codes.

0 done, 1 failed, 2 wrong use, 130 interrupted. Nothing heavy is imported here:
each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Annotated

import typer

from opensetda import __version__
from opensetda.cli import console
from opensetda.cli.analyse import analyse
from opensetda.cli.benchmark import benchmark
from opensetda.cli.data import data_app, features
from opensetda.cli.demo import demo
from opensetda.cli.evaluate import evaluate
from opensetda.cli.fit import fit, resume
from opensetda.cli.options import other, spread, with_optional_values
from opensetda.cli.predict import export, predict
from opensetda.cli.report import report
from opensetda.cli.review import review
from opensetda.errors import InputError, ListedError, RunPausedError
from opensetda.system import default_cache_folder

app = typer.Typer(
    name="osda",
    help=(
        "Label a target domain with the classes of a source domain, and say "
        "[bold]unknown[/bold] where none of them fits.\n\n"
        "[bold]Start here:[/bold]  osda demo"
    ),
    epilog="Errors are one line. Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted.",
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: list[Callable[..., None]] = [demo, fit, resume, predict, evaluate, report, review]
_COMMANDS += [export, features, benchmark, analyse]
for _command in _COMMANDS:
    # A review is interactive and has no result.
    app.command()(spread(_command, json=_command is not review))
app.add_typer(data_app)

# What a wrong option or value raises; typer's own name for it has moved between releases.
_UsageError = typer.BadParameter.__mro__[1]

_INTERRUPTED = 130
_LIBRARY_CACHES = {"MPLCONFIGDIR": "matplotlib", "TORCHINDUCTOR_CACHE_DIR": "torchinductor"}
_NOTHING_WRITTEN = "interrupted; nothing was written"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"osda {__version__}")
        raise typer.Exit


_Version = Annotated[
    bool,
    other("--version", "Show the version and exit.", callback=_print_version, is_eager=True),
]


@app.callback()
def _options(version: _Version = False) -> None:
    pass


def main(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    # What libraries keep, a list of fonts and a folder for compiled code, is kept with our cache.
    for variable, name in _LIBRARY_CACHES.items():
        os.environ.setdefault(variable, str(default_cache_folder() / name))
    with console.command_line():
        return _answer(arguments)


def _answer(arguments: Sequence[str]) -> int:
    try:
        given = with_optional_values(arguments)
        code = app(args=given, prog_name="osda", standalone_mode=False, obj=arguments)
    except SystemExit:
        raise
    except BaseException as error:
        if "--debug" in arguments:
            traceback.print_exc()
        message, exit_code = _explain(error)
        # Without a command, typer has shown the help.
        return console.fail(message, exit_code) if message else exit_code
    if code == _INTERRUPTED:
        return console.fail(_NOTHING_WRITTEN, _INTERRUPTED)
    return code if isinstance(code, int) else 0


def _explain(error: BaseException) -> tuple[str | tuple[str, ...], int]:
    """Return the one line about an error, or the lines of a list, and the exit code."""
    if isinstance(error, RunPausedError):
        return f"interrupted; {error}", _INTERRUPTED
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return _NOTHING_WRITTEN, _INTERRUPTED
    if isinstance(error, ListedError):
        return error.lines, 2
    if isinstance(error, InputError):
        return str(error), 2
    if isinstance(error, _UsageError):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "osda"
        message = getattr(error, "format_message", error.__str__)().rstrip(".")
        text = getattr(getattr(error, "param", None), "help", None)
        if message.startswith("Missing") and text:
            message += f" ({text.rstrip('.')})"
        elif "unexpected extra argument" in message:
            message += "; put a name with spaces in quotes"
        joint = " See" if message.endswith("?") else "; see"
        return (f"{message}{joint} '{command} --help'" if message else ""), 2
    if isinstance(error, MemoryError):
        return "out of memory; give fewer rows or a smaller graph", 1
    if isinstance(error, OSError) and error.strerror is not None:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror, 1
    if isinstance(error, OSError):
        return str(error), 1
    kind = type(error).__name__
    return f"{kind}: {error} (run again with --debug for the traceback)", 1


def _terminate(signum: int, frame: FrameType | None) -> None:
    # As an exception, so that temporary files are removed.
    raise SystemExit(128 + signum)


def run() -> None:
    """Run `sys.argv`: the entry point of the `osda` command."""
    # Spinning threads make training ten times slower on a machine with other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(main(sys.argv[1:]))
