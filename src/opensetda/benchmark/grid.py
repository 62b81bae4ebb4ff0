"""Method x task x openness x seed, with one small file per cell, so that a grid can be resumed.

``out/benchmark.json`` says which data the cells belong to, ``out/cells/KEY.json`` holds one cell.
KEY is a hash of all that decides the result. Failed cells are run again. A cell runs on one thread,
so that its result does not depend on the number of workers: it fits a method without the truth,
then scores with it.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import chdir, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError
from threadpoolctl import threadpool_limits

from opensetda import __version__
from opensetda.benchmark.tasks import TaskSet, digest
from opensetda.benchmark.variants import Variant
from opensetda.cluster.connection import connected
from opensetda.cluster.pieces import run_pieces
from opensetda.context import FitContext, TrainableImages
from opensetda.data.benchmarks.protocols import OpenSetTask, with_openness
from opensetda.errors import InputError
from opensetda.methods.base import OpenSetClassifier
from opensetda.metrics.open_set import evaluate
from opensetda.pgl.estimator import PGLClassifier
from opensetda.pgl.presets import PAPER_TABLE
from opensetda.progress import RunListener
from opensetda.runs.integrity import read_json
from opensetda.runs.registry import finetune_settings, method_class
from opensetda.system.files import (
    check_writable,
    is_partial,
    new_file,
    own_folder,
    plain,
    write_json,
)
from opensetda.system.memory import peak_megabytes, reset_peak
from opensetda.usecases.evaluate_run import evaluate_targets
from opensetda.usecases.fit_rows import FittedMethod, fit_method, read_rows_of
from opensetda.usecases.read_domains import image_recipe

CELLS = "cells"
IDENTITY = "benchmark.json"
ACTIVATIONS = "activations"
OK = "ok"
FAILED = "failed"
TRUE = "true"
AUTO = "auto"
RUN = ("benchmark", "task", "method", "openness", "target_openness", "seed")
METRICS = (
    *("all", "os", "os_star", "unk", "unk_per_class", "hos"),
    *("auroc", "oscr", "ece", "unknown_ece"),
)
COSTS = ("seconds", "cpu_seconds", "memory_mb")
PAPER = ("paper_os", "paper_os_star", "paper_unk")
"""By the paper's rule, which labels fewer targets unknown where training stops early; else None."""
NUMBERS = (*METRICS, *PAPER, "share", "true_share", "differs", *COSTS)
COLUMNS = (*RUN, *NUMBERS, "scaling", "status", "error", "warnings")

Row = dict[str, Any]
GridProgress = Callable[[int, int, Row | None], None]
"""Called with the number of finished cells, of all cells, and the row of the last one."""

_turn = Lock()
_loaded: tuple[str, OpenSetTask] | None = None


@dataclass(frozen=True)
class Cell:
    """One run of a grid, with the true share of unknowns ("true") or an estimate of it ("auto").

    Target rows are dropped until the share is `target_openness`; the seed also decides which.
    """

    variant: Variant
    task: str
    openness: str
    seed: int
    target_openness: float | None = None

    def key(self, tasks: TaskSet) -> str:
        """Return the name of the cell's file: a hash of everything that decides the result."""
        own = asdict(self)
        if tasks.images.finetune:
            own["trained"] = tasks.images.finetune, tasks.images.views
        # The same run under another label is the same run.
        del own["variant"]["label"]
        return digest([tasks.fingerprints[self.task], own, __version__])[:32]


def grid_cells(
    variants: Sequence[Variant],
    tasks: Iterable[str],
    openness: Sequence[str] = (TRUE, AUTO),
    seeds: Sequence[int] = (0, 1, 2),
    target_openness: Sequence[float | None] = (None,),
) -> list[Cell]:
    """Return the cells of a grid; deterministic methods run for one seed only.

    Seed by seed and task by task, so that a worker reads the data of a task a few times only.
    """
    tasks = list(tasks)
    at_random = {variant: method_class(variant.method).is_random for variant in variants}
    return [
        Cell(variant, task, share, seed, thinned)
        for seed in seeds
        for task in tasks
        for thinned in target_openness
        for share in openness
        for variant in variants
        # Where rows are dropped, the seed says which: then every method depends on it.
        if seed == seeds[0] or at_random[variant] or thinned is not None
    ]


