"""Carry out what `osda fit` was asked for; `osda resume` does so with what was left behind."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensetda.cli import console
from opensetda.errors import InputError, RunPausedError

if TYPE_CHECKING:
    from opensetda.base import OpenSetClassifier
    from opensetda.runs.fit_data import FitData
    from opensetda.runs.request import FitRequest
    from opensetda.runs.unfinished import UnfinishedRun


def check_request(request: FitRequest) -> None:
    """Find wrong settings before big files are read."""
    from opensetda.runs.methods import build_method, trains_backbone

    if request.images.finetune and not trains_backbone(request.method):
        raise InputError(f"--finetune: the method {request.method} has no network; leave it out")
    build_method(
        request.method,
        openness=request.openness,
        preset=request.preset,
        changes=request.changes,
        seed=request.seed,
        unknown_label=request.unknown_label,
    )


def carry_out(run: UnfinishedRun) -> None:
    """Load the data, train, write the run folder, show the result.

    Whatever goes wrong, the unfinished run stays if there is anything in it, or if it was
    there before: who resumes with a disk missing must not lose what was learned.
    """
    try:
        _carry_out(run)
    except BaseException as error:
        if not run.is_worth_keeping:
            run.undo()
            raise
        run.release()
        advice = f"what was learned is kept, go on with 'osda resume {run.out}'"
        if isinstance(error, KeyboardInterrupt):
            raise RunPausedError(advice) from error
        if not (run.was_left_behind and isinstance(error, InputError)):
            console.note(f"{advice[0].upper()}{advice[1:]}")
        raise
    run.remove()


def _carry_out(run: UnfinishedRun) -> None:
    from opensetda import __version__
    from opensetda.files import new_folder
    from opensetda.runs.fitting import fit_domains
    from opensetda.runs.methods import full_settings
    from opensetda.runs.writing import write_run

    request = run.request
    started = time.perf_counter()
    data = _load(request)
    settings = full_settings(request.method, request.preset, request.changes)
    run.check_inputs({**data.inputs, "settings": {"release": __version__, **settings}})
    data_seconds = time.perf_counter() - started
    for line in data.notes:
        console.note(line)
    for warning in data.warnings:
        console.warn(warning)
    if data.broken:
        console.warn(f"{console.counted(len(data.broken), 'image')} cannot be read: left out")
    console.note(data.summary)
    with console.progress_listener(request.method) as listener:
        classifier, own = _build(request, data, run, listener)
        seconds = fit_domains(classifier, data.source, data.labels, data.target)

    from opensetda.report.curves import draw_curves

    title = f"{request.method} on {Path(request.target).name}"
    kept = console.kept_step(classifier)
    curves = draw_curves(classifier.history_, title=title, kept_step=kept)
    record = _record(request, data, settings, seconds, data_seconds)
    with new_folder(run.out) as aside:
        write_run(aside, classifier, record, data.ids, curves, data.broken, own)
    _show_result(classifier, run.out, data, seconds)


def _load(request: FitRequest) -> FitData:
    from opensetda.runs.fit_data import is_image_request, load_images, load_tables

    if not is_image_request(request):
        return load_tables(request)
    from opensetda.cli.counting import counting_progress

    with counting_progress("features") as progress:
        return load_images(request, progress)


def _build(
    request: FitRequest, data: FitData, run: UnfinishedRun, listener: Any
) -> tuple[OpenSetClassifier, Any]:
    """Return the classifier, and the backbone that learns with it, if one does."""
    from opensetda.runs.methods import build_method

    build = partial(
        build_method,
        request.method,
        openness=request.openness,
        preset=request.preset,
        changes=request.changes,
        seed=request.seed,
        unknown_label=request.unknown_label,
        progress=listener,
        checkpoints=run.checkpoints(),
    )
    if not request.images.finetune or data.recipe is None:
        return build(), None
    from opensetda.backbones.finetuning import FineTunedImages
    from opensetda.backbones.memory import keep_freed_memory
    from opensetda.backbones.model import load_backbone

    keep_freed_memory()
    backbone = load_backbone(data.recipe)
    return build(images=FineTunedImages(backbone, data.image_paths)), backbone


def _record(
    request: FitRequest,
    data: FitData,
    settings: dict[str, Any],
    seconds: float,
    data_seconds: float,
) -> Any:
    from opensetda.runs.writing import RunRecord

    backbone = None
    if data.recipe is not None:
        backbone = {**data.recipe.to_dict(), "finetuned": request.images.finetune}
    return RunRecord(
        method=request.method,
        openness=request.openness,
        unknown_label=request.unknown_label,
        preset=request.preset,
        settings=settings,
        seed=request.seed,
        inputs=data.inputs,
        columns=data.columns,
        feature_names=data.feature_names,
        has_ids=data.ids is not None,
        command=request.command,
        seconds=seconds,
        data_seconds=data_seconds,
        backbone=backbone,
        identity=request.identity,
    )


def _show_result(classifier: OpenSetClassifier, out: Path, data: FitData, seconds: float) -> None:
    from opensetda.runs.folder import BROKEN

    if len(classifier.history_) > 1:
        kept = console.kept_step(classifier)
        console.show(console.step_table(classifier.history_, kept=kept))
    labels = classifier.transduction_.tolist()
    console.show(console.label_counts(labels, classifier.unknown_label))
    console.show_estimates(classifier)
    target = Path(data.inputs["target"]["path"]).name
    many = console.counted(len(labels), data.noun)
    console.say(f"Labelled {many} of {target} in {seconds:.1f} s.")
    if data.broken:
        many = console.counted(len(data.broken), "broken image")
        console.say(f"Left out {many}: {out / BROKEN}")
    later = "FILE" if data.recipe is None else "PATHS"
    console.say(f"  labels   {out / 'predictions.csv'}")
    console.say(f"  curves   {out / 'curves.png'}")
    console.say(f"  later    osda predict {out} {later} --out labels.csv")
    console.say(f"  how good osda evaluate {out} --labels TRUTH")
