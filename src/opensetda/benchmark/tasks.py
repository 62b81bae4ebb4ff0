"""Find the data of a benchmark, and choose its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

from opensetda.benchmark.task_sets import (
    DEMO,
    DEMO_SHIFTS,
    CountingProgress,
    DemoTasks,
    FeatureFileTasks,
    ImageTasks,
    TaskSet,
)
from opensetda.data.benchmarks.catalogue import Benchmark, benchmark, find_domains, plain_name
from opensetda.data.tables.loading import TableColumns
from opensetda.errors import InputError
from opensetda.runs.request import ImageOptions

_SUFFIXES = (".npz", ".parquet", ".csv")

# The published protocols have these directions only; elsewhere every ordered pair is a task.
_DIRECTIONS = {
    "visda-17": (("train", "validation"),),
    "syn2real-o": (("train", "validation"),),
    "digits": (("svhn", "mnist"), ("usps", "mnist"), ("mnist", "usps")),
}


def find_tasks(
    protocol: str,
    data: str | Path | None = None,
    tasks: Sequence[str] | None = None,
    columns: TableColumns | None = None,
    images: ImageOptions | None = None,
    progress: CountingProgress | None = None,
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
    """
    columns, images = columns or TableColumns(), images or ImageOptions()
    if plain_name(protocol) == DEMO:
        _refuse_options("the demo has data of its own", columns, images)
        if data is not None:
            raise InputError(f"--data {data}: the demo has data of its own; leave --data out")
        return DemoTasks(_choose(DEMO, {name: name for name in DEMO_SHIFTS}, tasks))
    try:
        spec = benchmark(protocol)
    except InputError as error:
        raise InputError(f"{error}; and {DEMO}, which needs no data") from None
    if data is None:
        raise InputError(
            f"--data: say where {spec.title} is: a folder of feature files "
            f"({_file_name(spec.domains[0].name)}, ...) or of image folders"
        )
    pairs = {
        f"{_slug(source.name)}-{_slug(target.name)}": (source.name, target.name)
        for source, target in permutations(spec.domains, 2)
    }
    usual = [f"{a}-{b}" for a, b in _DIRECTIONS.get(spec.name, ())] or list(pairs)
    names = _choose(spec.title, pairs, tasks) if tasks else tuple(usual)
    pairs = {name: pairs[name] for name in names}
    data = Path(data)
    if not data.is_dir():
        raise InputError(
            f"--data {data}: no such folder; give the one that holds the domains of {spec.title}"
        )
    files = _feature_files(spec, data)
    if files:
        _refuse_options(f"{data} holds feature files, not images", None, images)
        return _file_tasks(spec, data, pairs, files, columns)
    _refuse_options(f"{data} holds images, not feature files", columns, None)
    return _image_tasks(spec, data, pairs, images, progress)


def _file_tasks(
    spec: Benchmark,
    data: Path,
    pairs: dict[str, tuple[str, str]],
    files: dict[str, Path],
    columns: TableColumns,
) -> TaskSet:
    needed = list(dict.fromkeys(domain for pair in pairs.values() for domain in pair))
    for domain in needed:
        if domain not in files:
            raise InputError(
                f"{data / _file_name(domain)}: missing; {spec.title} wants a feature file "
                f"(.npz, .parquet or .csv) of {', '.join(needed)}, or name tasks with --task"
            )
    found = {domain: files[domain] for domain in needed}
    return FeatureFileTasks(spec.name, tuple(pairs), pairs, found, columns)


def _image_tasks(
    spec: Benchmark,
    data: Path,
    pairs: dict[str, tuple[str, str]],
    images: ImageOptions,
    progress: CountingProgress | None,
) -> TaskSet:
    try:
        folders = find_domains(spec.name, data)
    except InputError:
        raise InputError(
            f"{data}: neither a feature file ({_file_name(spec.domains[0].name)}, .parquet or "
            f".csv) nor an image folder of a domain of {spec.title} ({spec.layout})"
        ) from None
    for domain in dict.fromkeys(domain for pair in pairs.values() for domain in pair):
        if folders[domain] is None:
            raise InputError(
                f"{data / domain}: missing; {spec.title} wants a folder of its images, or name "
                "tasks with --task"
            )
    return ImageTasks.prepared(spec.name, pairs, data, images, progress)


def _feature_files(spec: Benchmark, folder: Path) -> dict[str, Path]:
    """Return the feature file of each domain that has one."""
    by_plain = {plain_name(domain.name): domain.name for domain in spec.domains}
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


def _refuse_options(why: str, columns: TableColumns | None, images: ImageOptions | None) -> None:
    """Raise an `InputError` if an option was given that this data has no use for."""
    given: dict[str, object] = {}
    if images is not None:
        given |= {"--backbone": images.backbone, "--weights": images.weights}
        given |= {"--image-size": images.size, "--strict": images.strict}
    if columns is not None:
        usual = TableColumns()
        given |= {"--label-column": columns.label != usual.label, "--drop": columns.drop}
        given |= {"--features-key": columns.features != usual.features}
    for option, value in given.items():
        if value:
            raise InputError(f"{option}: {why}; leave it out")


def _choose(title: str, known: dict[str, Any], wanted: Sequence[str] | None) -> tuple[str, ...]:
    if not wanted:
        return tuple(known)
    by_plain = {plain_name(name): name for name in known}
    chosen = []
    for name in wanted:
        found = by_plain.get(plain_name(name))
        if found is None:
            raise InputError(f"--task {name}: {title} has no such task, but {', '.join(known)}")
        chosen.append(found)
    return tuple(dict.fromkeys(chosen))


def _slug(domain: str) -> str:
    return domain.lower().replace(" ", "-")


def _file_name(domain: str) -> str:
    return f"{_slug(domain)}.npz"
