"""The use cases fit and resume: from two domains to a run folder."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opensetda.errors import InputError, RunPausedError, choice
from opensetda.runs.domain_arrays import DomainArrays
from opensetda.runs.fitting import Training, check_request, train
from opensetda.runs.folder import RunFolder, check_destination
from opensetda.runs.listening import RunListener
from opensetda.runs.options import FitOptions, ImageOptions, absolute, declared
from opensetda.runs.request import ARRAY, FitRequest, trained_part
from opensetda.runs.tensorboard import check_new_log
from opensetda.runs.unfinished import SUFFIX, UnfinishedRun, check_unfinished, unfinished_path
from opensetda.system import default_cache_folder
from opensetda.system.files import in_shell, near, plain


@dataclass(frozen=True)
class FittedRun:
    """A complete run.

    Attributes
    ----------
    path, request : Path, and FitRequest or None
        The run folder, and what was asked for; None if `resume` found the run complete.
    resumed : bool
        Whether the run was interrupted before.
    training : Training or None
        None if there was nothing left to do.
    """

    path: Path
    request: FitRequest | None = None
    resumed: bool = False
    training: Training | None = None

    @property
    def folder(self) -> RunFolder:
        """The run folder, opened for reading: predictions, history, estimates, model."""
        return RunFolder.open(self.path)


def fit(
    source: Any,
    target: Any,
    out: str | Path,
    *,
    labels: Any = None,
    finetune: bool | str | None = None,
    images: ImageOptions | None = None,
    report: bool = False,
    command: Sequence[str] = (),
    listener: RunListener | None = None,
    **options: Any,
) -> FittedRun:
    """Learn from a labelled source and an unlabelled target, label the target, write a run folder.

    Parameters
    ----------
    source : str, Path, DataFrame, (X, y) or array of shape (n_s, d)
        Images (a folder with one folder per class, a list, a manifest, tar shards), a feature
        table, a DataFrame (of pandas, polars, ...), or features and labels as arrays.
    target : str, Path, DataFrame or array of shape (n_t, d)
        Samples of the same kind; labels in it are not read.
    out : str or Path
        The run folder to make.
    labels : array of shape (n_s,), optional
        Labels of the source, if `source` is features alone.
    finetune : {"last", "all"} or bool, optional
        Train the backbone, too, as `images.finetune` says; True is "last" on a CPU, "all" on a GPU.
    images : ImageOptions, optional
        How images become features. By default the bundled backbone, and a cache of features in
        the user's cache folder.
    report : bool
        Whether `osda resume`, if it has to complete this run, writes the report. `fit` itself
        writes none: see `opensetda.report.write_report`.
    command : sequence of str
        The command line, for the record.
    listener : RunListener, optional
        Receives notes, warnings and progress.
    **options
        The options of `osda fit`, which are the fields of `FitOptions`: method, openness, preset,
        settings (a dict, ``{"steps": 5, "finetune.flip": False}``), scaling, seed, sample,
        corrections, tensorboard, unknown_label, overwrite, and tables (a `TableOptions`).

    Raises
    ------
    InputError
        Wrong input or settings; nothing is left behind.
    RunPausedError
        Ctrl-C after the first checkpoint; `resume` goes on.
    """
    listener = listener or RunListener()
    out = Path(out)
    given = _checked(options)
    arrays = None
    kinds = {isinstance(domain, str | Path) for domain in (source, target)}
    if len(kinds) > 1:
        raise InputError("source and target: one is a path, one an array; give two of one kind")
    if kinds == {False}:
        if images is not None or finetune:
            raise InputError("images, finetune: for files; source and target are arrays")
        arrays = DomainArrays.of(source, labels, target, options.get("tables"))
    elif labels is not None:
        raise InputError("labels: for a source that is an array; a file has its own")
    images = images or ImageOptions(cache=absolute(default_cache_folder()))
    request = FitRequest(
        identity=secrets.token_hex(16),
        source=ARRAY if arrays is not None else absolute(source),
        target=ARRAY if arrays is not None else absolute(target),
        **given,
        images=replace(images, finetune=trained_part(images.finetune or finetune)),
        report=report,
        command=tuple(command),
    )
    check_destination(out, request.overwrite)
    check_unfinished(out, request.overwrite)
    check_request(request, out)
    if request.tensorboard is not None:
        check_new_log(near(request.tensorboard), request.overwrite)
    return _carry_out(UnfinishedRun.begin(out, request, request.overwrite), arrays, listener)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as a request holds them; None is the default."""
    known = declared(FitOptions)
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name not in known:
            raise InputError(f"fit: no option {name!r}; {choice(name, known)}")
        option = known[name][1]
        if option is None:
            continue
        if option.low is not None:
            high = math.inf if option.high is None else option.high
            if type(value) is not int or not option.low <= value <= high:
                end = "on" if option.high is None else f"to {option.high:,}"
                raise InputError(f"{name}={value!r}: give a whole number from {option.low:,} {end}")
        elif option.parse is absolute:
            given[name] = absolute(value)
    unknown = given.get("unknown_label", "unknown")
    if not isinstance(unknown, str) or not unknown.strip():
        raise InputError(f"unknown label {unknown!r}: give a word that can be seen")
    return {**given, "settings": plain(dict(given.get("settings", {})))}


