"""The use case fit: from two domains to a run folder."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensetda.errors import InputError, RunPausedError
from opensetda.progress import RunListener, worded
from opensetda.runs.folder import RunFolder, check_destination
from opensetda.runs.options import ARRAY, FitRequest, ImageOptions, absolute
from opensetda.runs.unfinished import UnfinishedRun
from opensetda.system import default_cache_folder, first_process_first, is_first_process
from opensetda.system.files import in_shell
from opensetda.usecases.fit_request import check_request, make_request, trained_part
from opensetda.usecases.read_domains import FitData, domain_tables, load

if TYPE_CHECKING:
    from opensetda.usecases.train_run import Training


@dataclass(frozen=True)
class FittedRun:
    """A complete run; `request` and `training` are None if `resume` found it complete."""

    path: Path
    request: FitRequest | None = None
    resumed: bool = False
    training: Training | None = None

    @property
    def folder(self) -> RunFolder:
        """The run folder, opened for reading: predictions, history, estimates, model."""
        return RunFolder.open(self.path)


@worded
def fit(
    source: Any,
    target: Any,
    out: str | Path,
    *,
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
    images : ImageOptions, optional
        How images become features, and what of the backbone is trained. By default the bundled
        backbone, and a cache of features in the user's cache folder.
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
    arrays = None
    if isinstance(source, str | Path) != isinstance(target, str | Path):
        raise InputError("source and target: one is a path, one an array; give two of one kind")
    if not isinstance(source, str | Path):
        if images is not None:
            raise InputError("images: for files; source and target are arrays")
        arrays = domain_tables(source, target, options.get("tables"))
    images = images or ImageOptions(cache=absolute(default_cache_folder()))
    request = make_request(
        options,
        identity=secrets.token_hex(16),
        source=absolute(source) if arrays is None else ARRAY,
        target=absolute(target) if arrays is None else ARRAY,
        images=asdict(images) | {"finetune": trained_part(images)},
        report=report,
        command=tuple(command),
    )
    return start(request, Path(out), arrays, listener)


def start(request: FitRequest, out: Path, arrays: Any, listener: RunListener | None) -> FittedRun:
    """Check a request, and carry it out; `arrays` is what no file holds."""
    if is_first_process():
        check_destination(out, request.overwrite)
    check_request(request, out)
    run = UnfinishedRun.begin(workplace(out), request, request.overwrite)
    try:
        if is_first_process():
            # Under the lock: another fit may have ended since the first look.
            check_destination(out, request.overwrite)
    except BaseException:
        run.remove()
        raise
    return carry_out(run, arrays, listener or RunListener())


def workplace(out: Path) -> Path:
    """Return `out`; other processes of ``accelerate launch`` only help to train."""
    return out if is_first_process() else Path(tempfile.mkdtemp()) / out.name


def carry_out(run: UnfinishedRun, arrays: Any, listener: RunListener) -> FittedRun:
    """Train; whatever goes wrong, a run that holds a checkpoint or was there before stays."""
    if not is_first_process():
        try:
            _read_and_train(run, arrays, listener)
        finally:
            shutil.rmtree(run.out.parent, ignore_errors=True)
        raise SystemExit
    try:
        training = _read_and_train(run, arrays, listener)
    except BaseException as error:
        if not run.is_worth_keeping:
            run.remove()
            raise
        run.release()
        kept = f"the training so far is kept, go on with 'osda resume {in_shell(run.out)}'"
        if isinstance(error, KeyboardInterrupt):
            raise RunPausedError(kept) from error
        listener.note(f"{kept[0].upper()}{kept[1:]}")
        raise
    run.remove()
    listener.finished(run.out)
    for warning in training.fitted.warnings:
        listener.warn(warning)
    return FittedRun(run.out, run.request, run.was_left_behind, training)


def _read_and_train(run: UnfinishedRun, arrays: Any, listener: RunListener) -> Training:
    """Read both domains, and learn; tables are read before anything heavy is imported."""
    started = time.perf_counter()
    run.clear_scratch()
    listener.stage("reading")
    with first_process_first():
        # The others find features in the cache.
        data = _load(run, arrays, listener)
    from opensetda.usecases.train_run import train

    return train(run, data, started, listener)


def _load(run: UnfinishedRun, arrays: Any, listener: RunListener) -> FitData:
    """Read both domains; of a run that is adapted, what it kept of its source."""
    if not run.request.adapts:
        return load(run.request, listener, run.scratch, arrays)
    from opensetda.usecases.read_run import load_kept

    return load_kept(run.request, listener, run.scratch, arrays)
