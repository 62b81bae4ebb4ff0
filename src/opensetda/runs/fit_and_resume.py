"""The use cases fit and resume: from two domains to a run folder."""

from __future__ import annotations

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
from opensetda.runs import starting
from opensetda.runs.arrays import DomainArrays, are_paths
from opensetda.runs.fitting import Training, train
from opensetda.runs.folder import RunFolder
from opensetda.runs.listening import RunListener
from opensetda.runs.methods import method_class
from opensetda.runs.request import ARRAY, SAMPLE, FitRequest, ImageOptions, TableOptions
from opensetda.runs.unfinished import UnfinishedRun
from opensetda.system.files import in_shell, plain
from opensetda.system.launch import launch_identity, lost_process
from opensetda.system.team import Team, this_team

# The preset of a method whose backbone is trained, where it has one.
FINETUNE = "finetune"
_LARGEST_SEED = 2**32 - 1


@dataclass(frozen=True)
class FittedRun:
    """A complete run.

    Attributes
    ----------
    path : Path
        The run folder.
    request : FitRequest or None
        What was asked for; None if `resume` found the run complete.
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
    seed: int = 0,
    unknown_label: str = "unknown",
    sample: int = SAMPLE,
    finetune: bool = False,
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
    source : str, Path, (X, y) or array of shape (n_s, d)
        Images (a folder with one folder per class, a list, a manifest, tar shards), a feature
        table, or features and labels as arrays.
    target : str, Path or array of shape (n_t, d)
        Samples of the same kind; labels in it are not read.
    out : str or Path
        The run folder to make.
    labels : array of shape (n_s,), optional
        Labels of the source, if `source` is features alone.
    method : str
        "pgl", or another key of `opensetda.runs.methods.METHODS`, perhaps with a rejector:
        "dann+osvm".
    openness : float or "auto"
        Share of unknowns in the target, in [0, 1), or "auto" to estimate it.
    preset : str
        Preset of the settings of PGL.
    settings : mapping, optional
        Settings to change, by dotted name: ``{"steps": 5}``.
    seed : int
        Seed of all random draws, from 0 to 2**32 - 1.
    unknown_label : str
        The label of unknowns.
    sample : int
        Learn from at most this many targets, drawn at random; all are labelled.
    finetune : bool
        Train the backbone, too; images only.
    corrections : str or Path, optional
        Manually corrected labels of targets: the CSV file that `osda review` writes.
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
    if not unknown_label.strip():
        raise InputError(f"unknown label {unknown_label!r}: give a word that can be seen")
    arrays = None
    if not are_paths(source, target):
        if tables is not None or images is not None or finetune:
            raise InputError("tables, images, finetune: for files; source and target are arrays")
        arrays = DomainArrays.of(source, labels, target)
    elif labels is not None:
        raise InputError("labels: for a source that is an array; a file has its own")
    if images is None:
        from opensetda.backbones.cache import default_cache_folder

        images = ImageOptions(cache=str(default_cache_folder().absolute()))
    images = replace(images, finetune=images.finetune or finetune)
    team = this_team()
    if images.finetune and preset == "default" and FINETUNE in method_class(method).presets:
        preset = FINETUNE
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
        tables=tables or TableOptions(),
        images=images,
        checkpoint_seconds=checkpoint_every,
        corrections=None if corrections is None else str(Path(corrections).absolute()),
        sample=sample,
        report=report,
        tensorboard=None if tensorboard is None else str(Path(tensorboard).absolute()),
        overwrite=overwrite,
        command=tuple(command),
    )
    run = starting.begin(out, request, team, listener)
    return FittedRun(out, request) if run is None else _carry_out(run, arrays, team, listener)


def resume(
    out: str | Path,
    *,
    source: Any = None,
    labels: Any = None,
    target: Any = None,
    listener: RunListener | None = None,
) -> FittedRun:
    """Go on with a run that was interrupted; on the CPU the result is the same to the bit.

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
    out = starting.complete_path(Path(out))
    arrays = None
    if source is not None or target is not None:
        arrays = DomainArrays.of(source, labels, target)
    run = starting.take_up(out, team, listener, arrays is not None)
    return FittedRun(out) if run is None else _carry_out(run, arrays, team, listener)


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
