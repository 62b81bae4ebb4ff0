"""`osda resume`: go on with a run that was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opensetda.cli.options import Debug, Json, Quiet


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
    from opensetda.cli.fitting import carry_out
    from opensetda.cli.processes import join_team
    from opensetda.cli.starting import take_up

    team = join_team()
    unfinished = take_up(run, team)
    if unfinished is not None:
        carry_out(unfinished, team)
