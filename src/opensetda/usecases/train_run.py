"""Second part of the use cases fit and resume: a method learns, and the run folder is written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from opensetda import __version__
from opensetda.context import FitContext, TrainableImages
from opensetda.errors import InputError
from opensetda.methods.base import OpenSetClassifier
from opensetda.progress import RunListener
from opensetda.rows import Domains, IntArray
from opensetda.runs import folder as files
from opensetda.runs.folder import RunFolder, new_run_folder
from opensetda.runs.kept import KEPT
from opensetda.runs.options import FitRequest
from opensetda.runs.pictures import many_images, write_broken, write_images
from opensetda.runs.predictions import IMAGE_ID
from opensetda.runs.registry import build_method, finetune_settings, full_settings
from opensetda.runs.sample_map import RunView, view_of
from opensetda.runs.unfinished import UnfinishedRun
from opensetda.system.files import near
from opensetda.system.memory import keep_freed_memory
from opensetda.usecases import read_domains
from opensetda.usecases.corrections import Corrections, read_corrections
from opensetda.usecases.fit_request import is_source_free
from opensetda.usecases.fit_rows import (
    FittedMethod,
    draw_sample,
    fit_method,
    label_targets,
    read_rows_of,
    sample_size,
    write_run,
)
from opensetda.usecases.keeping import keep_domains, link_to_base
from opensetda.usecases.read_domains import FitData


class Training(NamedTuple):
    """What a training left in memory; `left_out` columns of tables were not used, and why."""

    fitted: FittedMethod
    labels: Counter[str]
    target: str
    noun: str
    n_broken: int
    data_seconds: float
    left_out: Mapping[str, str]

    @property
    def classifier(self) -> OpenSetClassifier:
        """The fitted method."""
        return self.fitted.classifier


class Tuning(NamedTuple):
    """A backbone that is trained, its images, and the function that computes their features."""

    backbone: Any
    images: TrainableImages
    features: Any


@dataclass(frozen=True)
class Learned:
    """What was learned from, and what came out; `labels` of targets beyond the sample."""

    data: FitData
    corrections: Corrections | None
    sample: IntArray | None
    domains: Domains
    tuning: Tuning | None
    fitted: FittedMethod
    labels: Counter[str] | None


def train(run: UnfinishedRun, data: FitData, started: float, listener: RunListener) -> Training:
    """Fit the method to data, whose reading `started` then, and write the run folder."""
    request = run.request
    corrections = None
    if request.corrections is not None:
        corrections = read_corrections(near(request.corrections), data, request.unknown_label)
        data = corrections.noted_in(data)
    settings = _all_settings(request)
    run.check_inputs(data.inputs | {"settings": {"release": __version__, **settings}})
    data_seconds = time.perf_counter() - started
    for warning in data.warnings:
        listener.warn(warning)
    if data.broken:
        listener.warn(f"{many_images(len(data.broken))} cannot be read: left out")
    for line in (*data.notes, data.summary):
        listener.note(line)
    listener.started({"method": request.method, "openness": request.openness, **settings})
    if request.tensorboard is not None:
        from opensetda.listeners import TensorBoardListener

        listener = TensorBoardListener(request.tensorboard, listener)
    learned = _learn(run, data, corrections, listener)
    _write(run, learned, settings, data_seconds, listener)
    classifier = learned.fitted.classifier
    for warning in read_domains.spreadsheet_warnings(run.out, data, classifier.classes_):
        listener.warn(warning)
    return Training(
        fitted=learned.fitted,
        labels=learned.labels or Counter(RunFolder.open(run.out).labels().tolist()),
        target=Path(data.inputs["target"]["path"]).name,
        noun=data.noun,
        n_broken=len(data.broken),
        data_seconds=data_seconds,
        left_out=data.columns.get("left_out", {}),
    )


def _all_settings(request: FitRequest) -> dict[str, Any]:
    """Return every setting of the method, and of the training of a backbone."""
    preset = request.method_arguments()["preset"]
    settings = full_settings(request.method, preset, request.settings)
    if request.images.finetune:
        settings["finetune"] = asdict(finetune_settings(request.method, request.settings))
    if request.images.prompts:
        settings["prompts"] = list(request.images.prompts)
        settings["unknown_prompts"] = list(request.images.unknown_prompts)
    return settings


def _with_texts(domains: Domains, data: FitData, request: FitRequest) -> Domains:
    """Return domains with the names of the classes as rows."""
    from opensetda.backbones.clip import text_rows
    from opensetda.backbones.own import own_network

    assert data.recipe is not None, "options for images are refused for tables"
    classes = [str(name) for name in domains.classes]
    unknowns = request.images.unknown_prompts
    if both := sorted({*classes}.intersection(unknowns)):
        raise InputError(f"--unknown-prompts: {both[0]} is a class of the source; leave it out")
    network = own_network(data.recipe)
    texts = text_rows(network, classes, request.images.prompts, unknowns)
    return replace(domains, texts=texts)


def _learn(
    run: UnfinishedRun, data: FitData, corrections: Corrections | None, listener: RunListener
) -> Learned:
    """Fit the method, and label targets beyond the sample that it learned from."""
    request = run.request
    sample = _sample(request, data, listener)
    tuning = _tuning(run, data, listener) if request.images.finetune else None
    method = build_method(**request.method_arguments())
    source_free = is_source_free(request.method, request.preset, request.settings)
    domains = read_rows_of(
        data.source, data.labels, data.target, request.unknown_label, sample, corrections
    )
    if request.images.prompts:
        domains = _with_texts(domains, data, request)
    with listener.training(request.method) as told:
        listener.stage(f"learning, {request.method}")
        context = FitContext(
            progress=told,
            images=None if tuning is None else tuning.images,
            checkpoints=run.checkpoints,
            checked=None if corrections is None else corrections.checked,
            earlier=data.base.model() if data.base is not None and source_free else None,
        )
        fitted = fit_method(method, domains, context, request.seed).naming(near(run.out))
    labels = None
    if sample is not None:
        id_name = "id" if data.recipe is None else IMAGE_ID
        with listener.counting("label", data.noun) as progress:
            classifier, labels = label_targets(
                fitted.classifier, data.target, data.ids, id_name, run.scratch, progress
            )
        fitted = replace(fitted, classifier=classifier)
    return Learned(
        data=data,
        corrections=corrections,
        sample=sample,
        domains=domains,
        tuning=tuning,
        fitted=fitted,
        labels=labels,
    )


def _write(
    run: UnfinishedRun,
    learned: Learned,
    settings: Mapping[str, Any],
    data_seconds: float,
    listener: RunListener,
) -> None:
    """Write the run folder."""
    request = run.request
    data = learned.data
    classifier = learned.fitted.classifier
    features = None if learned.tuning is None else learned.tuning.features
    kept = keep_domains(request.keep_source, data, learned.domains, learned.sample, features)
    marked = replace(data, n_marked=kept.n_marked)
    chain, lines = link_to_base(marked, classifier, learned.sample)
    for line in lines:
        listener.warn(line)
    view = view_of(classifier, data.source, data.labels, data.target, data.source_ids, features)
    record = {
        "method": request.method,
        "openness": request.openness,
        "unknown_label": request.unknown_label,
        "seed": request.seed,
        "command": request.command,
        "identity": request.identity,
        "report": request.report,
        "preset": getattr(classifier, "preset", None),
        "settings": settings,
        "columns": data.columns,
        "inputs": data.inputs,
        "backbone": _recorded_backbone(request, learned),
        "chain": chain,
        "sample": None if learned.sample is None else len(learned.sample),
    }
    with new_run_folder(run.out) as aside:
        _write_backbone(aside, learned)
        kept.write(aside / KEPT)
        if data.broken:
            write_broken(aside / files.BROKEN, data.broken)
        _write_image_paths(aside, data, view)
        if learned.labels is not None:
            for name in (files.predictions_name(len(data.target)), files.STEPS):
                (run.scratch / name).rename(aside / name)
        write_run(
            aside,
            learned.fitted,
            record,
            ids=data.ids,
            view=view,
            data_seconds=data_seconds,
            feature_names=data.feature_names,
            corrections=learned.corrections,
        )


def _write_backbone(folder: Path, learned: Learned) -> None:
    """Write the weights of a backbone that was trained, here or by the run that is adapted."""
    base = learned.data.base
    if learned.tuning is not None:
        from safetensors.torch import save

        state = learned.tuning.backbone.state_dict().items()
        tensors = {name: value.cpu().contiguous() for name, value in state}
        (folder / files.BACKBONE).write_bytes(save(tensors))
    elif base is not None and base.is_finetuned:
        (folder / files.BACKBONE).write_bytes(base.manifest.content(files.BACKBONE))


def _write_image_paths(folder: Path, data: FitData, view: RunView) -> None:
    """Write where the images are; absolute, as the report may be made in another folder."""
    places = [path and str(Path(path).absolute()) for path in data.image_paths]
    if places:
        shown = {row: places[row] for row in view.source.tolist() if places[row]}
        write_images(folder / files.IMAGES, shown, places[len(data.source) :])


def _recorded_backbone(request: FitRequest, learned: Learned) -> dict[str, Any] | None:
    """Return how images became features, and what of the backbone was trained."""
    data = learned.data
    recipe = data.recipe
    if recipe is None:
        return None
    if learned.tuning is not None:
        recipe = replace(learned.tuning.backbone.recipe, views=learned.tuning.images.averaged)
    trained: str | bool = request.images.finetune or False
    if data.base is not None:
        trained = (data.base.settings["backbone"] or {}).get("finetuned", False)
    return recipe.to_dict() | {"finetuned": trained}


def _sample(request: FitRequest, data: FitData, listener: RunListener) -> IntArray | None:
    """Return the rows of the targets to learn from; None for all."""
    size = sample_size(len(set(data.labels.tolist())), request.sample)
    if len(data.target) <= size:
        return None
    many = f"{near(request.target)}: more than {size:,} {data.noun}s"
    for option in ("corrections", "finetune"):
        if getattr(request, option, None) or getattr(request.images, option, None):
            raise InputError(f"--{option}: {many}; give fewer ('osda predict' labels the others)")
    listener.note(f"{many}: learning from {size:,} of them, drawn at random; all are labelled")
    return draw_sample(data.target, size)


def _tuning(run: UnfinishedRun, data: FitData, listener: RunListener) -> Tuning:
    """Open the backbone and the images with what is to be trained of it."""
    from opensetda.methods.inputs import features_of
    from opensetda.system.processes import this_process
    from opensetda.training.images import open_images

    assert data.recipe is not None, "options for images are refused for tables"
    keep_freed_memory()
    options = run.request.images
    settings = finetune_settings(run.request.method, run.request.settings)
    recipe = replace(data.recipe, views=options.views or settings.views)
    with listener.counting("store activations") as progress:
        backbone, images = open_images(
            recipe, data.image_paths, settings, options.finetune or "", run.scratch, progress
        )
    features = partial(features_of, images, device=this_process().device)
    return Tuning(backbone, images, features)
