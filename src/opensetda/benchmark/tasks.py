"""The tasks of a benchmark, from feature files, image folders or the embedded digits.

Target labels are read here, for the protocol (which rows are there, and the true share of
unknowns), and leave as `OpenSetTask.target_truth`; `grid` gives them to the evaluator only.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.benchmarks.catalogue import (
    BENCHMARKS,
    Benchmark,
    benchmark,
    find_domains,
    plain_name,
)
from opensetda.data.benchmarks.protocols import ClassSplit, OpenSetTask, open_set_task
from opensetda.data.tables.loading import TableColumns, read_domains, read_truth
from opensetda.errors import InputError
from opensetda.runs.request import ImageOptions
from opensetda.system.files import file_record

CountingProgress = Callable[[int, int], None]

DEMO = "demo"
SUFFIXES = (".npz", ".parquet", ".csv")

# The published protocols have these directions only; elsewhere every ordered pair is a task.
_DIRECTIONS = {
    "visda-17": (("train", "validation"),),
    "syn2real-o": (("train", "validation"),),
    "digits": (("svhn", "mnist"), ("usps", "mnist"), ("mnist", "usps")),
}
# How the embedded digits of scikit-learn are altered.
_DEMO_SHIFTS = {
    "mnist-digits": "none",
    "mnist-rotated": "rotated",
    "mnist-noise": "noise",
    "mnist-background": "background",
}


class TaskSet(ABC):
    """Some tasks of one benchmark; small enough to be sent to every worker.

    Attributes
    ----------
    name : str
        The benchmark.
    tasks : tuple of str
        The tasks, for example "amazon-dslr": source, then target.
    """

    name: str
    tasks: tuple[str, ...]

    @property
    def warnings(self) -> Sequence[str]:
        """What a person should know of the data, one line each."""
        return ()

    @abstractmethod
    def load(self, task: str) -> OpenSetTask:
        """Read a task."""

    @abstractmethod
    def task_fingerprint(self, task: str) -> str:
        """Return what tells the data of one task from any other."""

    def fingerprint(self) -> str:
        """Return what tells the data of all tasks from any other."""
        return digest({task: self.task_fingerprint(task) for task in self.tasks})


@dataclass(frozen=True)
class DemoTasks(TaskSet):
    """The embedded digits, as they are and under shifts: nothing to download."""

    tasks: tuple[str, ...] = tuple(_DEMO_SHIFTS)
    name: str = DEMO

    def load(self, task: str) -> OpenSetTask:
        """Read a task."""
        from opensetda.data.benchmarks.protocols import digit_task

        return digit_task(_DEMO_SHIFTS[task])

    def task_fingerprint(self, task: str) -> str:
        """Return what tells the data of one task from any other."""
        return _demo_digest(task)


@cache
def _demo_digest(task: str) -> str:
    return digest([DEMO, task, task_digest(DemoTasks().load(task))])


@dataclass(frozen=True)
class FeatureFileTasks(TaskSet):
    """Domains as feature files.

    Attributes
    ----------
    pairs : dict of str to (str, str)
        The domains of each task.
    files : dict of str to Path
        The file of each domain.
    columns : TableColumns
        What is where in them.
    """

    name: str
    tasks: tuple[str, ...]
    pairs: dict[str, tuple[str, str]]
    files: dict[str, Path]
    columns: TableColumns

    def load(self, task: str) -> OpenSetTask:
        """Read two tables, and apply the protocol of the benchmark."""
        spec = benchmark(self.name)
        source_file, target_file = (self.files[domain] for domain in self.pairs[task])
        source, target = read_domains(source_file, target_file, self.columns)
        truth = read_truth(target_file, self.columns)
        if len(truth.labels) != len(target):
            raise InputError(
                f"{target_file}: {len(truth.labels)} labels for {len(target)} rows of features"
            )
        source_labels, target_labels = _spelt(spec, source.labels), _spelt(spec, truth.labels)
        split = _split(spec, target_labels)
        missing = sorted({*split.known} - {*source_labels.tolist()})
        if missing:
            raise _lacks(spec, source_file, f"the class {missing[0]!r}", source_labels)
        if not np.isin(target_labels, split.unknown).any():
            raise _lacks(spec, target_file, "an unknown class", target_labels)
        return open_set_task((source.X, source_labels), (target.X, target_labels), split)

    def task_fingerprint(self, task: str) -> str:
        """Return what tells the data of one task from any other."""
        files = [_file_digest(self.files[domain]) for domain in self.pairs[task]]
        return digest([self.name, task, files, asdict(self.columns)])


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
        A folder of feature files, one a domain (``amazon.npz``, ``.parquet`` or ``.csv``), or
        of image folders. "demo" needs none.
    tasks : sequence of str, optional
        Some of the tasks, for example "amazon-dslr"; by default those of the benchmark.
    columns : TableColumns, optional
        What is where in feature files.
    images : ImageOptions, optional
        How images become features.
    progress : callable, optional
        Told how many images are done, and of all, while features are computed.
    """
    columns, images = columns or TableColumns(), images or ImageOptions()
    if plain_name(protocol) == DEMO:
        _refuse_options("the demo has data of its own", columns, images)
        if data is not None:
            raise InputError(f"--data {data}: the demo has data of its own; leave --data out")
        return DemoTasks(_choose(DEMO, {name: name for name in _DEMO_SHIFTS}, tasks))
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


