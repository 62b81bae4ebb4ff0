"""Begin a run, or open one that was interrupted; in a team the first process does it for all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from opensetda.errors import InputError
from opensetda.runs.corrections import check_corrections
from opensetda.runs.folder import RunFolder
from opensetda.runs.listening import RunListener
from opensetda.runs.methods import build_method, method_class
from opensetda.runs.request import ARRAY, FitRequest
from opensetda.runs.tensorboard import check_log, check_new_log
from opensetda.runs.unfinished import SUFFIX, UnfinishedRun, check_unfinished, unfinished_path
from opensetda.runs.writing import check_destination
from opensetda.system.files import near
from opensetda.system.launch import was_restarted
from opensetda.system.team import Team


def begin(
    out: Path, request: FitRequest, team: Team, listener: RunListener
) -> UnfinishedRun | None:
    """Check the request and claim the place of the run.

    Returns None if the run is complete: the launcher has restarted the processes of a run that
    had ended.
    """
    run = UnfinishedRun(out, request)

    def claim() -> dict[str, Any]:
        nonlocal run
        state, run = _claim(out, request)
        return {"state": state, "request": run.request.to_dict()}

    answer = team.first_does(claim)
    if answer["state"] == "complete":
        return None
    if not team.is_first:
        # Of the first attempt, if there was one: it may have had other processes.
        run = UnfinishedRun(out, FitRequest.from_dict(answer["request"], run.path))
    if answer["state"] == "found":
        run.was_left_behind = True
        listener.note(f"going on with {run.path}")
    return run


def _claim(out: Path, request: FitRequest) -> tuple[str, UnfinishedRun]:
    """Return "begun", or after a restart by the launcher "found" or "complete", and the run."""
    run = UnfinishedRun(out, request)
    if was_restarted():
        earlier = UnfinishedRun.find(out)
        if run.is_complete:
            if earlier is not None:
                earlier.remove()
            return "complete", run
        if earlier is not None and _is_same(earlier.request, request):
            return "found", earlier
        if earlier is not None:
            earlier.release()
    check_destination(out, request.overwrite)
    check_unfinished(out, request.overwrite)
    _check_request(request)
    if request.tensorboard is not None:
        check_new_log(near(request.tensorboard), request.overwrite)
    return "begun", UnfinishedRun.begin(out, request, request.overwrite)


def _is_same(one: FitRequest, other: FitRequest) -> bool:
    """Whether two requests are of one launch; a launch without a name is known by its content."""
    return one.identity == other.identity or replace(one, identity="") == replace(
        other, identity=""
    )


def take_up(
    out: Path, team: Team, listener: RunListener, has_arrays: bool = False
) -> UnfinishedRun | None:
    """Open an interrupted run and check that it can be resumed; None if it is complete."""
    found: UnfinishedRun | None = None

    def look() -> dict[str, Any] | None:
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
        try:
            _check_resumable(found, has_arrays)
        except BaseException:
            found.release()
            raise
        return found.request.to_dict()

    request = team.first_does(look)
    if request is None:
        return None
    if found is None:
        found = UnfinishedRun(out, FitRequest.from_dict(request, unfinished_path(out)))
        found.was_left_behind = True
    listener.note(f"going on with {found.path}")
    return found


def _check_resumable(run: UnfinishedRun, has_arrays: bool) -> None:
    request = run.request
    if (request.source == ARRAY) != has_arrays:
        raise InputError(
            f"{run.path}: begun from files; leave out source and target"
            if has_arrays
            else f"{run.path}: begun from arrays, which it does not hold; go on in Python with "
            "opensetda.runs.resume(out, source=..., target=...)"
        )
    _check_request(request)
    if run.out.exists() and not request.overwrite:
        raise InputError(
            f"{run.out}: was made since the run began, and is not replaced; move it away"
        )
    check_destination(run.out, overwrite=True)


def complete_path(out: Path) -> Path:
    """Return the place of a run, if the folder of its unfinished part was given."""
    return out.with_name(out.name.removesuffix(SUFFIX)) if out.name.endswith(SUFFIX) else out


def _check_request(request: FitRequest) -> None:
    """Find wrong settings before any data is read."""
    if request.tensorboard is not None:
        check_log(Path(request.tensorboard))
    if request.corrections is not None:
        check_corrections(near(request.corrections))
    if request.images.finetune and not method_class(request.method).trains_backbone:
        raise InputError(f"--finetune: the method {request.method} has no network; leave it out")
    build_method(**request.method_arguments())
