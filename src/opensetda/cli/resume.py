"""`osda resume`: continue a run that was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli.bars import ConsoleListener
from opensetda.cli.finished_run import show_fitted

_RUN_HELP = "Run folder of 'osda fit', of which RUN.unfinished is left."


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help=_RUN_HELP)],
) -> None:
    """Continue a run that was interrupted; the result is the same.

    RUN.unfinished holds what 'osda fit' was asked for and, once a step of a
    training is done, its checkpoint. On the CPU the result is the same to the
    bit. Source and target must be as they were.
    """
    from opensetda.usecases.resume_run import resume as resume_run

    show_fitted(resume_run(run, listener=ConsoleListener()))
