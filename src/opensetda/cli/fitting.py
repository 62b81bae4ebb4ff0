"""Carry out what `osda fit` was asked for; `osda resume` does so with what was left behind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensetda.cli import console
from opensetda.cli.processes import reason_of
from opensetda.errors import (
    InputError,
    LostProcessError,
    LostRunError,
    OtherProcessError,
    RunPausedError,
)
from opensetda.progress import ProgressEvent, ProgressListener
from opensetda.system.files import in_shell, near
from opensetda.system.team import ALONE, Team

if TYPE_CHECKING:
    from opensetda.base import OpenSetClassifier
    from opensetda.context import FitContext
    from opensetda.rows import IntArray
    from opensetda.runs.corrections import Corrections
    from opensetda.runs.fit_data import FitData
    from opensetda.runs.large import LabelledTargets
    from opensetda.runs.request import FitRequest
    from opensetda.runs.unfinished import UnfinishedRun
    from opensetda.runs.writing import ShownSamples


# Of more targets a report reads more than most machines hold.
MOST_REPORTED, MOST_CELLS = 1_000_000, 2**27


def carry_out(run: UnfinishedRun, team: Team = ALONE) -> None:
    """Load the data, train, write the run folder, show the result.

    Whatever goes wrong, the unfinished run stays if there is anything in it, or if it was
    there before: who resumes with a disk missing must not lose what was learned.
    """
    try:
        outcome = _carry_out(run, team)
    except BaseException as error:
        # Before the folder goes, which others might miss: they follow from this error.
        if not isinstance(error, OtherProcessError):
            team.may_speak()
        worth_keeping = run.is_worth_keeping
        if team.is_first:
            run.release() if worth_keeping else run.undo()
        kept = f"what was learned is kept, go on with 'osda resume {in_shell(run.out)}'"
        if team.size > 1 and isinstance(error, LostProcessError | SystemExit):
            advice = kept if worth_keeping else "nothing was learned yet, start anew"
            raise LostRunError(f"{reason_of(error)}; {advice}") from error
        if not worth_keeping:
            raise
        if isinstance(error, KeyboardInterrupt):
            raise RunPausedError(kept) from error
        if not (run.was_left_behind and isinstance(error, InputError)):
            console.note(f"{kept[0].upper()}{kept[1:]}")
        raise
    if outcome is None:
        return
    run.remove()
    if run.request.report:
        outcome.report = _report(run.out, outcome)
    outcome.show()


def _report(run: Path, outcome: _Outcome) -> Path | None:
    from opensetda.cli.report import report_at_end

    n_targets, n_classes = outcome.labels.total(), len(outcome.classifier.classes_)
    if n_targets <= MOST_REPORTED and n_targets * n_classes <= MOST_CELLS:
        return report_at_end(run)
    console.note(
        f"no report: of {n_targets:,} targets and {n_classes:,} classes it takes much memory; "
        f"'osda report {in_shell(run)}' makes it"
    )
    return None


def _carry_out(run: UnfinishedRun, team: Team) -> _Outcome | None:
    """Return the outcome to the first process, None to the others."""
    from opensetda import __version__
    from opensetda.runs.fitting import fit_domains
    from opensetda.runs.folder import RunFolder
    from opensetda.runs.methods import full_settings
    from opensetda.runs.writing import write_run
    from opensetda.system.files import new_folder

    request = run.request
    started = time.perf_counter()
    team.first_does(run.clear_scratch)
    data, corrections = _correct(request, _load(run, team))
    settings = full_settings(request.method, request.preset, request.changes)
    inputs = {**data.inputs, "settings": {"release": __version__, **settings}}
    team.first_does(lambda: run.check_inputs(inputs))
    data_seconds = time.perf_counter() - started
    for line in data.notes:
        console.note(line)
    for warning in data.warnings:
        console.warn(warning)
    if data.broken:
        console.warn(f"{console.counted(len(data.broken), 'image')} cannot be read: left out")
    console.note(data.summary)
    sample = _sample(request, data, team)
    with _listener(request, run.was_left_behind, team) as listener:
        classifier, context, own = _build(request, data, run, listener, team)
        seconds = fit_domains(classifier, data.source, data.labels, data.target, sample, context)
    labelled = None if sample is None else _label(classifier, data, run, team)
    if not team.is_first:
        return None

    from opensetda.runs.curves import draw_curves

    title = f"{request.method} on {Path(request.target).name}"
    kept = console.kept_step(classifier)
    curves = draw_curves(classifier.history_, title=title, kept_step=kept)
    record = _record(request, data, settings, seconds, data_seconds, sample)
    shown = _shown(classifier, data, sample)
    with new_folder(run.out) as aside:
        write_run(
            aside,
            classifier,
            record,
            data.ids,
            curves,
            data.broken,
            own,
            shown,
            corrections,
            labelled,
        )
    labels = (
        Counter(RunFolder.open(run.out).labels().tolist()) if labelled is None else labelled.counts
    )
    return _Outcome(run, classifier, data, labels, data_seconds, seconds)


def _sample(request: FitRequest, data: FitData, team: Team) -> IntArray | None:
    """Return which targets to learn from; None takes all."""
    from opensetda.runs.sampling import draw_sample, sample_size

    size = sample_size(len(set(data.labels.tolist())), request.sample)
    if len(data.target) <= size:
        return None
    many = f"{near(request.target)}: more than {size:,} {data.noun}s"
    if request.corrections is not None:
        raise InputError(f"--corrections: {many}; correct a run of fewer")
    if request.images.finetune:
        raise InputError(
            f"--finetune: {many}; fine-tune on fewer, and label the rest with 'osda predict'"
        )
    console.note(f"{many}: learning from {size:,} of them, drawn at random; all are labelled")
    return draw_sample(data.target, size, team)


def _label(
    classifier: OpenSetClassifier, data: FitData, run: UnfinishedRun, team: Team
) -> LabelledTargets:
    from opensetda.cli.counting import counting_progress
    from opensetda.runs.large import label_targets
    from opensetda.runs.predictions import IMAGE_ID

    id_name = "id" if data.recipe is None else IMAGE_ID
    with counting_progress("label", data.noun) as progress:
        return label_targets(
            classifier, data.target, data.ids, id_name, run.scratch(), team, progress
        )


@dataclass
class _Outcome:
    """A complete run, to be shown."""

    run: UnfinishedRun
    classifier: OpenSetClassifier
    data: FitData
    labels: Counter[str]
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


def _shown(classifier: OpenSetClassifier, data: FitData, sample: IntArray | None) -> ShownSamples:
    """Return what the report shows of the samples."""
    from opensetda.runs.view import view_of
    from opensetda.runs.writing import ShownSamples

    view = view_of(classifier, data.source, data.labels, data.target, data.source_ids, sample)
    paths, n_source = data.image_paths, len(data.source)
    if not paths:
        return ShownSamples(view)
    # From anywhere, as long as the files stay where they are.
    places = [str(Path(path).absolute()) for path in paths]
    return ShownSamples(view, {row: places[row] for row in view.source.tolist()}, places[n_source:])


def _load(run: UnfinishedRun, team: Team) -> FitData:
    from opensetda.cli.counting import counting_progress
    from opensetda.runs.fit_data import is_image_request, load_images, load_tables

    request = run.request
    if not is_image_request(request):
        with counting_progress("reading", "MB") as progress:
            return load_tables(request, progress, run.scratch(), team)
    with counting_progress("features") as progress:
        return load_images(request, progress, run.scratch(), team)


@contextmanager
def _listener(request: FitRequest, goes_on: bool, team: Team) -> Iterator[ProgressListener]:
    """Yield who listens to the training: a person, and TensorBoard if that is wanted."""
    from opensetda.cli.counting import training_progress

    with ExitStack() as stack:
        listeners = [stack.enter_context(training_progress(request.method))]
        if request.tensorboard is not None and team.is_first:
            from opensetda.runs.tensorboard import EventLog

            listeners.append(stack.enter_context(EventLog(Path(request.tensorboard), goes_on)))

        def listen(event: ProgressEvent) -> None:
            for listener in listeners:
                listener(event)

        yield listen


def _build(
    request: FitRequest, data: FitData, run: UnfinishedRun, listener: Any, team: Team
) -> tuple[OpenSetClassifier, FitContext, Any]:
    """Return the classifier, the services of its fit, and the backbone that is trained, if any."""
    from opensetda.context import FitContext
    from opensetda.runs.methods import build_method

    classifier = build_method(
        request.method,
        openness=request.openness,
        preset=request.preset,
        changes=request.changes,
        seed=request.seed,
        unknown_label=request.unknown_label,
    )
    context = FitContext(listener, None, run.checkpoints(), view=team.is_first, team=team)
    if not request.images.finetune or data.recipe is None:
        return classifier, context, None
    from opensetda.backbones.finetuning import FineTunedImages
    from opensetda.backbones.model import load_backbone
    from opensetda.system.memory import keep_freed_memory

    keep_freed_memory()
    backbone = load_backbone(data.recipe)
    images = FineTunedImages(backbone, data.image_paths)
    return classifier, replace(context, images=images), backbone


def _record(
    request: FitRequest,
    data: FitData,
    settings: dict[str, Any],
    seconds: float,
    data_seconds: float,
    sample: IntArray | None,
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
        sample=None if sample is None else len(sample),
    )


def _summary(outcome: _Outcome) -> dict[str, Any]:
    """Return the result for programs."""
    classifier, labels, run = outcome.classifier, outcome.labels, outcome.run
    out, request = run.out, run.request
    kept = classifier.kept_step_
    return {
        "run": out,
        "method": request.method,
        "targets": labels.total(),
        **console.label_summary(labels, classifier.unknown_label),
        "openness": classifier.openness_report_.to_dict(),
        "kept_step": None if kept is None else kept.to_dict(),
        "files": console.files_in(out),
        "tensorboard": None if request.tensorboard is None else Path(request.tensorboard),
    }


def _show_result(outcome: _Outcome) -> None:
    from opensetda.data.images.lists import printable
    from opensetda.runs.folder import BROKEN

    classifier, data, out = outcome.classifier, outcome.data, outcome.run.out
    labels, seconds = outcome.labels, outcome.seconds
    if len(classifier.history_) > 1:
        kept = console.kept_step(classifier)
        console.show(console.step_table(classifier.history_, kept=kept))
    console.show(console.label_counts(labels, classifier.unknown_label))
    console.show_estimates(classifier)
    target = printable(Path(data.inputs["target"]["path"]).name)
    many = console.counted(labels.total(), data.noun)
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
