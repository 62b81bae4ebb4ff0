"""Open-set tasks: which classes are known, unknown or left out, and at which openness.

Of any two domains, or of published benchmarks in ``catalogue.toml``, with their folders.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.images.loading import ImageList, read_images
from opensetda.data.tables.loading import TruthTable
from opensetda.errors import InputError, choice
from opensetda.rows import FloatArray


@dataclass(frozen=True)
class ClassSplit:
    """Known classes, which the source labels, and unknown ones, which only the target has."""

    known: tuple[Any, ...]
    unknown: tuple[Any, ...]


@dataclass(frozen=True)
class OpenSetTask:
    """Source and target of an open-set task: labelled rows of known classes, and rows of all.

    `target_truth` are the classes of the target, for evaluation only; never to be given to a
    method. Of images, the files behind the rows are kept, too, to train a backbone on.
    """

    source_features: FloatArray
    source_labels: npt.NDArray[Any]
    target_features: FloatArray
    target_truth: npt.NDArray[Any]
    split: ClassSplit
    source_files: tuple[str, ...] = ()
    target_files: tuple[str, ...] = ()

    @property
    def openness(self) -> float:
        """The true share of unknowns in the target, which a method in use cannot know."""
        return float(np.isin(self.target_truth, self.split.unknown).mean())


def open_set_split(classes: Iterable[Any], n_known: int, n_unknown: int) -> ClassSplit:
    """Split class names, in any order, by the alphabet: the first are known, the last unknown.

    The protocol of STA and ROS: on Office-31, ``open_set_split(names, 10, 11)`` leaves out 10.
    """
    ordered = sorted(set(classes))
    if n_known < 2 or n_unknown < 0 or n_known + n_unknown > len(ordered):
        asked = f"open_set_split: {n_known} known and {n_unknown} unknown of {len(ordered)} classes"
        raise InputError(f"{asked}; at least two are known, and there must be enough")
    return ClassSplit(tuple(ordered[:n_known]), tuple(ordered[len(ordered) - n_unknown :]))


def open_set_task(
    source: tuple[FloatArray, Any],
    target: tuple[FloatArray, Any],
    split: ClassSplit,
    files: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> OpenSetTask:
    """Apply a split to two whole domains, each of them (X, y), and to the files of their images.

    Of the source the known classes are kept, of the target the known and the unknown ones; the
    order of rows is kept.
    """
    (source_X, source_y), (target_X, target_y) = source, target
    source_y = np.asarray(source_y)
    target_y = np.asarray(target_y)
    source_rows = np.flatnonzero(np.isin(source_y, split.known))
    target_rows = np.flatnonzero(np.isin(target_y, split.known + split.unknown))
    if missing := sorted({*split.known} - {*source_y[source_rows].tolist()}):
        raise InputError(f"open_set_task: the source has no row of the known class {missing[0]!r}")
    if not len(target_rows):
        raise InputError("open_set_task: the target has no row of a known or unknown class")
    return OpenSetTask(
        source_features=source_X[source_rows],
        source_labels=source_y[source_rows],
        target_features=target_X[target_rows],
        target_truth=target_y[target_rows],
        split=split,
        source_files=_chosen(files[0], source_rows),
        target_files=_chosen(files[1], target_rows),
    )


def _chosen(files: Sequence[str], rows: npt.NDArray[np.intp]) -> tuple[str, ...]:
    return tuple(files[row] for row in rows) if files else ()


def with_openness(task: OpenSetTask, openness: float, seed: int) -> OpenSetTask:
    """Drop target rows until the share of unknowns is `openness`.

    As many rows are kept as the share allows, chosen at random: either all known rows or all
    unknown ones. The known classes keep their proportions and the rows their order. The share is
    in [0, 1) and rounded to whole rows; 0 makes a closed-set task.
    """
    if not 0 <= openness < 1:
        raise InputError(f"with_openness: openness is {openness}, but must be in [0, 1)")
    known = np.flatnonzero(np.isin(task.target_truth, task.split.known))
    unknown = np.flatnonzero(np.isin(task.target_truth, task.split.unknown))
    if not len(known) or (openness > 0 and not len(unknown)):
        raise InputError("with_openness: the target needs rows of known and of unknown classes")
    _, which, counts = np.unique(task.target_truth[known], return_inverse=True, return_counts=True)

    n_known = len(known)
    n_unknown = round(len(known) * openness / (1 - openness))
    if n_unknown > len(unknown):
        n_known = round(len(unknown) * (1 - openness) / openness)
        n_unknown = len(unknown)
    if n_known < len(counts):
        needed = f"openness {openness} and a row of each of {len(counts)} known classes"
        raise InputError(f"with_openness: {len(unknown)} unknown rows are too few for {needed}")
    rng = np.random.default_rng(seed)
    kept = [rng.choice(unknown, n_unknown, replace=False)]
    for index, size in enumerate(_proportional(counts, n_known)):
        kept.append(rng.choice(known[which == index], size, replace=False))
    rows = np.sort(np.concatenate(kept))
    X = task.target_features[rows]
    truth = task.target_truth[rows]
    files = _chosen(task.target_files, rows)
    return replace(task, target_features=X, target_truth=truth, target_files=files)


def _proportional(counts: npt.NDArray[np.intp], total: int) -> npt.NDArray[np.intp]:
    """Divide `total` rows in proportion to `counts`, with at least one for each."""
    quota = total * counts / counts.sum()
    sizes: npt.NDArray[np.intp] = np.maximum(1, np.floor(quota)).astype(np.intp)
    while sizes.sum() < total:
        sizes[np.argmax(quota - sizes)] += 1
    while sizes.sum() > total:
        sizes[np.argmax(np.where(sizes > 1, sizes - quota, -np.inf))] -= 1
    return sizes


@dataclass(frozen=True)
class Benchmark:
    """A published dataset with its open-set protocol, as ``catalogue.toml`` describes it.

    With `others_unknown`, every further class folder of the target is unknown, too. `tasks` are
    published pairs of domains; by default all. `published` has OS, OS* and perhaps UNK of the
    paper's table by method, in percent, averaged over the tasks.
    """

    name: str
    title: str
    urls: tuple[str, ...]
    layout: str
    domains: Mapping[str, int]
    known: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    others_unknown: bool = False
    tasks: tuple[str, ...] = ()
    published: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def classes(self) -> tuple[str, ...]:
        """All class folders of the protocol."""
        return (*self.known, *self.unused, *self.unknown)

    def spelt(self, labels: npt.NDArray[Any]) -> npt.NDArray[np.str_]:
        """Spell labels as the protocol does; others stay as they are."""
        names, which = np.unique(labels, return_inverse=True)
        own = {plain_name(name): name for name in self.classes}
        return np.array([own.get(plain_name(name), name) for name in names.tolist()])[which]


def plain_name(name: str) -> str:
    """Return a name without case, blanks and punctuation: "Real World" equals "Real_World"."""
    return re.sub(r"[\W_]+", "", name).lower()


def benchmark(name: str) -> Benchmark:
    """Return a benchmark by its name, or raise an `InputError` that lists the names."""
    for known, found in BENCHMARKS.items():
        if plain_name(known) == plain_name(name):
            return found
    raise InputError(f"{name}: no such benchmark; {choice(name, BENCHMARKS)}")


def find_domains(name: str, folder: str | Path) -> dict[str, Path | None]:
    """Find the folders of the domains, directly or inside a single subfolder."""
    spec = benchmark(name)
    folder = Path(folder)
    inside = _folders(folder) if folder.is_dir() else []
    for folders in (inside, _folders(inside[0]) if len(inside) == 1 else []):
        by_plain = {plain_name(path.name): path for path in folders}
        found = {domain: by_plain.get(plain_name(domain)) for domain in spec.domains}
        if any(found.values()):
            return found
    should = f"give a folder that holds {', '.join(spec.domains)} ({spec.layout})"
    raise InputError(f"{folder}: no domain of {spec.title} there; {should}")


def benchmark_task_with_truth(
    name: str, folder: str | Path, source_domain: str, target_domain: str
) -> tuple[ImageList, ImageList, TruthTable]:
    """Apply the protocol of a benchmark, for example "office-home", to its image folders.

    Returns labelled images of the source, images of the target without labels, and the classes
    of the target, for evaluation only.
    """
    spec = benchmark(name)
    domains = []
    found = {plain_name(own): path for own, path in find_domains(name, folder).items()}
    for domain in (source_domain, target_domain):
        path = found.get(plain_name(domain))
        if path is None:
            raise InputError(f"{folder}: no folder {domain!r}; {choice(domain, spec.domains)}")
        images = read_images(path, labelled=True)
        domains.append((images, spec.spelt(np.asarray(images.labels))))
    (source, labels), (target, truth) = domains
    unknown = spec.unknown
    if spec.others_unknown:
        unknown += tuple({*truth.tolist()} - {*spec.classes})
    source = replace(source, labels=labels).select(np.isin(labels, spec.known))
    rows = np.isin(truth, spec.known + unknown)
    target = replace(target, labels=None).select(rows)
    return source, target, TruthTable(truth[rows], target.ids, target.origin)


def _folders(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name[0] != "."]


def _read_catalogue() -> dict[str, Benchmark]:
    entries = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text("utf-8"))
    for entry in entries.values():
        entry.update({name: tuple(v) for name, v in entry.items() if isinstance(v, list)})
    return {name: Benchmark(name, **entry) for name, entry in entries.items()}


BENCHMARKS = _read_catalogue()
