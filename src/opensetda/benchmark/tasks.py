"""The tasks of a benchmark, on embedded digits, feature files or image folders.

Target labels are read here, for the protocol (which rows belong to a task, and the true share of
unknowns), and leave as `OpenSetTask.target_truth`; `grid` passes them to the evaluator only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.backbones.recipe import Recipe
from opensetda.data.benchmarks.catalogue import (
    Benchmark,
    benchmark,
    benchmark_task_with_truth,
    find_domains,
    plain_name,
)
from opensetda.data.benchmarks.digits import load_digits_task
from opensetda.data.benchmarks.protocols import ClassSplit, OpenSetTask, open_set_task
from opensetda.data.tables.loading import TableColumns, read_domains, read_truth
from opensetda.errors import InputError
from opensetda.runs.fit_data import features_of, recipe_of
from opensetda.runs.request import ImageOptions
from opensetda.system.cache_folder import default_cache_folder

CountingProgress = Callable[[int, int], None]
DEMO = "demo"
# Shifts of the embedded digits of scikit-learn.
DEMO_SHIFTS = {"mnist-digits": "none"}
DEMO_SHIFTS |= {f"mnist-{shift}": shift for shift in ("rotated", "noise", "background")}
_SUFFIXES = (".npz", ".parquet", ".csv")
# The published protocols have these directions only; elsewhere every ordered pair is a task.
_DIRECTIONS = {
    "visda-17": ("train-validation",),
    "syn2real-o": ("train-validation",),
    "digits": ("svhn-mnist", "usps-mnist", "mnist-usps"),
}


@dataclass(frozen=True)
class TaskSet:
    """Some tasks of the benchmark `name`; small enough to be sent to every worker.

    A task is named by source and target, for example "amazon-dslr"; `fingerprints` has a hash of
    the data of each.
    """

    name: str
    read: Callable[[str], OpenSetTask]
    fingerprints: dict[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(self.fingerprints)


def read_all(
    name: str, tasks: Iterable[str], read: Callable[..., OpenSetTask], **first: Any
) -> TaskSet:
    """Read all tasks once, which finds errors in the data; `first` are arguments of that time."""
    warnings: list[str] = []
    prints = {
        task: digest([name, task, _task_digest(read(task, warnings=warnings, **first))])
        for task in tasks
    }
    return TaskSet(name, read, prints, tuple(dict.fromkeys(warnings)))


def find_tasks(
    protocol: str,
    data: str | Path | None = None,
    tasks: Sequence[str] | None = None,
    columns: TableColumns | None = None,
    images: ImageOptions | None = None,
    progress: CountingProgress | None = None,
    only_first: bool = False,
) -> TaskSet:
    """Find the data of a benchmark; an `InputError` names what is missing.

    Parameters
    ----------
    protocol : str
        A key of `opensetda.data.benchmarks.catalogue.BENCHMARKS`, or "demo".
    data : str or Path, optional
        A folder of feature files, one per domain (``amazon.npz``, ``.parquet`` or ``.csv``), or
        of image folders. "demo" needs none.
    tasks : sequence of str, optional
        Some of the tasks, for example "amazon-dslr"; by default those of the benchmark.
    columns : TableColumns, optional
        Names of the columns or arrays in feature files.
    images : ImageOptions, optional
        How images become features.
    progress : callable, optional
        Called with the number of images done, and of all, while features are computed.
    only_first : bool
        Read the first task only.
    """
    columns, images = columns or TableColumns(), images or ImageOptions()
    end = 1 if only_first else None
    if plain_name(protocol) == DEMO:
        _refuse_options("the demo has data of its own", columns, images)
        if data is not None:
            raise InputError(f"--data {data}: the demo has data of its own; leave --data out")
        return read_all(DEMO, _choose(DEMO, DEMO_SHIFTS, tasks)[:end], _read_demo)
    spec, data = _find_benchmark(protocol, data)
    pairs = {f"{_slug(a)}-{_slug(b)}": (a, b) for a, b in permutations(spec.domains, 2)}
    chosen = _choose(spec.title, pairs, tasks or _DIRECTIONS.get(spec.name))
    pairs = {name: pairs[name] for name in chosen[:end]}
    files = _feature_files(spec, data)
    if files:
        _refuse_options(f"{data} holds feature files, not images", None, images)
    else:
        _refuse_options(f"{data} holds images, not feature files", columns, None)
    domains: dict[str, Any] = files or _image_folders(spec, data)
    for domain in (domain for pair in pairs.values() for domain in pair):
        if domains.get(domain) is None:
            what = f"{_slug(domain)}.npz" if files else domain
            raise InputError(
                f"{data / what}: missing; {spec.title} wants a folder of images, or a feature file "
                f"(.npz, .parquet or .csv) of {domain}; or name tasks with --task"
            )
    if files:
        found = {task: (files[source], files[target]) for task, (source, target) in pairs.items()}
        read = partial(_read_features, name=spec.name, files=found, columns=columns)
        return read_all(spec.name, pairs, read)
    # The command's own process computes features that are not in the cache; workers only read.
    images = replace(images, cache=images.cache or str(default_cache_folder()))
    how: Any = {"options": images, "recipe": recipe_of(images), "folder": data.absolute()}
    of_images = partial(_read_images, name=spec.name, pairs=pairs, **how)
    return read_all(spec.name, pairs, of_images, progress=progress)


def _find_benchmark(protocol: str, data: str | Path | None) -> tuple[Benchmark, Path]:
    try:
        spec = benchmark(protocol)
    except InputError as error:
        if Path(protocol).exists():
            raise InputError(
                f"{protocol}: a source without a target; give both, labelled: "
                "osda benchmark SOURCE TARGET"
            ) from None
        raise InputError(
            f"{error}; and {DEMO}, which needs no data; or give a source and a target of your own"
        ) from None
    if data is None:
        raise InputError(
            f"--data: say where {spec.title} is: a folder of feature files "
            f"({_slug(next(iter(spec.domains)))}.npz, ...) or of image folders"
        )
    if not Path(data).is_dir():
        raise InputError(
            f"--data {data}: no such folder; give the one that holds the domains of {spec.title}"
        )
    return spec, Path(data)


def _feature_files(spec: Benchmark, folder: Path) -> dict[str, Path]:
    """Return the feature file of each domain that has one."""
    by_plain = {plain_name(domain): domain for domain in spec.domains}
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        domain = by_plain.get(plain_name(path.stem))
        if domain is None or path.suffix.lower() not in _SUFFIXES or not path.is_file():
            continue
        if domain in found:
            raise InputError(
                f"{folder}: {found[domain].name} and {path.name} are both {domain}; keep one"
            )
        found[domain] = path
    return found


def _image_folders(spec: Benchmark, folder: Path) -> dict[str, Any]:
    try:
        return dict(find_domains(spec.name, folder))
    except InputError:
        raise InputError(
            f"{folder}: neither a feature file ({_slug(next(iter(spec.domains)))}.npz, .parquet or "
            f".csv) nor an image folder of a domain of {spec.title} ({spec.layout})"
        ) from None


def _refuse_options(why: str, columns: TableColumns | None, images: ImageOptions | None) -> None:
    """Raise an `InputError` if an option was given that this data has no use for."""
    names = {"backbone": "--backbone", "weights": "--weights", "size": "--image-size"}
    names |= {"strict": "--strict", "label": "--label-column", "drop": "--drop"}
    for options in filter(None, (columns, images)):
        for name, option in (names | {"features": "--features-key"}).items():
            if getattr(options, name, None) != getattr(type(options)(), name, None):
                raise InputError(f"{option}: {why}; leave it out")


def _choose(title: str, known: dict[str, Any], wanted: Sequence[str] | None) -> tuple[str, ...]:
    by_plain = {plain_name(name): name for name in known}
    for name in wanted or ():
        if plain_name(name) not in by_plain:
            raise InputError(f"--task {name}: {title} has no such task, but {', '.join(known)}")
    return tuple(dict.fromkeys(by_plain[plain_name(name)] for name in wanted or known))


def _slug(domain: str) -> str:
    return domain.lower().replace(" ", "-")


# Reading --------------------------------------------------------------------------------------


def _read_demo(task: str, warnings: list[str] | None = None) -> OpenSetTask:
    return load_digits_task(DEMO_SHIFTS[task])


def _read_features(
    task: str,
    name: str,
    files: dict[str, tuple[Path, Path]],
    columns: TableColumns,
    warnings: list[str] | None = None,
) -> OpenSetTask:
    """Read two tables, and apply the protocol of a benchmark."""
    spec, (source_file, target_file) = benchmark(name), files[task]
    source, target = read_domains(source_file, target_file, columns)
    assert source.labels is not None
    source_labels = spec.spelt(source.labels)
    target_labels = spec.spelt(table_truth(target_file, columns, len(target)))
    unknown = spec.unknown
    if spec.others_unknown:
        unknown += tuple(n for n in np.unique(target_labels).tolist() if n not in spec.classes)
    missing = [f"the class {label!r}" for label in sorted({*spec.known} - {*source_labels})]
    no_unknown = [] if np.isin(target_labels, unknown).any() else ["an unknown class"]
    for path, lacking, labels in (
        (source_file, missing, source_labels),
        (target_file, no_unknown, target_labels),
    ):
        if lacking:
            raise InputError(
                f"{path}: no row of {lacking[0]}, which {spec.title} wants; its labels are such as "
                f"{str(labels[0])!r} (--label-column says where they are)"
            )
    split = ClassSplit(known=spec.known, unknown=unknown)
    return open_set_task((source.X, source_labels), (target.X, target_labels), split)


def table_truth(path: Path, columns: TableColumns, n_rows: int) -> npt.NDArray[np.str_]:
    """Read the labels of a target, for the evaluator: one for each row of features."""
    labels = read_truth(path, columns).labels
    if len(labels) != n_rows:
        raise InputError(f"{path}: {len(labels)} labels for {n_rows} rows of features")
    return labels


def _read_images(
    task: str,
    name: str,
    pairs: dict[str, tuple[str, str]],
    folder: Path,
    options: ImageOptions,
    recipe: Recipe,
    warnings: list[str] | None = None,
    progress: CountingProgress | None = None,
) -> OpenSetTask:
    """List the images of a task and get their features; broken images are left out."""
    source, target, truth = benchmark_task_with_truth(name, folder, *pairs[task])
    tell = progress or (lambda *_: None)
    _, extraction = features_of((source, target), options, tell, recipe=recipe)
    if extraction.broken and warnings is not None:
        first = extraction.broken[0]
        line = f"{first.path}: {first.reason} ({len(extraction.broken)} broken images in all)"
        warnings.append(f"{task}: left out {line}")
    rows, n_source = extraction.rows, len(source)
    is_source = rows < n_source
    assert source.labels is not None
    sources = extraction.X[is_source], source.labels[rows[is_source]]
    targets = extraction.X[~is_source], truth.labels[rows[~is_source] - n_source]
    known = benchmark(name).known
    unknown = tuple(sorted({*truth.labels.tolist()} - {*known}))
    return open_set_task(sources, targets, ClassSplit(known, unknown))


def digest(value: Any) -> str:
    """Return a hash of plain values."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _task_digest(task: OpenSetTask) -> str:
    """Return a hash of the rows and labels of a task."""
    state = hashlib.sha256()
    for array in (task.source_features, task.target_features):
        state.update(str(array.shape).encode())
        state.update(np.ascontiguousarray(array).data)
    for labels in (task.source_labels, task.target_truth):
        state.update(json.dumps(labels.tolist()).encode())
    return state.hexdigest()
