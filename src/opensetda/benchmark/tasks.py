"""The tasks of a benchmark, on embedded digits, feature files or image folders, or of own data.

Target labels are read here, for the protocol (which rows belong to a task, and the true share of
unknowns), and leave as `OpenSetTask.target_truth`; `grid` passes them to the evaluator only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.benchmarks.digits import load_digits_task
from opensetda.data.benchmarks.protocols import (
    Benchmark,
    ClassSplit,
    OpenSetTask,
    benchmark,
    benchmark_task_with_truth,
    find_domains,
    open_set_task,
    plain_name,
)
from opensetda.data.images.loading import ImageList, read_images
from opensetda.data.names import printable, twins
from opensetda.data.tables.formats import listing
from opensetda.data.tables.loading import TableColumns, read_truth
from opensetda.errors import InputError
from opensetda.progress import CountingProgress
from opensetda.runs.options import FitRequest, ImageOptions, TableOptions
from opensetda.runs.pictures import many_images
from opensetda.system import default_cache_folder
from opensetda.system.files import near
from opensetda.usecases.read_domains import (
    features_of,
    image_columns,
    is_image_request,
    load_tables,
)

DEMO = "demo"
# Shifts of the embedded digits of scikit-learn.
DEMO_SHIFTS = {"mnist-digits": "none"}
DEMO_SHIFTS |= {f"mnist-{shift}": shift for shift in ("rotated", "noise", "background")}
_SUFFIXES = (".npz", ".parquet", ".csv")

Labelled = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""The rows of a domain, and their labels."""
Files = tuple[Sequence[str], Sequence[str]]
"""Of both domains, the images behind the rows; none for tables."""


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
    images: ImageOptions = field(default_factory=ImageOptions)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(self.fingerprints)


def read_all(
    name: str,
    tasks: Iterable[str],
    read: Callable[..., OpenSetTask],
    images: ImageOptions | None = None,
    **first: Any,
) -> TaskSet:
    """Read all tasks once, which finds errors in the data; `first` are arguments of that time."""
    images = images or ImageOptions()
    warnings: list[str] = []
    prints = {
        task: digest([name, task, _task_digest(read(task, warnings=warnings, **first))])
        for task in tasks
    }
    return TaskSet(name, read, prints, tuple(dict.fromkeys(warnings)), images)


def find_tasks(
    protocol: str,
    data: str | Path | None = None,
    tasks: Sequence[str] | None = None,
    tables: TableOptions | None = None,
    images: ImageOptions | None = None,
    progress: CountingProgress | None = None,
    only_first: bool = False,
) -> TaskSet:
    """Find the data of a benchmark; an `InputError` names what is missing.

    `protocol` is a key of `protocols.BENCHMARKS`, or "demo", which needs no data; `data` a folder
    of feature files, one per domain (``amazon.npz``, ``.parquet`` or ``.csv``), or of image
    folders. `tasks` are some of the tasks, for example "amazon-dslr". `progress` is called with
    the number of images done, and of all. With `only_first`, only the first task is read.
    """
    tables = tables or TableOptions()
    images = images or ImageOptions()
    end = 1 if only_first else None
    if plain_name(protocol) == DEMO:
        given = data, tables, replace(images, cache=None)
        if given != (None, TableOptions(), ImageOptions()):
            raise InputError("demo: it has data of its own; leave out --data and options of data")
        return read_all(DEMO, _choose(DEMO, DEMO_SHIFTS, tasks)[:end], _read_demo)
    try:
        spec = benchmark(protocol)
    except InputError as error:
        more = f"and {DEMO}, which needs no data; or give a source and a target of your own"
        raise InputError(f"{error}; {more}, both labelled") from None
    if data is None or not Path(data).is_dir():
        example = f"feature files ({_slug(next(iter(spec.domains)))}.npz, ...) or image folders"
        raise InputError(f"--data {data or 'FOLDER'}: no such folder; give that of {example}")
    pairs = {f"{_slug(a)}-{_slug(b)}": (a, b) for a, b in permutations(spec.domains, 2)}
    chosen = _choose(spec.title, pairs, tasks or spec.tasks)[:end]
    places = _places(spec, Path(data))
    requests = {}
    # The command's own process computes features that are not in the cache; workers only read.
    images = replace(images, cache=images.cache or str(default_cache_folder()))
    for task in chosen:
        for domain in pairs[task]:
            if domain not in places:
                wanted = f"a folder of images, or a feature file ({_slug(domain)}.npz, ...)"
                raise InputError(f"{Path(data) / domain}: missing; give {wanted}, or name --task")
        first, second = (places[domain] for domain in pairs[task])
        requests[task] = _pair_request(first, second, tables, images)
    folder = Path(data).absolute()
    read = partial(_read, name=spec.name, folder=folder, pairs=pairs, requests=requests)
    return read_all(spec.name, chosen, read, images, progress=progress)


