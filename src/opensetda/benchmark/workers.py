"""Pieces of work in several local processes, through joblib."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError
from threadpoolctl import threadpool_limits

Work = TypeVar("Work")

# joblib replaces workers that have grown, and warns if a caller stops early.
_JOBLIB_WARNINGS = r"A worker stopped while some jobs|\d+ tasks (have been succ|which were still)"


def run_all(
    function: Callable[[Work], Any], work: Sequence[Work], jobs: int
) -> Generator[tuple[int, Any]]:
    """Yield each index in `work` and its result, in order of completion.

    `function` can be pickled. `jobs` pieces run at once, one thread each; 1 works in this process.
    """
    pieces = (delayed(_run_piece)(function, *numbered) for numbered in enumerate(work))
    how = {"return_as": "generator_unordered", "batch_size": 1, "pre_dispatch": "n_jobs"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_JOBLIB_WARNINGS)
        try:
            yield from Parallel(jobs, **how)(pieces)
        except TerminatedWorkerError:
            raise ChildProcessError(
                "a process of --jobs was killed, perhaps for lack of memory; finished runs are "
                "kept, give the same command again, with fewer --jobs"
            ) from None


def _run_piece(function: Callable[[Any], Any], place: int, piece: Any) -> tuple[int, Any]:
    with one_thread():
        return place, function(piece)


@contextmanager
def one_thread() -> Iterator[None]:
    """Have numpy, scikit-learn and torch use one thread."""
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
