"""Train a run: load the data, fit the method, write the run folder."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from opensetda import __version__
from opensetda.base import OpenSetClassifier
from opensetda.context import FitContext
from opensetda.errors import InputError
from opensetda.progress import ProgressEvent, ProgressListener
from opensetda.rows import IntArray, Rows
from opensetda.runs import fit_data
from opensetda.runs.arrays import DomainArrays
from opensetda.runs.corrections import read_corrections
from opensetda.runs.curves import draw_curves
from opensetda.runs.fit_data import FitData
from opensetda.runs.folder import RunFolder
from opensetda.runs.listening import RunListener
from opensetda.runs.methods import build_method, full_settings
from opensetda.runs.predictions import IMAGE_ID
from opensetda.runs.request import FitRequest
from opensetda.runs.unfinished import UnfinishedRun
from opensetda.runs.view import view_of
from opensetda.runs.writing import RunRecord, ShownSamples, write_run
from opensetda.system.files import near, new_folder
from opensetda.system.team import Team

if TYPE_CHECKING:
    from opensetda.runs.large import LabelledTargets


@dataclass(frozen=True)
class Training:
    """What a training left in memory, beside the run folder.

    Attributes
    ----------
    classifier : OpenSetClassifier
        Fitted; predicts as the model of the run folder does.
    labels : Counter
        How many targets got each label.
    target : str
        Name of the target, for messages.
    noun : str
        What a sample is called: "row" or "image".
    n_broken : int
        Images that could not be read and were left out.
    data_seconds, seconds : float
        How long reading the data, and `fit` of the classifier, took.
    """

    classifier: OpenSetClassifier
    labels: Counter[str]
    target: str
    noun: str
    n_broken: int
    data_seconds: float
    seconds: float


def train(
    run: UnfinishedRun, arrays: DomainArrays | None, team: Team, listener: RunListener
) -> Training | None:
    """Return what the first process trained; None in the others."""
    request = run.request
    started = time.perf_counter()
    team.first_does(run.clear_scratch)
    data = fit_data.load(request, listener, run.scratch(), team, arrays)
    corrections = None
    if request.corrections is not None:
        path = near(request.corrections)
        corrections = read_corrections(path, data, request.unknown_label)
        data = corrections.joined_to(data)
    settings = full_settings(request.method, request.preset, request.changes)
    inputs = {**data.inputs, "settings": {"release": __version__, **settings}}
    team.first_does(lambda: run.check_inputs(inputs))
    data_seconds = time.perf_counter() - started
    _tell_about(data, listener)
    sample = _sample(request, data, team, listener)
    with _listening(request, run.was_left_behind, team, listener) as progress:
        classifier = build_method(**request.method_arguments())
        context = FitContext(progress, None, run.checkpoints(), view=team.is_first, team=team)
        backbone = None
        if request.images.finetune and data.recipe is not None:
            backbone, context = _with_backbone(data, context)
        seconds = fit_domains(classifier, data.source, data.labels, data.target, sample, context)
    labelled = None if sample is None else _label(classifier, data, run, team, listener)
    if not team.is_first:
        return None
    kept = classifier.kept_step_
    curves = draw_curves(
        classifier.history_,
        title=f"{request.method} on {Path(request.target).name}",
        kept_step=None if kept is None else int(kept.step),
    )
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
            backbone,
            shown,
            corrections,
            labelled,
        )
    if labelled is None:
        labels = Counter(RunFolder.open(run.out).labels().tolist())
    else:
        labels = labelled.counts
    target = Path(data.inputs["target"]["path"]).name
    n_broken = len(data.broken)
    return Training(classifier, labels, target, data.noun, n_broken, data_seconds, seconds)


def _tell_about(data: FitData, listener: RunListener) -> None:
    for line in data.notes:
        listener.note(line)
    for warning in data.warnings:
        listener.warn(warning)
    if data.broken:
        many = "1 image" if len(data.broken) == 1 else f"{len(data.broken):,} images"
        listener.warn(f"{many} cannot be read: left out")
    listener.note(data.summary)


def _sample(
    request: FitRequest, data: FitData, team: Team, listener: RunListener
) -> IntArray | None:
    """Return the rows of the targets to learn from; None for all."""
    from opensetda.runs.large import draw_sample, sample_size

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
    listener.note(f"{many}: learning from {size:,} of them, drawn at random; all are labelled")
    return draw_sample(data.target, size, team)


def _label(
    classifier: OpenSetClassifier,
    data: FitData,
    run: UnfinishedRun,
    team: Team,
    listener: RunListener,
) -> LabelledTargets:
    from opensetda.runs.large import label_targets

    id_name = "id" if data.recipe is None else IMAGE_ID
    with listener.counting("label", data.noun) as progress:
        return label_targets(
            classifier, data.target, data.ids, id_name, run.scratch(), team, progress
        )


@contextmanager
def _listening(
    request: FitRequest, goes_on: bool, team: Team, listener: RunListener
) -> Iterator[ProgressListener]:
    """Yield what receives the events of the training: the listener, and TensorBoard if wanted."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(listener.training(request.method))]
        if request.tensorboard is not None and team.is_first:
            from opensetda.runs.tensorboard import EventLog

            listeners.append(stack.enter_context(EventLog(Path(request.tensorboard), goes_on)))

        def listen(event: ProgressEvent) -> None:
            for receive in listeners:
                receive(event)

        yield listen