def _pair_request(
    source: Path,
    target: Path,
    tables: TableOptions,
    images: ImageOptions,
    command: tuple[str, ...] = (),
) -> FitRequest:
    """Return what the readers of `fit` want to know of two domains."""
    # A class may be called "unknown" as long as it is not known.
    return FitRequest(
        identity="",
        source=str(source.absolute()),
        target=str(target.absolute()),
        tables=tables,
        images=images,
        command=command,
        unknown_label="",
    )


def _places(spec: Benchmark, folder: Path) -> dict[str, Path]:
    """Return the feature file of each domain that has one, or else the image folders."""
    by_plain = {plain_name(domain): domain for domain in spec.domains}
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        domain = by_plain.get(plain_name(path.stem))
        if domain is not None and path.suffix.lower() in _SUFFIXES and path.is_file():
            if domain in found:
                raise InputError(f"{found[domain]}: {path.name} is {domain}, too; keep one")
            found[domain] = path
    if found:
        return found
    return {name: path for name, path in find_domains(spec.name, folder).items() if path}


def _choose(title: str, known: dict[str, Any], wanted: Sequence[str] | None) -> tuple[str, ...]:
    by_plain = {plain_name(name): name for name in known}
    for name in wanted or ():
        if plain_name(name) not in by_plain:
            raise InputError(f"--task {name}: {title} has no such task, but {', '.join(known)}")
    return tuple(dict.fromkeys(by_plain[plain_name(name)] for name in wanted or known))


def _slug(domain: str) -> str:
    return domain.lower().replace(" ", "-")


def own_task(
    source: str | Path,
    target: str | Path,
    tables: TableOptions | None = None,
    images: ImageOptions | None = None,
    known: Sequence[str] = (),
    progress: CountingProgress | None = None,
    command: tuple[str, ...] = (),
) -> TaskSet:
    """Read two labelled domains; images become features, which are kept in the cache.

    Of the source, the classes `known` are kept, at least two, by default all; all others of the
    target are unknown. An error about columns corrects the `command`, what was typed.
    """
    names = [printable(Path(path).resolve().stem) for path in (source, target)]
    name = "-".join(re.sub(r"[^\w.]+", "-", own).strip("-").lower() for own in names)
    request = _pair_request(
        Path(source),
        Path(target),
        tables=tables or TableOptions(),
        images=images or ImageOptions(),
        command=command,
    )
    read = partial(_read_own, request=request, known=tuple(dict.fromkeys(known)))
    return read_all(name, (name,), read, images, progress=progress)


# Reading --------------------------------------------------------------------------------------


def _read_demo(task: str, warnings: list[str] | None = None) -> OpenSetTask:
    return load_digits_task(DEMO_SHIFTS[task])


