"""The use cases fit and resume: from two domains to a run folder."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opensetda.errors import (
    InputError,
    LostProcessError,
    LostRunError,
    OtherProcessError,
    RunPausedError,
)
from opensetda.openness.tracker import check_openness
from opensetda.runs.domain_arrays import DomainArrays
from opensetda.runs.fitting import Training, train
from opensetda.runs.folder import RunFolder, check_destination
from opensetda.runs.listening import RunListener
from opensetda.runs.methods import method_class
from opensetda.runs.mistaken import check_request
from opensetda.runs.request import (
    ARRAY,
    SAMPLE,
    SMALLEST_SAMPLE,
    FitRequest,
    ImageOptions,
    TableOptions,
    trained_part,
)
from opensetda.runs.tensorboard import check_new_log
from opensetda.runs.unfinished import SUFFIX, UnfinishedRun, check_unfinished, unfinished_path
from opensetda.system.files import in_shell, near, plain
from opensetda.system.launch import (
    default_cache_folder,
    launch_identity,
    lost_process,
    was_restarted,
)
from opensetda.system.team import Team, this_team

# The preset of a method whose backbone is trained, where it has one.
FINETUNE = "finetune"
_LARGEST_SEED = 2**32 - 1


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
        None if there was nothing left to do, and in all processes of a team but the first.
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
    method: str = "pgl",
    openness: float | str = "auto",
    preset: str = "default",
    settings: Mapping[str, Any] | None = None,
    scaling: str | None = None,
    seed: int = 0,
    unknown_label: str = "unknown",
    sample: int = SAMPLE,
    finetune: bool | str | None = None,
    corrections: str | Path | None = None,
    tables: TableOptions | None = None,
    images: ImageOptions | None = None,
    checkpoint_every: float = 60.0,
    tensorboard: str | Path | None = None,
    overwrite: bool = False,
    report: bool = False,
    command: Sequence[str] = (),
    listener: RunListener | None = None,
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
    method : str
        "pgl", or another key of `opensetda.runs.methods.METHODS`, perhaps with a rejector:
        "dann+osvm".
    openness : float or "auto"
        Share of unknowns in the target, in [0, 1), or "auto": that of the audit in
        `corrections`, if there is one, or an estimate.
    preset : str
        Preset of the settings of PGL.
    settings : mapping, optional
        Settings to change, by dotted name: ``{"steps": 5}``.
    scaling : {"auto", "none", "standard", "ranks"}, optional
        How columns are scaled within each domain; by default "auto" in PGL, which chooses
        by the labelled source, and "none" in the other methods.
    seed : int
        Seed of all random draws, from 0 to 2**32 - 1.
    unknown_label : str
        The label of unknowns.
    sample : int
        Learn from at most this many targets, drawn at random; all are labelled.
    finetune : {"last", "all"} or bool, optional
        Train the backbone, too; images only. "last": its last stages, from stored activations;
        "all": all of it; True: "last" on a CPU, "all" on a GPU.
    corrections : str or Path, optional
        Manually corrected labels of targets, and those that were audited: the CSV file that
        `osda review` writes.
    tables, images : TableOptions and ImageOptions, optional
        Names of columns, and how images become features. By default the bundled backbone,
        and a cache of features in the user's cache folder.
    checkpoint_every : float
        Checkpoint interval in seconds.
    tensorboard : str or Path, optional
        Folder to write event files for TensorBoard to.
    overwrite : bool
        Replace an existing run, once this one is complete.
    report : bool
        Whether `osda resume`, if it has to complete this run, writes the report. `fit` itself
        writes none: see `opensetda.report.write_report`.
    command : sequence of str
        The command line, for the record.
    listener : RunListener, optional
        Receives notes, warnings and progress.

    Raises
    ------
    InputError
        Wrong input or settings; nothing is left behind.
    RunPausedError
        Ctrl-C after the first checkpoint; `resume` goes on.
    """
    listener = listener or RunListener()
    out, place = Path(out), str(Path(out).absolute())
    check_openness(openness)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _LARGEST_SEED:
        raise InputError(f"seed={seed!r}: give a whole number from 0 to {_LARGEST_SEED:,}")
    if not isinstance(unknown_label, str) or not unknown_label.strip():
        raise InputError(f"unknown label {unknown_label!r}: give a word that can be seen")
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < SMALLEST_SAMPLE:
        raise InputError(f"sample={sample!r}: give a whole number from {SMALLEST_SAMPLE:,} on")
    if not isinstance(checkpoint_every, int | float) or not 0 <= checkpoint_every < math.inf:
        raise InputError(f"checkpoint_every={checkpoint_every!r}: give seconds, 0 or more")
    kinds = {isinstance(domain, str | Path) for domain in (source, target)}
    if len(kinds) > 1:
        raise InputError("source and target: one is a path, one an array; give two of one kind")
    arrays = None
    if kinds == {False}:
        if images is not None or finetune:
            raise InputError("images, finetune: for files; source and target are arrays")
        arrays = DomainArrays.of(source, labels, target, tables)
    elif labels is not None:
        raise InputError("labels: for a source that is an array; a file has its own")
    if images is None:
        images = ImageOptions(cache=str(default_cache_folder().absolute()))
    team = this_team()
    images = replace(images, finetune=trained_part(images.finetune or finetune))
    if images.finetune and preset == "default" and FINETUNE in method_class(method).presets:
        preset = FINETUNE

    def absolute(path: str | Path | None) -> str | None:
        return None if path is None else str(Path(path).absolute())

    request = FitRequest(
        identity=launch_identity(place) or secrets.token_hex(16),
        source=ARRAY if arrays is not None else str(Path(source).absolute()),
        target=ARRAY if arrays is not None else str(Path(target).absolute()),
        openness=openness,
        method=method,
        preset=preset,
        changes=plain(dict(settings or {})),
        seed=seed,
        unknown_label=unknown_label,
        scaling=scaling,
        tables=tables or TableOptions(),
        images=images,
        checkpoint_seconds=checkpoint_every,
        corrections=absolute(corrections),
        sample=sample,
        report=report,
        tensorboard=absolute(tensorboard),
        overwrite=overwrite,
        command=tuple(command),
    )
    run = _begin(out, request, team, listener)
    return FittedRun(out, request) if run is None else _carry_out(run, arrays, team, listener)


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
    listener, team = listener or RunListener(), this_team()
    out = Path(out)
    if out.name.endswith(SUFFIX):
        out = out.with_name(out.name.removesuffix(SUFFIX))
    has_arrays = source is not None or target is not None
    run = _take_up(out, team, listener, has_arrays)
    if run is None:
        return FittedRun(out)
    arrays = None
    if has_arrays:
        try:
            arrays = DomainArrays.of(source, labels, target, run.request.tables)
        except InputError:
            run.release()
            raise
    return _carry_out(run, arrays, team, listener)


