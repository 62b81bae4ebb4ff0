"""Carry out what `osda fit` was asked for; `osda resume` does so with what was left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensetda.cli import console
from opensetda.errors import InputError, RunPausedError
from opensetda.files import in_shell, near
from opensetda.progress import ProgressEvent, ProgressListener

if TYPE_CHECKING:
    from opensetda.base import OpenSetClassifier
    from opensetda.runs.corrections import Corrections
    from opensetda.runs.fit_data import FitData
    from opensetda.runs.request import FitRequest
    from opensetda.runs.unfinished import UnfinishedRun
    from opensetda.runs.writing import ShownSamples


def check_request(request: FitRequest) -> None:
    """Find wrong settings before big files are read."""
    from opensetda.runs.methods import build_method, trains_backbone
    from opensetda.runs.tensorboard import check_log

    if request.tensorboard is not None:
        check_log(Path(request.tensorboard))
    if request.corrections is not None:
        from opensetda.runs.corrections import check_corrections

        check_corrections(near(request.corrections))
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
        outcome = _carry_out(run)
    except BaseException as error:
        if not run.is_worth_keeping:
            run.undo()
            raise
        run.release()
        advice = f"what was learned is kept, go on with 'osda resume {in_shell(run.out)}'"
        if isinstance(error, KeyboardInterrupt):
            raise RunPausedError(advice) from error
        if not (run.was_left_behind and isinstance(error, InputError)):
            console.note(f"{advice[0].upper()}{advice[1:]}")
        raise
    run.remove()
    if run.request.report:
        from opensetda.cli.reporting import report_at_end

        outcome.report = report_at_end(run.out)
    outcome.show()


def _carry_out(run: UnfinishedRun) -> _Outcome:
    from opensetda import __version__
    from opensetda.files import new_folder
    from opensetda.runs.fitting import fit_domains
    from opensetda.runs.folder import RunFolder
    from opensetda.runs.methods import full_settings
    from opensetda.runs.writing import write_run

    request = run.request
    started = time.perf_counter()
    data, corrections = _correct(request, _load(request))
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
    with _listener(request, goes_on=run.was_left_behind) as listener:
        classifier, own = _build(request, data, run, listener)
        seconds = fit_domains(classifier, data.source, data.labels, data.target)

    from opensetda.report.curves import draw_curves

    title = f"{request.method} on {Path(request.target).name}"
    kept = console.kept_step(classifier)
    curves = draw_curves(classifier.history_, title=title, kept_step=kept)
    record = _record(request, data, settings, seconds, data_seconds)
    shown = _shown(classifier, data)
    with new_folder(run.out) as aside:
        write_run(aside, classifier, record, data.ids, curves, data.broken, own, shown, corrections)
    labels = RunFolder.open(run.out).labels().tolist()
    return _Outcome(run, classifier, data, labels, data_seconds, seconds)


@dataclass
class _Outcome:
    """A complete run, to be shown."""

    run: UnfinishedRun
    classifier: OpenSetClassifier
    data: FitData
    labels: list[str]
    data_seconds: float
    seconds: float
    report: Path | None = None

    def show(self) -> None:
        """Tell what came out, to people or to programs."""
        _show_result(self)
        console.result(
            {
                **_summary(self),
                "broken": len(self.data.broken),
                "resumed": self.run.was_left_behind,
                "data_seconds": self.data_seconds,
                "seconds": self.seconds,
            }
        )


def _correct(request: FitRequest, data: FitData) -> tuple[FitData, Corrections | None]:
    """Let what a person said count, if anybody was asked."""
    if request.corrections is None:
        return data, None
    from opensetda.runs.corrections import read_corrections

    corrections = read_corrections(near(request.corrections), data, request.unknown_label)
    return corrections.joined_to(data), corrections


def _shown(classifier: OpenSetClassifier, data: FitData) -> ShownSamples:
    """Return what the report shows of the samples."""
    from opensetda.runs.view import view_of
    from opensetda.runs.writing import ShownSamples

    view = view_of(classifier, data.source, data.labels, data.target, data.source_ids)
    paths, n_source = data.image_paths, len(data.source)
    if not paths:
        return ShownSamples(view)
    # From anywhere, as long as the files stay where they are.
    places = [str(Path(path).absolute()) for path in paths]
    return ShownSamples(view, {row: places[row] for row in view.source.tolist()}, places[n_source:])


def _load(request: FitRequest) -> FitData:
    from opensetda.cli.counting import counting_progress
    from opensetda.runs.fit_data import is_image_request, load_images, load_tables

    if not is_image_request(request):
        with counting_progress("reading", "MB") as progress:
            return load_tables(request, progress)
    with counting_progress("features") as progress:
        return load_images(request, progress)


@contextmanager
def _listener(request: FitRequest, goes_on: bool) -> Iterator[ProgressListener]:
    """Yield who listens to the training: a person, and TensorBoard if that is wanted."""
    from opensetda.cli.counting import training_progress

    with ExitStack() as stack:
        listeners = [stack.enter_context(training_progress(request.method))]
        if request.tensorboard is not None:
            from opensetda.runs.tensorboard import EventLog

            listeners.append(stack.enter_context(EventLog(Path(request.tensorboard), goes_on)))

        def listen(event: ProgressEvent) -> None:
            for listener in listeners:
                listener(event)

        yield listen


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
        view=True,
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


def _summary(outcome: _Outcome) -> dict[str, Any]:
    """Return the result for programs."""
    classifier, labels, run = outcome.classifier, outcome.labels, outcome.run
    out, request = run.out, run.request
    kept = getattr(classifier, "kept_step_", None)
    return {
        "run": out,
        "method": request.method,
        "targets": len(labels),
        **console.label_summary(labels, classifier.unknown_label),
        "openness": classifier.openness_report_.to_dict(),
        "kept_step": None if kept is None else kept.to_dict(),
        "files": console.files_in(out),
        "tensorboard": None if request.tensorboard is None else Path(request.tensorboard),
    }


def _show_result(outcome: _Outcome) -> None:
    from opensetda.data.image_lists import printable
    from opensetda.runs.folder import BROKEN

    classifier, data, out = outcome.classifier, outcome.data, outcome.run.out
    labels, seconds = outcome.labels, outcome.seconds
    if len(classifier.history_) > 1:
        kept = console.kept_step(classifier)
        console.show(console.step_table(classifier.history_, kept=kept))
    console.show(console.label_counts(labels, classifier.unknown_label))
    console.show_estimates(classifier)
    target = printable(Path(data.inputs["target"]["path"]).name)
    many = console.counted(len(labels), data.noun)
    console.say(f"Labelled {many} of {target} in {seconds:.1f} s.")
    if data.broken:
        many = console.counted(len(data.broken), "broken image")
        console.say(f"Left out {many}: {out / BROKEN}")
    later = "FILE" if data.recipe is None else "PATHS"
    typed = in_shell(out)
    console.say(f"  labels   {out / 'predictions.csv'}")
    console.say(f"  report   {outcome.report or f'osda report {typed}'}")
    console.say(f"  check    osda review {typed}")
    console.say(f"  later    osda predict {typed} {later} --out labels.csv")
    console.say(f"  how good osda evaluate {typed} --labels TRUTH")
