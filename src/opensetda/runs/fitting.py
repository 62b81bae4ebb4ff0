"""Make a run: check the request, load the data, fit the method, write the run folder."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import safetensors.numpy

from opensetda import __version__
from opensetda.backbones.extraction import Broken
from opensetda.base import OpenSetClassifier
from opensetda.context import FitContext, TrainableImages
from opensetda.errors import InputError
from opensetda.rows import FloatArray, IntArray, Rows
from opensetda.runs import fit_data
from opensetda.runs import folder as files
from opensetda.runs.corrections import (
    Corrections,
    ReviewedRun,
    check_corrections,
    read_corrections,
)
from opensetda.runs.domain_arrays import DomainArrays
from opensetda.runs.fit_data import FitData
from opensetda.runs.folder import RunFolder
from opensetda.runs.large import draw_sample, label_targets, sample_size
from opensetda.runs.listening import RunListener
from opensetda.runs.manifest import Manifest
from opensetda.runs.methods import FINETUNE, build_method, finetune_settings, full_settings
from opensetda.runs.outputs import many_images, write_broken
from opensetda.runs.pictures import write_images
from opensetda.runs.predictions import IMAGE_ID, PredictionTable, class_names
from opensetda.runs.request import ARRAY, FitRequest
from opensetda.runs.tensorboard import check_log, event_log
from opensetda.runs.unfinished import UnfinishedRun
from opensetda.runs.view import RunView, view_of
from opensetda.system.files import near, new_folder, plain, write_json
from opensetda.system.memory import check_free, keep_freed_memory, peak_megabytes

if TYPE_CHECKING:
    from opensetda.backbones.model import ImageBackbone

_PACKAGES = (
    *("opensetda", "numpy", "scipy", "scikit-learn", "torch", "pyarrow", "safetensors", "timm"),
    *("pillow", "onnxruntime"),
)

# The entries of settings.json in their order, with what they are if a run has no such thing.
_RECORDED: dict[str, Any] = {
    **{"format": files.FORMAT, "version": files.VERSION},
    **dict.fromkeys(("method", "openness", "scaling", "unknown_label", "preset", "seed")),
    **{"settings": None, "classes": [], "has_ids": False, "columns": {}},
    **dict.fromkeys(("inputs", "backbone", "command", "identity", "sample")),
}


@dataclass(frozen=True)
class Training:
    """What a training left in memory, beside the run folder.

    `labels` counts the targets by label; `noun` is what a sample is called, "row" or "image";
    `n_broken` images could not be read; reading the data took `data_seconds`, `fit` `seconds`;
    `left_out` has columns of tables that were not used, and why.
    """

    classifier: OpenSetClassifier
    labels: Counter[str]
    target: str
    noun: str
    n_broken: int
    data_seconds: float
    seconds: float
    left_out: Mapping[str, str]


def check_request(request: FitRequest, out: Path) -> None:
    """Raise an `InputError` for a request that cannot work, before any data is read."""
    if request.tensorboard is not None:
        check_log(near(request.tensorboard))
    if request.corrections is not None:
        check_corrections(near(request.corrections))
    build_method(**request.method_arguments())
    if request.images.finetune:
        finetune_settings(request.method, request.changes)
    elif found := [name for name in request.changes if name.startswith(FINETUNE)]:
        raise InputError(f"setting {found[0]}: for a backbone that is trained; add --finetune")
    if request.source == ARRAY:
        return
    source, target = near(request.source), near(request.target)
    for path in (source, target):
        if (path / files.SETTINGS).is_file() and (path / files.PREDICTIONS).is_file():
            advice = "give images or a feature table ('osda predict' uses a run)"
            raise InputError(f"{path}: a run folder of 'osda fit'; {advice}")
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            advice = "later fits would read its pictures; choose another --out"
            raise InputError(f"{out}: lies in {path}; {advice}")
    if source.exists() and target.exists() and source.samefile(target):
        raise InputError(f"{target}: source and target are the same; give what is to be labelled")


def train(run: UnfinishedRun, arrays: DomainArrays | None, listener: RunListener) -> Training:
    """Load the data, fit the method and write the run folder."""
    request, started = run.request, time.perf_counter()
    run.clear_scratch()
    data = fit_data.load(request, listener, run.scratch(), arrays)
    corrections = reviewed = checked = None
    if request.corrections is not None:
        path = near(request.corrections)
        reviewed = ReviewedRun.beside(path, data)
        scores = None if reviewed is None else reviewed.known_scores
        corrections = read_corrections(path, data, request.unknown_label, scores)
        data, checked = corrections.joined_to(data), corrections.checked
    settings = full_settings(request.method, request.preset, request.changes)
    if request.images.finetune:
        settings["finetune"] = asdict(finetune_settings(request.method, request.changes))
    run.check_inputs({**data.inputs, "settings": {"release": __version__, **settings}})
    data_seconds = time.perf_counter() - started
    _tell_about(data, listener)

    sample = _sample(request, data, listener)
    backbone = images = None
    if request.images.finetune and data.recipe is not None:
        backbone, images = _trainable_images(run, data, listener)
    classifier = build_method(**request.method_arguments())
    with (
        listener.training(request.method) as told,
        event_log(request.tensorboard, run.was_left_behind, told) as progress,
    ):
        context = FitContext(progress, images, run.checkpoints(), checked)
        domains = data.source, data.labels, data.target
        seconds = fit_domains(classifier, *domains, sample, context, request.seed)
    labels = None
    if sample is not None:
        with listener.counting("label", data.noun) as labelling:
            given = data.target, data.ids, data.id_name
            labels = label_targets(classifier, *given, run.scratch(), labelling)
    if corrections is not None and reviewed is not None:
        found = classifier.openness_report_
        warning = reviewed.warning(corrections, classifier.transduction_, found)
        if warning is not None:
            classifier.openness_report_ = replace(found, warnings=(*found.warnings, warning))

    features = None if images is None else partial(_trained_features, images)
    view = view_of(classifier, *domains, data.source_ids, features)
    # Absolute: the report may be made in another folder.
    places = [str(Path(path).absolute()) for path in data.image_paths]
    images_shown = {row: places[row] for row in view.source.tolist()} if places else {}
    with new_folder(run.out) as aside:
        write_run(
            aside,
            classifier,
            _record(request, data, settings, classifier, sample),
            data.ids,
            seconds=(data_seconds, seconds),
            feature_names=data.feature_names,
            broken=data.broken,
            backbone=backbone,
            view=view,
            images=(images_shown, places[len(data.source) :]),
            corrections=corrections,
            labelled=None if labels is None else run.scratch(),
        )
    labels = labels or Counter(RunFolder.open(run.out).labels().tolist())
    target, left_out = Path(data.inputs["target"]["path"]).name, data.columns.get("left_out", {})
    counts = labels, target, data.noun, len(data.broken)
    return Training(classifier, *counts, data_seconds, seconds, left_out)


def _tell_about(data: FitData, listener: RunListener) -> None:
    for line in data.notes:
        listener.note(line)
    for warning in data.warnings:
        listener.warn(warning)
    if data.broken:
        listener.warn(f"{many_images(len(data.broken))} cannot be read: left out")
    listener.note(data.summary)


def _sample(request: FitRequest, data: FitData, listener: RunListener) -> IntArray | None:
    """Return the rows of the targets to learn from; None for all."""
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
    return draw_sample(data.target, size)


def _trainable_images(
    run: UnfinishedRun, data: FitData, listener: RunListener
) -> tuple[ImageBackbone, TrainableImages]:
    """Return the whole backbone, and the images with what is to be trained of it."""
    from opensetda.backbones.model import load_backbone
    from opensetda.finetuning.images import FineTunedImages, fixed_views, store_activations

    assert data.recipe is not None
    keep_freed_memory()
    settings = finetune_settings(run.request.method, run.request.changes)
    backbone = load_backbone(data.recipe)
    backbone.views = fixed_views(settings)
    images = backbone, data.image_paths, settings
    if run.request.images.finetune == "all":
        return backbone, FineTunedImages(*images)
    with listener.counting("store activations") as progress:
        return backbone, store_activations(*images, run.scratch(), progress)


def _trained_features(images: TrainableImages, rows: IntArray) -> FloatArray:
    """Return features by a backbone that was trained."""
    from accelerate import PartialState

    from opensetda.finetuning.inputs import features_of

    return features_of(images, rows, PartialState().device)


def _record(
    request: FitRequest,
    data: FitData,
    settings: Mapping[str, Any],
    classifier: OpenSetClassifier,
    sample: IntArray | None,
) -> dict[str, Any]:
    """Return the entries of ``settings.json``."""
    backbone = None
    if data.recipe is not None:
        backbone = {**data.recipe.to_dict(), "finetuned": request.images.finetune or False}
    asked = ("method", "openness", "unknown_label", "seed", "command", "identity")
    return {
        **{name: getattr(request, name) for name in asked},
        "preset": getattr(classifier, "preset", None),
        "settings": settings,
        "has_ids": data.ids is not None,
        "columns": data.columns,
        "inputs": data.inputs,
        "backbone": backbone,
        "sample": None if sample is None else len(sample),
    }


def fit_domains(
    classifier: OpenSetClassifier,
    source: npt.NDArray[Any],
    labels: Any,
    target: npt.NDArray[Any],
    sample: IntArray | None = None,
    context: FitContext | None = None,
    seed: int = 0,
) -> float:
    """Fit a classifier on source and target rows, and return the seconds it took.

    Both may be memory maps, of any type of number; `sample` are the target rows to learn from,
    None for all. With images in the context, their backbone is trained: by the method, or in
    rounds (from `seed`), which it labels the targets for.
    """
    chosen = np.arange(len(target)) if sample is None else sample
    # The targets' places in y hold the first source label: any value would do, none is read.
    y = np.concatenate([labels, np.repeat(labels[:1], len(chosen))])
    domain = np.repeat([0, -1], [len(source), len(chosen)])
    shape = len(source) + len(chosen), source.shape[1]
    check_free(
        4 * math.prod(shape), "reading the features of both domains", "give fewer rows or columns"
    )
    X = np.empty(shape, dtype=np.float32)
    both = (Rows(source, np.arange(len(source))), 0), (Rows(target, chosen), len(source))
    for rows, place in both:
        for part, chunk in rows.chunks():
            X[place + part.start : place + part.stop] = chunk
    start = time.perf_counter()
    if context is None or context.images is None or classifier.trains_backbone:
        classifier.fit(X, y, sample_domain=domain, context=context)
    else:
        from opensetda.finetuning.rounds import fit_in_rounds

        fit_in_rounds(classifier, X, y, domain, context, seed)
    return time.perf_counter() - start


def write_run(
    folder: Path,
    classifier: OpenSetClassifier,
    record: Mapping[str, Any],
    ids: npt.NDArray[Any] | None,
    *,
    seconds: tuple[float, float] = (0.0, 0.0),
    feature_names: tuple[str, ...] | None = None,
    broken: Sequence[Broken] = (),
    backbone: ImageBackbone | None = None,
    view: RunView | None = None,
    images: tuple[Mapping[int, str], Sequence[str]] = ({}, ()),
    corrections: Corrections | None = None,
    labelled: Path | None = None,
) -> RunFolder:
    """Write every file of a run into an empty folder, one that `new_folder` gave.

    `record` has entries of ``settings.json``; reading the data and fitting took `seconds`;
    `broken` images were left out; `backbone` is a fine-tuned one; `view` and `images` (files of
    the view's sources by row, and of all targets) are for the report; `labelled` is a folder with
    the labels of all targets, where the classifier has seen only a sample of them.
    """
    state, arrays = classifier.get_state()
    write_json(folder / files.MODEL, {"feature_names": feature_names, "state": state})
    contiguous = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    # Not save_file: it makes files that only their owner may read.
    (folder / files.WEIGHTS).write_bytes(safetensors.numpy.save(contiguous))
    if backbone is not None:
        from safetensors.torch import save as save_tensors

        tensors = {name: value.cpu().contiguous() for name, value in backbone.saved_state().items()}
        (folder / files.BACKBONE).write_bytes(save_tensors(tensors))
    if broken:
        write_broken(folder / files.BROKEN, broken)
    write_json(folder / files.ENVIRONMENT, environment(record["seed"], *seconds))
    lines = [json.dumps(plain(entry), allow_nan=False) + "\n" for entry in classifier.history_]
    (folder / files.HISTORY).write_text("".join(lines), encoding="utf-8")
    estimates = {
        "openness": plain(classifier.openness_report_.to_dict()),
        # As the model has them, with infinity as a word.
        "rejection": {name: state[f"rejection_{name}"] for name in ("threshold", "slope")},
    }
    write_json(folder / files.ESTIMATES, estimates)
    if view is not None:
        view.write(folder / files.VIEW)
    if images[1]:
        write_images(folder / files.IMAGES, *images)
    if labelled is not None:
        for name in (files.PREDICTIONS, files.LARGE_PREDICTIONS, files.STEPS):
            if (labelled / name).exists():
                (labelled / name).rename(folder / name)
    else:
        id_name = "id" if record.get("backbone") is None else IMAGE_ID
        predictions = PredictionTable.of_targets(classifier, ids, id_name)
        if corrections is not None:
            predictions = corrections.applied_to(predictions)
        predictions.write(folder / files.predictions_name(len(predictions)))
        _write_steps(folder / files.STEPS, predictions, classifier)
    found = {"scaling": classifier.scaler_.name, "classes": list(class_names(classifier))}
    settings = {**_RECORDED, **record, **found}
    write_json(folder / files.SETTINGS, settings)
    # Last: a folder without it is not a run.
    manifest = Manifest.of(folder)
    if images[1]:
        manifest.sign_images(files.IMAGES)
    manifest.write()
    return RunFolder.open(folder)


def environment(seed: int, data_seconds: float, fit_seconds: float) -> dict[str, Any]:
    """Return the machine and the versions a run was made with."""
    versions: dict[str, str | None] = dict.fromkeys(_PACKAGES)
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "packages": versions,
        "seed": seed,
        "data_seconds": round(data_seconds, 3),
        "fit_seconds": round(fit_seconds, 3),
        "peak_megabytes": plain(round(peak_megabytes(), 1)),
    }


def _write_steps(path: Path, predictions: PredictionTable, classifier: OpenSetClassifier) -> None:
    """Write the targets' labels after each step; only the last if the method keeps none."""
    if classifier.step_labels_ is None:
        steps = {max(len(classifier.history_), 1): classifier.transduction_}
    else:
        decoded = map(classifier.decode_labels, classifier.step_labels_)
        steps = dict(enumerate(decoded, start=1))
    columns = {"id": pa.array(predictions.ids.tolist(), pa.string())}
    for step, labels in steps.items():
        column = pa.array(map(str, labels.tolist()), pa.string()).dictionary_encode()
        columns[f"{files.STEP_PREFIX}{step}"] = column
    pyarrow.parquet.write_table(pa.table(columns), path)
