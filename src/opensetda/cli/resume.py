"""`osda resume`: go on with a run that was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli import console


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The --out of 'osda fit'.")],
) -> None:
    """Go on with a run that was interrupted; the result is the same.

    [bold]Example[/bold]

      osda resume run

    RUN.unfinished holds what 'osda fit' was asked for and the checkpoints. On
    the CPU the result is the same to the bit. Source and target must be as they
    were.
    """
    from opensetda.cli.fit_display import ConsoleListener, finish_fit
    from opensetda.cli.processes import join_team
    from opensetda.runs.fit_and_resume import resume as resume_run

    join_team()
    fitted = resume_run(run, listener=ConsoleListener())
    finish_fit(fitted, "is complete: nothing to resume.")
    if fitted.training is None:
        console.result({"run": fitted.path, "resumed": False})
