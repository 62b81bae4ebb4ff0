"""The use case resume: a run that was interrupted goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opensetda.errors import InputError
from opensetda.progress import RunListener, worded
from opensetda.runs.folder import RunFolder, check_destination
from opensetda.runs.options import ARRAY
from opensetda.runs.unfinished import SUFFIX, UnfinishedRun, unfinished_path
from opensetda.system import is_first_process
from opensetda.usecases.fit_request import check_request
from opensetda.usecases.fit_run import FittedRun, carry_out, workplace
from opensetda.usecases.read_domains import domain_tables


@worded
def resume(
    out: str | Path,
    *,
    source: Any = None,
    target: Any = None,
    listener: RunListener | None = None,
) -> FittedRun:
    """Continue a run that was interrupted; on the CPU the result is the same to the bit.

    Parameters
    ----------
    out : str or Path
        The `out` of `fit`.
    source, target : optional
        The arrays that `fit` was given, if it was given arrays; they must be the same.
    listener : RunListener, optional
        Receives notes, warnings and progress.
    """
    listener = listener or RunListener()
    out = Path(str(out).removesuffix(SUFFIX))
    if out.is_symlink() and not unfinished_path(out).exists():
        # A name for a run that lies elsewhere, and so does what is left of it.
        out = out.resolve()
    if not is_first_process():
        request = UnfinishedRun.request_of(out)
        if request is None:
            raise SystemExit
        return carry_out(UnfinishedRun.begin(workplace(out), request, False), None, listener)
    run = UnfinishedRun.find(out)
    if run is None or run.is_complete:
        RunFolder.open(out)
        if run is not None:
            run.remove()
        return FittedRun(out)
    request = run.request
    arrays = None
    try:
        if ARRAY in (request.source, request.target):
            if (target if request.adapts else source) is None:
                advice = "go on in Python, opensetda.usecases.resume(out, source=..., target=...)"
                raise InputError(f"{run.path}: begun from arrays, which it does not hold; {advice}")
            arrays = target
            if not request.adapts:
                arrays = domain_tables(source, target, request.tables)
        elif source is not None:
            raise InputError(f"{run.path}: begun from files; leave out source and target")
        check_request(request, run.out)
        check_destination(run.out, request.overwrite)
    except BaseException:
        run.release()
        raise
    listener.note(f"continuing {run.path}")
    return carry_out(run, arrays, listener)