def run_grid(
    tasks: TaskSet,
    cells: Sequence[Cell],
    out: str | Path,
    jobs: int = 1,
    progress: GridProgress | None = None,
    scheduler: Any = None,
    listener: RunListener | None = None,
) -> list[Row]:
    """Run the cells that are not finished yet, and return one row of `COLUMNS` for each cell.

    Works on `jobs` cells at once; 1 works in this process; with a `scheduler`, as in
    `opensetda.usecases.predict`, the workers of dask do. `progress` is called once before the
    first cell, with None, and after each cell. Raises an `InputError` if the folder `out`, which is
    created if missing, belongs to another benchmark or to other data.
    """
    out = Path(out)
    known = _known_tasks(tasks, out)
    keys = [cell.key(tasks) for cell in cells]
    found = {key: _finished(out, key) for key in dict.fromkeys(keys)}
    rows = {key: row for key, row in found.items() if row is not None}
    # By key: two variants may differ by their labels only.
    left = {key: cell for key, cell in zip(keys, cells, strict=True) if key not in rows}
    tell = progress or (lambda done, total, row: None)
    tell(0, len(left), None)
    own_folder(out / CELLS)
    if known | tasks.fingerprints != known:
        with new_file(out / IDENTITY) as aside:
            write_json(aside, {"benchmark": tasks.name, "tasks": known | tasks.fingerprints})
    run = partial(_run_keyed, tasks, out.absolute(), Path.cwd())
    if scheduler is None:
        how = {"return_as": "generator_unordered", "batch_size": 1, "pre_dispatch": "n_jobs"}
        work = Parallel(jobs, **how)(map(delayed(run), left.items()))
    else:
        work = _on_dask(run, tasks.name, left, scheduler, listener)
    try:
        # Closed, so that the workers end here even if Ctrl-C comes while a file is written.
        with closing(work) as outcomes:
            for done, (key, outcome) in enumerate(outcomes, start=1):
                rows[key] = plain(outcome)
                with new_file(out / CELLS / f"{key}.json") as aside:
                    write_json(aside, {"key": key, "release": __version__, "row": rows[key]})
                tell(done, len(left), rows[key])
        shutil.rmtree(out / ACTIVATIONS, ignore_errors=True)
    except TerminatedWorkerError:
        advice = "finished runs are kept, give the same command again, with fewer --jobs"
        raise ChildProcessError(f"a process was killed, perhaps for memory; {advice}") from None
    # Two labels may stand for one run.
    pairs = zip(keys, cells, strict=True)
    return [rows[key] | _run_columns(tasks.name, cell) for key, cell in pairs]


# The folder ---------------------------------------------------------------------------------


def n_finished(tasks: TaskSet, cells: Sequence[Cell], out: Path) -> int:
    """Return how many of the cells are finished; an `InputError` as in `run_grid`."""
    _known_tasks(tasks, out)
    return sum(_finished(out, cell.key(tasks)) is not None for cell in cells)


def _known_tasks(tasks: TaskSet, out: Path) -> dict[str, str]:
    """Return the fingerprint of each task that the folder has results of, without creating it."""
    if not (out / IDENTITY).exists():
        check_writable(out / IDENTITY)
        # A grid that was killed before its first cell has left its folder for them.
        there = [*out.iterdir()] if out.is_dir() else []
        if any(
            path.name not in (CELLS, ACTIVATIONS) for path in there if not is_partial(path.name)
        ):
            raise InputError(f"{out}: not empty, and not of a benchmark; choose another --out")
        return {}
    match read_json(out / IDENTITY):
        case {"benchmark": tasks.name, "tasks": dict(known)}:
            pass
        case _:
            raise InputError(f"{out}: not of the benchmark {tasks.name}; choose another --out")
    for task, fingerprint in tasks.fingerprints.items():
        if known.get(task, fingerprint) != fingerprint:
            problem = f"holds results of other data for {task}"
            raise InputError(f"{out}: {problem}; choose another --out, or give the same data")
    return known


def _finished(out: Path, key: str) -> Row | None:
    """Return the row of a successful cell; None if it is missing, failed or damaged."""
    try:
        cell = read_json(out / CELLS / f"{key}.json")
    except InputError:
        return None
    match cell:
        case {"row": {"status": "ok"} as row} if row.keys() == {*COLUMNS}:
            numbers = [row[name] for name in NUMBERS if row[name] is not None]
            if all(isinstance(value, int | float) and abs(value) < 1 << 53 for value in numbers):
                return dict(row)
    return None


# In a worker --------------------------------------------------------------------------------


def _on_dask(
    run: Callable[..., Any], name: str, left: dict[str, Cell], scheduler: Any, listener: Any
) -> Generator[tuple[str, Row], None, None]:
    """Yield the keys and rows of cells, as they finish."""
    with connected(scheduler, listener or RunListener()) as client:
        for (key, cell), outcome in run_pieces(client, run, left.items()):
            is_error = isinstance(outcome, Exception)
            yield (key, _failed(name, cell, outcome)) if is_error else outcome


