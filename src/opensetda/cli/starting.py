"""Begin a run or take up one that was left behind; of several processes the first does it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from opensetda.cli import console
from opensetda.errors import InputError
from opensetda.runs.request import FitRequest
from opensetda.runs.unfinished import SUFFIX, UnfinishedRun, check_unfinished, unfinished_path
from opensetda.system.files import near
from opensetda.system.launch import was_restarted

if TYPE_CHECKING:
    from opensetda.system.team import Team


def check_request(request: FitRequest) -> None:
    """Find wrong settings before big files are read."""
    from opensetda.runs.methods import build_method, method_class
    from opensetda.runs.tensorboard import check_log

    if request.tensorboard is not None:
        check_log(Path(request.tensorboard))
    if request.corrections is not None:
        from opensetda.runs.corrections import check_corrections

        check_corrections(near(request.corrections))
    if request.images.finetune and not method_class(request.method).trains_backbone:
        raise InputError(f"--finetune: the method {request.method} has no network; leave it out")
    build_method(
        request.method,
        openness=request.openness,
        preset=request.preset,
        changes=request.changes,
        seed=request.seed,
        unknown_label=request.unknown_label,
    )


def begin(out: Path, request: FitRequest, team: Team) -> UnfinishedRun | None:
    """Check what was asked for and claim the place of the run, by the first process.

    Returns None if nothing is left to do: the launcher has started anew what was complete.
    """
    from opensetda.runs.tensorboard import check_new_log
    from opensetda.runs.writing import check_destination

    run = UnfinishedRun(out, request)

    def claim() -> dict[str, object]:
        nonlocal run
        state = claimed()
        return {"state": state, "request": run.request.to_dict()}

    def claimed() -> str:
        nonlocal run
        if was_restarted():
            earlier = UnfinishedRun.find(out)
            if run.is_complete:
                if earlier is not None:
                    earlier.remove()
                return "complete"
            if earlier is not None and _is_same(earlier.request, request):
                run = earlier
                return "found"
            if earlier is not None:
                earlier.release()
        check_destination(out, request.overwrite)
        check_unfinished(out, request.overwrite)
        check_request(request)
        if request.tensorboard is not None:
            check_new_log(near(request.tensorboard), request.overwrite)
        run = UnfinishedRun.begin(out, request, request.overwrite)
        return "begun"

    answer = team.first_does(claim)
    if answer["state"] == "complete":
        console.say(f"{out} is complete.")
        return None
    if not team.is_first:
        # Of the first attempt, if there was one: it may have had other processes.
        run = UnfinishedRun(out, FitRequest.from_dict(answer["request"], run.path))
    if answer["state"] == "found":
        run.was_left_behind = True
        console.note(f"going on with {run.path}")
    return run


def _is_same(one: FitRequest, other: FitRequest) -> bool:
    """Whether two requests are of one launch; one without a name is known by all it was told."""
    return one.identity == other.identity or replace(one, identity="") == replace(
        other, identity=""
    )


def take_up(out: Path, team: Team) -> UnfinishedRun | None:
    """Open a run that was left behind, and check that it can go on; None if it is complete."""
    from opensetda.runs.folder import RunFolder
    from opensetda.runs.writing import check_destination

    if out.name.endswith(SUFFIX):
        out = out.with_name(out.name.removesuffix(SUFFIX))
    found: UnfinishedRun | None = None

    def look() -> dict[str, object] | None:
        nonlocal found
        found = UnfinishedRun.find(out)
        if found is None and not out.exists():
            raise InputError(
                f"{out}: no such run, nor {unfinished_path(out).name}; make one with 'osda fit'"
            )
        if found is None or found.is_complete:
            RunFolder.open(out)
            if found is not None:
                found.remove()
            return None
        check_request(found.request)
        if out.exists() and not found.request.overwrite:
            raise InputError(
                f"{out}: has come to this place since the run began, and is not replaced; "
                "move it away"
            )
        check_destination(out, overwrite=True)
        return found.request.to_dict()

    request = team.first_does(look)
    if request is None:
        console.say(f"{out} is complete: nothing to resume.")
        console.result({"run": out, "resumed": False})
        return None
    if found is None:
        found = UnfinishedRun(out, FitRequest.from_dict(request, unfinished_path(out)))
        found.was_left_behind = True
    console.note(f"going on with {found.path}")
    return found
