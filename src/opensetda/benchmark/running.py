"""One cell of a grid: load a task, fit without its truth, then score with it.

Everything here runs in a worker, on one thread, so that a result does not depend on how many
workers there are.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from opensetda import __version__
from opensetda.benchmark.task_sets import TaskSet, digest
from opensetda.benchmark.variants import Variant
from opensetda.data.benchmarks.protocols import OpenSetTask, with_openness
from opensetda.system.memory import peak_megabytes, reset_peak

if TYPE_CHECKING:
    from opensetda.base import OpenSetClassifier

OK, FAILED = "ok", "failed"
TRUE, AUTO = "true", "auto"
METRICS = (
    *("all", "os", "os_star", "unk", "unk_per_class", "hos"),
    *("auroc", "oscr", "ece", "unknown_ece"),
)
MEASURED = (*METRICS, "share", "true_share", "kept_step", "seconds", "cpu_seconds", "memory_mb")

_loaded: tuple[str, OpenSetTask] | None = None


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes
    ----------
    variant : Variant
        The method.
    task : str
        A task of the benchmark.
    openness : {"true", "auto"}
        Whether the method gets the true share of unknowns, or has to estimate it.
    seed : int
        Of the method, and of the rows that `target_openness` drops.
    target_openness : float, optional
        Drop target rows until the share of unknowns is this one.
    """

    variant: Variant
    task: str
    openness: str
    seed: int
    target_openness: float | None = None

    def key(self, tasks: TaskSet) -> str:
        """Return the name of the cell's file: a hash of everything that decides the result."""
        own = asdict(self)
        # The same run under another label is the same run.
        del own["variant"]["label"]
        return digest([tasks.task_fingerprint(self.task), own, __version__])[:32]


def run_cell(work: tuple[TaskSet, Cell]) -> dict[str, Any]:
    """Run a cell and return its row; an error becomes a row, too."""
    tasks, cell = work
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            measured = _measure(tasks, cell)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return failed_row(tasks.name, cell, " ".join(reason.split()))
    said = dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught)
    return {
        **_named(tasks.name, cell),
        **measured,
        "status": OK,
        "error": None,
        "warnings": "; ".join(said) or None,
    }


def failed_row(benchmark: str, cell: Cell, reason: str) -> dict[str, Any]:
    """Return the row of a cell that has no result."""
    return {
        **_named(benchmark, cell),
        **dict.fromkeys(MEASURED),
        "status": FAILED,
        "error": reason,
        "warnings": None,
    }


def _named(benchmark: str, cell: Cell) -> dict[str, Any]:
    return {
        "benchmark": benchmark,
        "task": cell.task,
        "method": cell.variant.label,
        "openness": cell.openness,
        "target_openness": cell.target_openness,
        "seed": cell.seed,
    }


def _measure(tasks: TaskSet, cell: Cell) -> dict[str, Any]:
    from opensetda.runs.evaluation import evaluate_targets
    from opensetda.runs.methods import build_method

    task = _load(tasks, cell.task)
    if cell.target_openness is not None:
        task = with_openness(task, cell.target_openness, cell.seed)
    classifier = build_method(
        cell.variant.method,
        openness=task.openness if cell.openness == TRUE else AUTO,
        preset=cell.variant.preset,
        changes=dict(cell.variant.changes),
        seed=cell.seed,
    )
    with one_thread():
        reset_peak()
        worked = time.process_time()
        seconds = fit_task(classifier, task)
        worked = time.process_time() - worked
        memory = peak_megabytes()
    metrics = evaluate_targets(classifier, task.target_truth)
    kept = classifier.kept_step_
    return {
        **{name: getattr(metrics, name) for name in METRICS},
        "share": float(np.mean(classifier.transduction_ == classifier.unknown_label)),
        "true_share": task.openness,
        "kept_step": None if kept is None else int(kept.step),
        "seconds": seconds,
        "cpu_seconds": worked,
        "memory_mb": memory,
    }


def fit_task(classifier: OpenSetClassifier, task: OpenSetTask) -> float:
    """Fit on a task without its truth, and return the seconds it took."""
    from opensetda.runs.fitting import fit_domains

    return fit_domains(classifier, task.source_features, task.source_labels, task.target_features)


def _load(tasks: TaskSet, task: str) -> OpenSetTask:
    """Read a task; the last one stays in the worker for the next cell."""
    global _loaded
    name = tasks.task_fingerprint(task)
    if _loaded is None or _loaded[0] != name:
        _loaded = None  # Frees its memory before the next one is read.
        _loaded = name, tasks.load(task)
    return _loaded[1]


@contextmanager
def one_thread() -> Iterator[None]:
    """Have numpy, scikit-learn and torch use one thread."""
    from threadpoolctl import threadpool_limits

    # Not imported here: only some methods need torch.
    torch = sys.modules.get("torch")
    before = 1 if torch is None else torch.get_num_threads()
    if torch is not None:
        torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        if torch is not None:
            torch.set_num_threads(before)
