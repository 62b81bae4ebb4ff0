"""Commands that several processes carry out together, started by `torchrun`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from opensetda.cli import console
from opensetda.errors import InputError, OtherProcessError
from opensetda.system.launch import is_first, is_shared

if TYPE_CHECKING:
    from opensetda.system.team import Team

SHARED_COMMANDS = ("fit", "resume", "features", "predict")


def check_command(arguments: Sequence[str]) -> None:
    """Raise an `InputError` if several processes were started for a command of one process."""
    name = arguments[0] if arguments else "--help"
    if is_shared() and name not in SHARED_COMMANDS:
        console.be_silent(not is_first())
        raise InputError(
            f"osda {name}: one process does this; start it without torchrun "
            f"(several share {', '.join(SHARED_COMMANDS)})"
        )


def join_team() -> Team:
    """Return the team of this command; only its first process prints."""
    from opensetda.system.team import this_team

    console.be_silent(not is_first())
    return this_team()


def is_connected() -> bool:
    """Whether this process has joined others."""
    team = sys.modules.get("opensetda.system.team")
    return is_shared() and team is not None and team.this_team.cache_info().currsize > 0


def end_together(error: BaseException, message: str, code: int) -> None:
    """End this process of a team after an error; one of all processes prints why.

    It does not return: connections to a lost process may hang at a usual exit.
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