def benchmark_names() -> tuple[str, ...]:
    """Return the names that `find_tasks` knows."""
    return (*BENCHMARKS, DEMO)


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
    from opensetda.benchmark.image_tasks import ImageTasks

    return ImageTasks.prepared(spec.name, pairs, data, images, progress)


def _feature_files(spec: Benchmark, folder: Path) -> dict[str, Path]:
    """Return the feature file of each domain that has one."""
    by_plain = {plain_name(domain.name): domain.name for domain in spec.domains}
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        domain = by_plain.get(plain_name(path.stem))
        if domain is None or path.suffix.lower() not in SUFFIXES or not path.is_file():
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


def _spelt(spec: Benchmark, labels: npt.NDArray[Any] | None) -> npt.NDArray[np.str_]:
    """Spell classes as the benchmark does."""
    assert labels is not None
    names, which = np.unique(labels, return_inverse=True)
    spelt = np.array([spec.class_of(name) or name for name in names.tolist()], dtype=np.str_)
    return spelt[which]


def _split(spec: Benchmark, target_labels: npt.NDArray[np.str_]) -> ClassSplit:
    unknown = spec.unknown
    if spec.others_unknown:
        unknown += tuple(n for n in np.unique(target_labels).tolist() if n not in spec.classes)
    return ClassSplit(known=spec.known, unknown=unknown)


def _lacks(spec: Benchmark, path: Path, what: str, labels: npt.NDArray[np.str_]) -> InputError:
    return InputError(
        f"{path}: no row of {what}, which {spec.title} wants; its labels are such as "
        f"{str(labels[0])!r} (--label-column says where they are)"
    )


# What tells data apart ----------------------------------------------------------------------


def digest(value: Any) -> str:
    """Return a hash of plain values."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def task_digest(task: OpenSetTask) -> str:
    """Return a hash of the rows and labels of a task."""
    state = hashlib.sha256()
    for array in (task.source_features, task.target_features):
        state.update(str(array.shape).encode())
        state.update(np.ascontiguousarray(array).data)
    for labels in (task.source_labels, task.target_truth):
        state.update(json.dumps(labels.tolist()).encode())
    return state.hexdigest()


def _file_digest(path: Path) -> str:
    status = path.stat()
    return _digest_of(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _digest_of(path: Path, size: int, changed: int) -> str:
    return str(file_record(path)["sha256"])