def _with_backbone(data: FitData, context: FitContext) -> tuple[Any, FitContext]:
    """Return the backbone to train, and the context with its images."""
    from opensetda.backbones.finetuning import FineTunedImages
    from opensetda.backbones.model import load_backbone
    from opensetda.system.memory import keep_freed_memory

    assert data.recipe is not None
    keep_freed_memory()
    backbone = load_backbone(data.recipe)
    return backbone, replace(context, images=FineTunedImages(backbone, data.image_paths))


def _shown(classifier: OpenSetClassifier, data: FitData, sample: IntArray | None) -> ShownSamples:
    """Return the samples that the report shows."""
    view = view_of(classifier, data.source, data.labels, data.target, data.source_ids, sample)
    if not data.image_paths:
        return ShownSamples(view)
    # Absolute: the report may be made in another folder.
    places = [str(Path(path).absolute()) for path in data.image_paths]
    source_places = {row: places[row] for row in view.source.tolist()}
    return ShownSamples(view, source_places, places[len(data.source) :])


def _record(
    request: FitRequest,
    data: FitData,
    settings: dict[str, Any],
    seconds: float,
    data_seconds: float,
    sample: IntArray | None,
) -> RunRecord:
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


def fit_domains(
    classifier: OpenSetClassifier,
    source: npt.NDArray[Any],
    labels: Any,
    target: npt.NDArray[Any],
    sample: IntArray | None = None,
    context: FitContext | None = None,
) -> float:
    """Fit a classifier on source and target rows, and return the seconds it took.

    Both may be memory maps, of any type of number; `sample` are the target rows to learn from,
    None for all.
    """
    chosen = np.arange(len(target)) if sample is None else sample
    # The targets' places in y hold the first source label: any value would do, none is read.
    y = np.concatenate([labels, np.repeat(labels[:1], len(chosen))])
    domain = np.repeat([0, -1], [len(source), len(chosen)])
    X = np.empty((len(source) + len(chosen), source.shape[1]), dtype=np.float32)
    for rows, place in (
        (Rows(source, np.arange(len(source))), 0),
        (Rows(target, chosen), len(source)),
    ):
        for part, chunk in rows.chunks():
            X[place + part.start : place + part.stop] = chunk
    start = time.perf_counter()
    classifier.fit(X, y, sample_domain=domain, context=context)
    return time.perf_counter() - start
