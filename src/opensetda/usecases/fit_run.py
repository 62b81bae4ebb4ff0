"""The use cases fit and resume: from two domains to a run folder."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from opensetda import __version__
from opensetda.context import FitContext, TrainableImages
from opensetda.errors import InputError, RunPausedError, choice
from opensetda.progress import RunListener, worded
from opensetda.rows import IntArray
from opensetda.runs import folder as files
from opensetda.runs.folder import RunFolder, check_destination, new_run_folder
from opensetda.runs.kept import KEPT
from opensetda.runs.options import (
    ARRAY,
    FitOptions,
    FitRequest,
    ImageOptions,
    TableOptions,
    absolute,
    declared,
)
from opensetda.runs.pictures import many_images, write_broken, write_images
from opensetda.runs.predictions import IMAGE_ID
from opensetda.runs.registry import build_method, check_finetuning, finetune_settings, full_settings
from opensetda.runs.sample_map import view_of
from opensetda.runs.unfinished import SUFFIX, UnfinishedRun, unfinished_path
from opensetda.system import default_cache_folder, first_process_first, is_first_process
from opensetda.system.files import in_shell, near, plain
from opensetda.system.memory import keep_freed_memory
from opensetda.usecases import read_domains
from opensetda.usecases.corrections import check_corrections, read_corrections
from opensetda.usecases.fit_rows import (
    FittedMethod,
    draw_sample,
    fit_method,
    label_targets,
    read_rows_of,
    sample_size,
    write_run,
)
from opensetda.usecases.keeping import keep_domains, kept_source, link_to_base
from opensetda.usecases.read_domains import FitData, domain_tables


class Training(NamedTuple):
    """What a training left in memory; `left_out` columns of tables were not used, and why."""

    fitted: FittedMethod
    labels: Counter[str]
    target: str
    noun: str
    n_broken: int
    data_seconds: float
    left_out: Mapping[str, str]


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
    out, arrays = Path(out), None
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
        images={**asdict(images), "finetune": trained_part(images)},
        report=report,
        command=tuple(command),
    )
    return start(request, out, arrays, listener)


def start(request: FitRequest, out: Path, arrays: Any, listener: RunListener | None) -> FittedRun:
    """Check a request, and carry it out; `arrays` is what no file holds."""
    if is_first_process():
        check_destination(out, request.overwrite)
    check_request(request, out)
    run = UnfinishedRun.begin(_workplace(out), request, request.overwrite)
    return _carry_out(run, arrays, listener or RunListener())


def _workplace(out: Path) -> Path:
    """Return `out`; other processes of ``accelerate launch`` only help to train."""
    return out if is_first_process() else Path(tempfile.mkdtemp()) / out.name


def make_request(options: dict[str, Any], **own: Any) -> FitRequest:
    """Return checked options as a request; None is the default."""
    known = declared(FitOptions)
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() - known.keys():
        hint = choice(name, known)
        for option in (name, name.removesuffix("_column")):
            if option in declared(TableOptions):
                hint = f"did you mean tables=TableOptions({option}={given[name]!r})?"
        raise InputError(f"fit: no option {name!r}; {hint}")
    for name in given.keys() & {"corrections", "tensorboard"}:
        given[name] = absolute(given[name])
    given["settings"] = plain(dict(given.get("settings", {})))
    try:
        return TypeAdapter(FitRequest).validate_python({**given, **own})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise InputError(f"{name}={first['input']!r}: {first['msg']}") from None


def trained_part(images: ImageOptions) -> Literal["last", "all"] | None:
    """Return what of a backbone is to be trained; the default depends on the device."""
    if images.finetune != "auto":
        return images.finetune
    from opensetda.system.processes import this_process

    return "last" if this_process().device.type == "cpu" else "all"


@worded
def resume(
    out: str | Path,
    *,
    source: Any = None,
    target: Any = None,
    listener: RunListener | None = None,
) -> FittedRun:
    """Continue a run that was interrupted; on the CPU the result is the same to the bit.

    Parameters
    ----------
    out : str or Path
        The `out` of `fit`.
    source, target : optional
        The arrays that `fit` was given, if it was given arrays; they must be the same.
    listener : RunListener, optional
        Receives notes, warnings and progress.
    """
    listener = listener or RunListener()
    out = Path(str(out).removesuffix(SUFFIX))
    if out.is_symlink() and not unfinished_path(out).exists():
        # A name for a run that lies elsewhere, and so does what is left of it.
        out = out.resolve()
    if not is_first_process():
        request = UnfinishedRun.request_of(out)
        if request is None:
            raise SystemExit
        return _carry_out(UnfinishedRun.begin(_workplace(out), request, False), None, listener)
    run = UnfinishedRun.find(out)
    if run is None or run.is_complete:
        RunFolder.open(out)
        if run is not None:
            run.remove()
        return FittedRun(out)
    request, arrays = run.request, None
    try:
        if ARRAY in (request.source, request.target):
            if (target if request.adapts else source) is None:
                advice = "go on in Python, opensetda.usecases.resume(out, source=..., target=...)"
                raise InputError(f"{run.path}: begun from arrays, which it does not hold; {advice}")
            arrays = target
            if not request.adapts:
                arrays = domain_tables(source, target, request.tables)
        elif source is not None:
            raise InputError(f"{run.path}: begun from files; leave out source and target")
        check_request(request, run.out)
        check_destination(run.out, request.overwrite)
    except BaseException:
        run.release()
        raise
    listener.note(f"continuing {run.path}")
    return _carry_out(run, arrays, listener)


def _carry_out(run: UnfinishedRun, arrays: Any, listener: RunListener) -> FittedRun:
    """Train; whatever goes wrong, a run that holds a checkpoint or was there before stays."""
    if not is_first_process():
        try:
            train(run, arrays, listener)
        finally:
            shutil.rmtree(run.out.parent, ignore_errors=True)
        raise SystemExit
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
        listener.note(f"{kept[0].upper()}{kept[1:]}")
        raise
    run.remove()
    listener.finished(run.out)
    for warning in training.fitted.warnings:
        listener.warn(warning)
    return FittedRun(run.out, run.request, run.was_left_behind, training)


def check_request(request: FitRequest, out: Path) -> None:
    """Raise an `InputError` for a request that cannot work, before any data is read."""
    if not request.unknown_label.strip():
        raise InputError(f"unknown label {request.unknown_label!r}: give a word that can be seen")
    if request.tensorboard is not None and find_spec("tensorboard") is None:
        raise InputError("--tensorboard: not installed; pip install 'opensetda[tensorboard]'")
    if request.corrections is not None:
        check_corrections(near(request.corrections))
    build_method(**request.method_arguments())
    check_finetuning(request.method, request.settings, request.images.finetune is not None)
    given = [near(request.source), near(request.target)]
    if request.adapts:
        kept_source(RunFolder.open(given.pop(0)))
    if request.target == ARRAY:
        return
    for path in given:
        if (path / files.SETTINGS).is_file() and (path / files.WEIGHTS).is_file():
            raise InputError(f"{path}: a run folder; give images or a feature table")
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise InputError(f"{out}: lies in {path}, which is read; choose another --out")
    if os.path.realpath(request.source) == os.path.realpath(request.target):
        raise InputError(f"{path}: source and target are the same; give what is to be labelled")


def train(run: UnfinishedRun, arrays: Any, listener: RunListener) -> Training:
    """Load the data, fit the method and write the run folder."""
    request, started = run.request, time.perf_counter()
    run.clear_scratch()
    with first_process_first():
        # The others find features in the cache.
        data = _load(run, arrays, listener)
    corrections = None
    if request.corrections is not None:
        corrections = read_corrections(near(request.corrections), data, request.unknown_label)
        data = corrections.noted_in(data)
    arguments = request.method_arguments()
    settings = full_settings(request.method, arguments["preset"], request.settings)
    if request.images.finetune:
        settings["finetune"] = asdict(finetune_settings(request.method, request.settings))
    run.check_inputs({**data.inputs, "settings": {"release": __version__, **settings}})
    data_seconds = time.perf_counter() - started
    for warning in data.warnings:
        listener.warn(warning)
    if data.broken:
        listener.warn(f"{many_images(len(data.broken))} cannot be read: left out")
    for line in (*data.notes, data.summary):
        listener.note(line)

    sample = _sample(request, data, listener)
    backbone = images = features = None
    if request.images.finetune:
        backbone, images, features = _trainable_images(run, data, listener)
    method = build_method(**arguments)
    listener.started({"method": request.method, "openness": request.openness, **settings})
    if request.tensorboard is not None:
        from opensetda.listeners import TensorBoardListener

        listener = TensorBoardListener(request.tensorboard, listener)
    domains = read_rows_of(
        data.source, data.labels, data.target, request.unknown_label, sample, corrections
    )
    with listener.training(request.method) as told:
        context = FitContext(
            progress=told,
            images=images,
            checkpoints=run.checkpoints,
            checked=None if corrections is None else corrections.checked,
        )
        fitted = fit_method(method, domains, context, request.seed)
    labels = None
    if sample is not None:
        with listener.counting("label", data.noun) as labelling:
            id_name = "id" if data.recipe is None else IMAGE_ID
            classifier, labels = label_targets(
                fitted.classifier, data.target, data.ids, id_name, run.scratch, labelling
            )
            fitted = replace(fitted, classifier=classifier)

    classifier = fitted.classifier
    kept = keep_domains(request.keep_source, data, domains, sample, features)
    chain, lines = link_to_base(replace(data, n_marked=kept.n_marked), classifier, sample)
    for line in lines:
        listener.warn(line)
    view = view_of(classifier, data.source, data.labels, data.target, data.source_ids, features)
    with new_run_folder(run.out) as aside:
        if backbone is not None:
            from safetensors.torch import save

            state = backbone.state_dict().items()
            tensors = {name: value.cpu().contiguous() for name, value in state}
            (aside / files.BACKBONE).write_bytes(save(tensors))
        elif data.base is not None and data.base.is_finetuned:
            content = data.base.manifest.content(files.BACKBONE)
            (aside / files.BACKBONE).write_bytes(content)
        kept.write(aside / KEPT)
        if data.broken:
            write_broken(aside / files.BROKEN, data.broken)
        # Absolute: the report may be made in another folder.
        if places := [path and str(Path(path).absolute()) for path in data.image_paths]:
            shown = {row: places[row] for row in view.source.tolist() if places[row]}
            write_images(aside / files.IMAGES, shown, places[len(data.source) :])
        if labels is not None:
            for name in (files.predictions_name(len(data.target)), files.STEPS):
                (run.scratch / name).rename(aside / name)
        recipe = data.recipe
        if backbone is not None and images is not None:
            recipe = replace(backbone.recipe, views=images.averaged)
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
            "backbone": recipe and recipe.to_dict() | {"finetuned": _trained(request, data)},
            "chain": chain,
            "sample": None if sample is None else len(sample),
        }
        write_run(
            aside,
            fitted,
            record,
            ids=data.ids,
            view=view,
            data_seconds=data_seconds,
            feature_names=data.feature_names,
            corrections=corrections,
        )
    for warning in read_domains.spreadsheet_warnings(run.out, data, classifier.classes_):
        listener.warn(warning)
    return Training(
        fitted=fitted,
        labels=labels or Counter(RunFolder.open(run.out).labels().tolist()),
        target=Path(data.inputs["target"]["path"]).name,
        noun=data.noun,
        n_broken=len(data.broken),
        data_seconds=data_seconds,
        left_out=data.columns.get("left_out", {}),
    )


def _load(run: UnfinishedRun, arrays: Any, listener: RunListener) -> FitData:
    """Read both domains; of a run that is adapted, what it kept of its source."""
    if not run.request.adapts:
        return read_domains.load(run.request, listener, run.scratch, arrays)
    # It reads the target as prediction does, which needs this module.
    from opensetda.usecases.read_run import load_kept

    return load_kept(run.request, listener, run.scratch, arrays)


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


def _trainable_images(
    run: UnfinishedRun, data: FitData, listener: RunListener
) -> tuple[Any, TrainableImages, Any]:
    """Return the backbone, the images with what is to be trained of it, and their features."""
    from opensetda.methods.inputs import features_of
    from opensetda.system.processes import this_process
    from opensetda.training.images import open_images

    assert data.recipe is not None, "options for images are refused for tables"
    keep_freed_memory()
    options, settings = (
        run.request.images,
        finetune_settings(run.request.method, run.request.settings),
    )
    recipe = replace(data.recipe, views=options.views or settings.views)
    given = recipe, data.image_paths, settings, options.finetune or "", run.scratch
    with listener.counting("store activations") as progress:
        backbone, images = open_images(*given, progress)
    return backbone, images, partial(features_of, images, device=this_process().device)


def _trained(request: FitRequest, data: FitData) -> str | bool:
    """Return what of the backbone was trained, here or by the run that is adapted."""
    if data.base is not None:
        before: str | bool = (data.base.settings["backbone"] or {}).get("finetuned", False)
        return before
    return request.images.finetune or False
