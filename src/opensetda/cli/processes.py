"""Commands that several processes carry out together, started by `torchrun`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from opensetda.cli import console
from opensetda.errors import InputError, LostProcessError, OtherProcessError
from opensetda.system.launch import is_first, is_shared

if TYPE_CHECKING:
    from opensetda.system.team import Team

SHARED_COMMANDS = ("fit", "resume", "features", "predict")


def check_command(arguments: Sequence[str]) -> None:
    """Raise an `InputError` if several processes were started for what one does."""
    name = arguments[0] if arguments else "--help"
    if is_shared() and name not in SHARED_COMMANDS:
        console.be_silent(not is_first())
        raise InputError(
            f"osda {name}: one process does this; start it without torchrun "
            f"(several share {', '.join(SHARED_COMMANDS)})"
        )


def join_team() -> Team:
    """Return the team of this command; only its first process speaks."""
    from opensetda.system.team import this_team

    console.be_silent(not is_first())
    return this_team()


@contextmanager
def shared_folder(beside: Path, team: Team) -> Iterator[Path]:
    """Yield a new folder beside a file to be made, which all processes see; removed at the end.

    Nobody uses it any more when the first process leaves.
    """
    from opensetda.system.files import aside_of, make_parents

    place = Path(team.first_does(lambda: str(aside_of(beside.resolve()))))
    made = make_parents(place) if team.is_first else []
    try:
        team.first_does(place.mkdir)
        yield place
    except BaseException as error:
        # Before the folder goes, which others might miss: they follow from this error.
        if not isinstance(error, OtherProcessError):
            team.may_speak()
        raise
    finally:
        if team.is_first:
            shutil.rmtree(place, ignore_errors=True)
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()


def is_connected() -> bool:
    """Whether this process has joined others."""
    team = sys.modules.get("opensetda.system.team")
    return is_shared() and team is not None and team.this_team.cache_info().currsize > 0


def end_together(error: BaseException, message: str, code: int) -> None:
    """End this process of a team after an error; one of them all says why.

    It does not return: connections to who is gone may hang for long at a usual end.
    """
    from opensetda.system.team import this_team

    if isinstance(error, OtherProcessError):
        code = error.code
    elif this_team().may_speak():
        console.be_silent(False)
        console.fail(message, code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def reason_of(error: BaseException) -> str:
    """Return why a process of a team ends, if it is not by its own mistake."""
    size = os.environ.get("WORLD_SIZE", "1")
    if isinstance(error, LostProcessError):
        return f"another of the {size} processes is gone"
    return f"told to end, as torchrun does when another of the {size} processes is gone"