def _run_keyed(tasks: TaskSet, out: Path, here: Path, keyed: tuple[str, Cell]) -> tuple[str, Row]:
    # One cell per process, and in the folder of the command: a worker of dask may be elsewhere.
    with _turn, chdir(here):
        return keyed[0], run_cell(tasks, keyed[1], out)


def run_cell(tasks: TaskSet, cell: Cell, out: Path) -> Row:
    """Run a cell and return its row; an error becomes a row, too."""
    try:
        with warnings.catch_warnings(record=True) as caught, _one_thread():
            warnings.simplefilter("default")
            measured = _measure(tasks, cell, out)
    except Exception as error:
        return _failed(tasks.name, cell, error)
    said = dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught)
    return _row(tasks.name, cell, **measured, warnings="; ".join(said) or None)


def _failed(benchmark: str, cell: Cell, error: Exception) -> Row:
    reason = f"{type(error).__name__}: {error}"
    return _row(benchmark, cell, status=FAILED, error=" ".join(reason.split()))


def _row(benchmark: str, cell: Cell, **values: Any) -> Row:
    row: Row = dict.fromkeys(COLUMNS)
    row.update(_run_columns(benchmark, cell))
    row["status"] = OK
    row.update(values)
    return row


def _run_columns(benchmark: str, cell: Cell) -> Row:
    run = (benchmark, cell.task, cell.variant.label, cell.openness, cell.target_openness, cell.seed)
    return dict(zip(RUN, run, strict=True))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Have numpy, scikit-learn and torch use one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(before)


def _measure(tasks: TaskSet, cell: Cell, out: Path) -> Row:
    task = _load(tasks, cell.task)
    if cell.target_openness is not None:
        task = with_openness(task, cell.target_openness, cell.seed)
    classifier = cell.variant.build(task.openness if cell.openness == TRUE else AUTO, cell.seed)
    reset_peak()
    worked = time.process_time()
    images = _images(tasks, cell, task, out) if tasks.images.finetune else None
    fitted = fit_task(classifier, task, FitContext(images=images), cell.seed)
    classifier = fitted.classifier
    costs = (fitted.seconds, time.process_time() - worked, peak_megabytes())
    targets = task.target_features
    if images is not None:
        from opensetda.methods.inputs import features_of
        from opensetda.system.processes import this_process

        rows = len(task.source_labels) + np.arange(len(targets))
        targets = features_of(images, rows, this_process().device)
    later = classifier.predict(targets)
    metrics = evaluate_targets(classifier, task.target_truth)
    row = {name: getattr(metrics, name) for name in METRICS}
    row |= dict.fromkeys(PAPER)
    if isinstance(classifier, PGLClassifier) and classifier.preset in PAPER_TABLE:
        labels = classifier.labels_by_paper()
        of_paper = evaluate(task.target_truth, labels, classifier.classes_)
        row |= {name: getattr(of_paper, name.removeprefix("paper_")) for name in PAPER}
    row |= {
        "share": float(np.mean(classifier.transduction_ == classifier.unknown_label)),
        "true_share": task.openness,
        "differs": float(np.mean(classifier.transduction_ != later)),
        "scaling": classifier.scaler_.name,
    }
    return row | dict(zip(COSTS, costs, strict=True))


def fit_task(
    classifier: OpenSetClassifier,
    task: OpenSetTask,
    context: FitContext | None = None,
    seed: int = 0,
) -> FittedMethod:
    """Fit on a task without its truth."""
    domains = read_rows_of(task.source_features, task.source_labels, task.target_features)
    return fit_method(classifier, domains, context, seed)


def _images(tasks: TaskSet, cell: Cell, task: OpenSetTask, out: Path) -> TrainableImages:
    """Return the images of a task, with a backbone to train; activations serve all its cells."""
    from opensetda.training.images import open_images

    options = tasks.images
    changes = dict(cell.variant.changes)
    settings = finetune_settings(cell.variant.method, changes)
    recipe = replace(image_recipe(options), views=options.views or settings.views)
    files = (*task.source_files, *task.target_files)
    name = digest([tasks.fingerprints[cell.task], files, recipe.key, asdict(settings)])[:32]
    own_folder(out / ACTIVATIONS)
    scratch = out / ACTIVATIONS / name
    own_folder(scratch)
    return open_images(recipe, files, settings, str(options.finetune), scratch)[1]


def _load(tasks: TaskSet, task: str) -> OpenSetTask:
    """Read a task; the last one stays in the worker for the next cell."""
    global _loaded
    name = tasks.fingerprints[task]
    if _loaded is None or _loaded[0] != name:
        _loaded = None  # Frees its memory before the next one is read.
        _loaded = name, tasks.read(task)
    return _loaded[1]
