"""The command that fits a run again with what a person has said about it."""

from __future__ import annotations

import shlex
from pathlib import Path

from opensetda.runs.folder import RunFolder
from opensetda.system.files import near

# Options of the first fit that the second must not repeat; those with a value first.
_WITH_VALUE, _ALONE = ("--out", "-o", "--corrections"), ("--overwrite", "--quiet", "-q")


def refit_command(run: RunFolder, corrections: Path) -> str:
    """Return the command of a run, with corrections and a new folder; paths are as they were."""
    command = run.settings["command"] or []
    is_fit = command[:2] == ["osda", "fit"]
    kept, words = [], iter(command if is_fit else ["osda", "fit", "SOURCE", "TARGET"])
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif word not in _ALONE and not word.startswith(tuple(f"{n}=" for n in _WITH_VALUE)):
            kept.append(word)
    out = f"{near(run.path)}-2"
    return shlex.join([*kept, "--out", out, "--corrections", str(near(corrections))])