def _begin(
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
    earlier = UnfinishedRun.find(out) if was_restarted() else None
    if was_restarted() and run.is_complete:
        if earlier is not None:
            earlier.remove()
        return "complete", run
    if earlier is not None:
        # A launch without a name is known by its content.
        is_same = replace(earlier.request, identity="") == replace(request, identity="")
        if is_same or earlier.request.identity == request.identity:
            return "found", earlier
        earlier.release()
    check_destination(out, request.overwrite)
    check_unfinished(out, request.overwrite)
    check_request(request, out)
    if request.tensorboard is not None:
        check_new_log(near(request.tensorboard), request.overwrite)
    return "begun", UnfinishedRun.begin(out, request, request.overwrite)


def _take_up(
    out: Path, team: Team, listener: RunListener, has_arrays: bool
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
    check_request(request, run.out)
    if run.out.exists() and not request.overwrite:
        raise InputError(
            f"{run.out}: was made since the run began, and is not replaced; move it away"
        )
    check_destination(run.out, overwrite=True)


def _carry_out(
    run: UnfinishedRun, arrays: DomainArrays | None, team: Team, listener: RunListener
) -> FittedRun:
    """Load the data, train, write the run folder.

    Whatever goes wrong, an unfinished run stays if it holds a checkpoint or was there before:
    a `resume` with a disk missing must not lose the training.
    """
    try:
        training = train(run, arrays, team, listener)
    except BaseException as error:
        # Before the folder is removed: processes that miss it fail as a consequence of this.
        if not isinstance(error, OtherProcessError):
            team.may_speak()
        worth_keeping = run.is_worth_keeping
        if team.is_first:
            run.release() if worth_keeping else run.undo()
        kept = f"the training so far is kept, go on with 'osda resume {in_shell(run.out)}'"
        if team.size > 1 and isinstance(error, LostProcessError | SystemExit):
            advice = kept if worth_keeping else "there was no checkpoint yet, start anew"
            raise LostRunError(f"{lost_process(error)}; {advice}") from error
        if not worth_keeping:
            raise
        if isinstance(error, KeyboardInterrupt):
            raise RunPausedError(kept) from error
        if not (run.was_left_behind and isinstance(error, InputError)):
            listener.note(f"{kept[0].upper()}{kept[1:]}")
        raise
    if training is not None:
        run.remove()
        for warning in training.classifier.openness_report_.warnings:
            listener.warn(warning)
    return FittedRun(run.out, run.request, run.was_left_behind, training)