def resume(
    out: str | Path,
    *,
    source: Any = None,
    labels: Any = None,
    target: Any = None,
    listener: RunListener | None = None,
) -> FittedRun:
    """Continue a run that was interrupted; on the CPU the result is the same to the bit.

    Parameters
    ----------
    out : str or Path
        The `out` of `fit`.
    source, labels, target : optional
        The arrays that `fit` was given, if it was given arrays; they must be the same.
    listener : RunListener, optional
        Receives notes, warnings and progress.
    """
    listener, out = listener or RunListener(), Path(out)
    if out.name.endswith(SUFFIX):
        out = out.with_name(out.name.removesuffix(SUFFIX))
    has_arrays = source is not None or target is not None
    run = UnfinishedRun.find(out)
    if run is None and not out.exists():
        raise InputError(
            f"{out}: no such run, nor {unfinished_path(out).name}; make one with 'osda fit'"
        )
    if run is None or run.is_complete:
        RunFolder.open(out)
        if run is not None:
            run.remove()
        return FittedRun(out)
    arrays = None
    try:
        _check_resumable(run, has_arrays)
        if has_arrays:
            arrays = DomainArrays.of(source, labels, target, run.request.tables)
    except BaseException:
        run.release()
        raise
    listener.note(f"going on with {run.path}")
    return _carry_out(run, arrays, listener)


def _check_resumable(run: UnfinishedRun, has_arrays: bool) -> None:
    request = run.request
    if (request.source == ARRAY) != has_arrays:
        raise InputError(
            f"{run.path}: begun from files; leave out source and target"
            if has_arrays
            else f"{run.path}: begun from arrays, which it does not hold; go on in Python with "
            "opensetda.runs.resume(out, source=..., target=...)"
        )
    check_request(request, run.out)
    if run.out.exists() and not request.overwrite:
        raise InputError(
            f"{run.out}: was made since the run began, and is not replaced; move it away"
        )
    check_destination(run.out, overwrite=True)


def _carry_out(run: UnfinishedRun, arrays: DomainArrays | None, listener: RunListener) -> FittedRun:
    """Load the data, fit, write the run folder.

    Whatever goes wrong, an unfinished run stays if it holds a checkpoint or was there before:
    a `resume` with a disk missing must not lose the training.
    """
    try:
        training = train(run, arrays, listener)
    except BaseException as error:
        if not run.is_worth_keeping:
            run.remove()
            raise
        run.release()
        kept = f"the training so far is kept, go on with 'osda resume {in_shell(run.out)}'"
        if isinstance(error, KeyboardInterrupt):
            raise RunPausedError(kept) from error
        if not (run.was_left_behind and isinstance(error, InputError)):
            listener.note(f"{kept[0].upper()}{kept[1:]}")
        raise
    run.remove()
    for warning in training.classifier.openness_report_.warnings:
        listener.warn(warning)
    return FittedRun(run.out, run.request, run.was_left_behind, training)
