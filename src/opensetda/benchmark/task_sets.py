"""The data of a benchmark's tasks: embedded digits, feature files or image folders.

Target labels are read here, for the protocol (which rows belong to a task, and the true share of
unknowns), and leave as `OpenSetTask.target_truth`; `grid` passes them to the evaluator only.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from opensetda.data.benchmarks.catalogue import (
    Benchmark,
    benchmark,
    benchmark_task_with_truth,
)
from opensetda.data.benchmarks.protocols import ClassSplit, OpenSetTask, open_set_task
from opensetda.data.tables.loading import TableColumns, read_domains, read_truth
from opensetda.errors import InputError
from opensetda.runs.request import ImageOptions
from opensetda.system.files import file_record

if TYPE_CHECKING:
    from opensetda.backbones.recipe import Recipe

CountingProgress = Callable[[int, int], None]

DEMO = "demo"
# Shifts of the embedded digits of scikit-learn.
DEMO_SHIFTS = {
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
        """Warnings about the data, one line each."""
        return ()

    @abstractmethod
    def load(self, task: str) -> OpenSetTask:
        """Read a task."""

    @abstractmethod
    def task_fingerprint(self, task: str) -> str:
        """Return a hash of the data of a task."""


@dataclass(frozen=True)
class DemoTasks(TaskSet):
    """The embedded digits, unchanged and under shifts."""

    tasks: tuple[str, ...] = tuple(DEMO_SHIFTS)
    name: str = DEMO

    def load(self, task: str) -> OpenSetTask:
        """Read a task."""
        from opensetda.data.benchmarks.protocols import digit_task

        return digit_task(DEMO_SHIFTS[task])

    def task_fingerprint(self, task: str) -> str:
        """Return a hash of the data of a task."""
        return _demo_digest(task)


@cache
def _demo_digest(task: str) -> str:
    return digest([DEMO, task, _task_digest(DemoTasks().load(task))])


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
        Names of the columns or arrays.
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
        """Return a hash of the data of a task."""
        files = [_file_digest(self.files[domain]) for domain in self.pairs[task]]
        return digest([self.name, task, files, asdict(self.columns)])


@dataclass(frozen=True)
class ImageTasks(TaskSet):
    """Domains as folders of class folders; features by a backbone, kept in its cache.

    The command's own process computes features that are not in the cache; workers only read.

    Attributes
    ----------
    pairs : dict of str to (str, str)
        The domains of each task.
    folder : Path
        The folder that holds them.
    recipe : Recipe
        How images become features.
    cache : Path
        Folder of the feature cache.
    strict : bool
        Whether a broken image is an error; otherwise it is left out.
    """

    name: str
    tasks: tuple[str, ...]
    pairs: dict[str, tuple[str, str]]
    folder: Path
    recipe: Recipe
    cache: Path
    strict: bool = False
    notes: list[str] = field(default_factory=list)
    fingerprints: dict[str, str] = field(default_factory=dict)

    @classmethod
    def prepared(
        cls,
        name: str,
        pairs: dict[str, tuple[str, str]],
        folder: Path,
        options: ImageOptions,
        progress: CountingProgress | None = None,
    ) -> Self:
        """Compute the features of all tasks that are not in the cache yet."""
        from opensetda.backbones.cache import default_cache_folder
        from opensetda.backbones.registry import DEFAULT_BACKBONE, resolve

        cache = default_cache_folder() if options.cache is None else Path(options.cache)
        recipe = resolve(options.backbone or DEFAULT_BACKBONE, options.weights, options.size, cache)
        made = cls(name, tuple(pairs), pairs, folder.absolute(), recipe, cache, options.strict)
        for task in made.tasks:
            made.fingerprints[task] = digest([name, task, _task_digest(made.load(task, progress))])
        return made

    @property
    def warnings(self) -> Sequence[str]:
        """Which images cannot be read."""
        return tuple(dict.fromkeys(self.notes))

    def load(self, task: str, progress: CountingProgress | None = None) -> OpenSetTask:
        """List the images of a task and get their features; broken images are left out."""
        from opensetda.backbones.cache import FeatureCache
        from opensetda.backbones.extraction import extract

        source, target, truth = benchmark_task_with_truth(self.name, self.folder, *self.pairs[task])
        paths = [*source.paths, *target.paths]
        ids = [*source.ids.tolist(), *target.ids.tolist()]
        with FeatureCache(self.cache, self.recipe.key, self.recipe.width) as cache:
            extraction = extract(self.recipe, ids, paths, cache, progress)
        if extraction.broken:
            first = extraction.broken[0]
            line = f"{first.path}: {first.reason} ({len(extraction.broken)} broken images in all)"
            if self.strict:
                raise InputError(f"{line}; repair or remove it, or leave out --strict")
            self.notes.append(f"{task}: left out {line}")
        rows, n_source = extraction.rows, len(source)
        is_source = rows < n_source
        assert source.labels is not None
        labels = source.labels[rows[is_source]], truth.labels[rows[~is_source] - n_source]
        spec = benchmark(self.name)
        unknown = tuple(sorted({*truth.labels.tolist()} - {*spec.known}))
        return open_set_task(
            (extraction.X[is_source], labels[0]),
            (extraction.X[~is_source], labels[1]),
            ClassSplit(spec.known, unknown),
        )

    def task_fingerprint(self, task: str) -> str:
        """Return a hash of the data of a task."""
        return self.fingerprints[task]


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


# Hashes -------------------------------------------------------------------------------------


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


def _file_digest(path: Path) -> str:
    status = path.stat()
    return _digest_of(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _digest_of(path: Path, size: int, changed: int) -> str:
    return str(file_record(path)["sha256"])
