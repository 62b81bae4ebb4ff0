"""`osda resume`: go on with a run that was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli import console
from opensetda.cli.options import Debug, Json, Quiet
from opensetda.errors import InputError


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The --out of 'osda fit'.")],
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Go on with a run that was interrupted, as if nothing had happened.

    [bold]Example[/bold]

      osda resume run

    Whatever 'osda fit' was told is kept in RUN.unfinished, with what was
    learned so far. On the CPU the result is the same, bit by bit. Source and
    target must be as they were.
    """
    from opensetda.cli.fitting import carry_out, check_request
    from opensetda.runs.folder import RunFolder
    from opensetda.runs.unfinished import SUFFIX, UnfinishedRun, unfinished_path
    from opensetda.runs.writing import check_destination

    if run.name.endswith(SUFFIX):
        run = run.with_name(run.name.removesuffix(SUFFIX))
    unfinished = UnfinishedRun.find(run)
    if unfinished is None and not run.exists():
        raise InputError(
            f"{run}: no such run, nor {unfinished_path(run).name}; make one with 'osda fit'"
        )
    if unfinished is None or unfinished.is_complete:
        RunFolder.open(run)
        if unfinished is not None:
            unfinished.remove()
        console.say(f"{run} is complete: nothing to resume.")
        console.result({"run": run, "resumed": False})
        return
    check_request(unfinished.request)
    if run.exists() and not unfinished.request.overwrite:
        raise InputError(
            f"{run}: has come to this place since the run began, and is not replaced; move it away"
        )
    check_destination(run, overwrite=True)
    console.note(f"going on with {unfinished.path}")
    carry_out(unfinished)
