"""Tasks of image folders: features by a backbone, kept in its cache.

The command's own process computes what the cache does not have; the workers then only read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from opensetda.backbones.cache import FeatureCache, default_cache_folder
from opensetda.backbones.extraction import extract
from opensetda.backbones.recipe import Recipe
from opensetda.backbones.registry import DEFAULT_BACKBONE, resolve
from opensetda.benchmark.tasks import TaskSet, digest, task_digest
from opensetda.data.benchmarks.catalogue import benchmark, benchmark_task_with_truth
from opensetda.data.benchmarks.protocols import ClassSplit, OpenSetTask, open_set_task
from opensetda.errors import InputError
from opensetda.runs.request import ImageOptions

CountingProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class ImageTasks(TaskSet):
    """Domains as folders of class folders.

    Attributes
    ----------
    pairs : dict of str to (str, str)
        The domains of each task.
    folder : Path
        The folder that holds them.
    recipe : Recipe
        How images become features.
    cache : Path
        Where the features are kept.
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
        cache = default_cache_folder() if options.cache is None else Path(options.cache)
        recipe = resolve(options.backbone or DEFAULT_BACKBONE, options.weights, options.size, cache)
        made = cls(name, tuple(pairs), pairs, folder.absolute(), recipe, cache, options.strict)
        for task in made.tasks:
            made.fingerprints[task] = digest([name, task, task_digest(made.load(task, progress))])
        return made

    @property
    def warnings(self) -> Sequence[str]:
        """Which images cannot be read."""
        return tuple(dict.fromkeys(self.notes))

    def load(self, task: str, progress: CountingProgress | None = None) -> OpenSetTask:
        """List the images of a task and get their features; broken images are left out."""
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
        """Return what tells the data of one task from any other."""
        return self.fingerprints[task]