def _labelled(
    request: FitRequest,
    list_images: Callable[[], tuple[ImageList, ImageList, Any]],
    notes: list[str],
    progress: CountingProgress | None,
) -> tuple[Labelled, Labelled, Files]:
    """Read both domains without labels of the target, then these for the evaluator.

    `list_images` returns source, target, and the latter with labels. Broken images are left out.
    """
    if not is_image_request(request):
        if request.images.finetune:
            raise InputError(f"--finetune: {near(request.source)} is a table; give image folders")
        data = load_tables(request)
        path = near(request.target)
        truth = read_truth(path, TableColumns(label=request.tables.label or "y")).labels
        if len(truth) != len(data.target):
            raise InputError(f"{path}: {len(truth)} labels for {len(data.target)} rows of features")
        notes.extend((*data.notes, *data.warnings))
        return (data.source, data.labels), (data.target, truth), ((), ())
    source, target, with_truth = list_images()
    silent: CountingProgress = lambda done, total: None  # noqa: E731
    _, extraction = features_of((source, target), request.images, progress or silent)
    if extraction.broken:
        broken = extraction.broken[0]
        n = many_images(len(extraction.broken))
        notes.append(f"left out {n}, the first is {broken.path}: {broken.reason}")
    assert source.labels is not None, "read as labelled"
    labels = np.concatenate([source.labels, with_truth.labels])[extraction.rows]
    X = extraction.X
    n_source = int((extraction.rows < len(source)).sum())
    paths = [*source.paths, *target.paths]
    files = [paths[row] for row in extraction.rows.tolist()]
    first = slice(n_source)
    second = slice(n_source, None)
    return (X[first], labels[first]), (X[second], labels[second]), (files[first], files[second])


def _read(
    task: str,
    name: str,
    folder: Path,
    pairs: dict[str, tuple[str, str]],
    requests: dict[str, FitRequest],
    warnings: list[str] | None = None,
    progress: CountingProgress | None = None,
) -> OpenSetTask:
    """Read two domains, and apply the protocol of a benchmark."""
    spec = benchmark(name)
    request = requests[task]
    notes = [] if warnings is None else warnings
    first, second = pairs[task]
    list_images = partial(benchmark_task_with_truth, name, folder, first, second)
    (source, labels), (target, truth), files = _labelled(request, list_images, notes, progress)
    labels = spec.spelt(labels)
    truth = spec.spelt(truth)
    unknown = spec.unknown
    if spec.others_unknown:
        unknown += tuple(n for n in np.unique(truth).tolist() if n not in spec.classes)
    missing = [f"the class {label!r}" for label in sorted({*spec.known} - {*labels})]
    if missing or not np.isin(truth, unknown).any():
        path, example = (request.source, labels) if missing else (request.target, truth)
        problem = f"no sample of {(missing or ['an unknown class'])[0]}"
        advice = f"its labels (--label-column) are such as {str(example[0])!r}"
        raise InputError(f"{near(path)}: {problem}, which {spec.title} wants; {advice}")
    split = ClassSplit(spec.known, unknown)
    return open_set_task((source, labels), (target, truth), split, files)


def _read_own(
    task: str,
    request: FitRequest,
    known: tuple[str, ...],
    warnings: list[str] | None = None,
    progress: CountingProgress | None = None,
) -> OpenSetTask:
    """Read both domains, and divide their classes."""
    notes = [] if warnings is None else warnings

    def list_images() -> tuple[ImageList, ImageList, ImageList]:
        columns = image_columns(request.tables)
        paths = (near(request.source), near(request.target))
        first, second = (read_images(path, columns, labelled=True) for path in paths)
        notes.extend((*first.notes, *second.notes))
        return first, second, second

    source, target, files = _labelled(request, list_images, notes, progress)
    classes, true_classes = (np.unique(labels).tolist() for _, labels in (source, target))
    split = _split(near(request.target), known, classes, true_classes)
    notes.extend(twins({*classes, *true_classes}))
    if not split.unknown:
        place = printable(str(near(request.target)))
        problem = "no class that is not known, so UNK and HOS are not defined"
        notes.append(f"{place}: {problem}; name the known classes with --known")
    return open_set_task(source, target, split, files)


def _split(
    target: Path, wanted: tuple[str, ...], classes: list[str], true_classes: list[str]
) -> ClassSplit:
    for name in wanted:
        if name not in classes:
            raise InputError(f"--known {name}: no class of the source, but {listing(classes)}")
    known = tuple(sorted(wanted or classes))
    if len(known) < 2:
        raise InputError(f"--known {known[0]}: one class only; name at least two")
    if "unknown" in known:
        raise InputError("a known class is called 'unknown', as unknowns are; rename it")
    if not {*known} & {*true_classes}:
        problem = f"none of its classes ({listing(true_classes, 3)}) is known"
        raise InputError(f"{target}: {problem} ({listing(known, 3)}); spell them as in the source")
    return ClassSplit(known, tuple(name for name in true_classes if name not in known))


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
