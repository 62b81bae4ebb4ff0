"""Where the cells of a grid run: the one place that knows of processes.

`run_all` yields results as they come. A worker that dies, for example because the system had
no memory left, takes the others with it: what was under way is then run again, each alone,
and only who dies alone, too, is lost.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from typing import Any, TypeVar

Work = TypeVar("Work")


class LostWorkerError(Exception):
    """The process that worked on this died."""


def run_all(
    function: Callable[[Work], Any], work: Sequence[Work], jobs: int
) -> Iterator[tuple[int, Any]]:
    """Yield the place of each piece of work and its result, in the order in which they end.

    Parameters
    ----------
    function : callable
        Can be pickled, and turns errors into results.
    work : sequence
        What to call it with, begun in this order.
    jobs : int
        How many at once; 1 works in this process.

    Yields
    ------
    place : int
        Index in `work`.
    result : object
        What `function` returned, or a `LostWorkerError`.
    """
    if jobs == 1:
        for place, piece in enumerate(work):
            yield place, function(piece)
        return
    left = list(range(len(work)))
    while left:
        begun: list[int] = []
        for place, result in _in_processes(function, work, left, jobs, begun):
            left.remove(place)
            yield place, result
        # Empty unless a worker died.
        for place in [place for place in begun if place in left]:
            left.remove(place)
            alone = list(_in_processes(function, work, [place], jobs, []))
            lost = LostWorkerError("its process was killed, perhaps for want of memory")
            yield place, alone[0][1] if alone else lost


def _in_processes(
    function: Callable[[Work], Any],
    work: Sequence[Work],
    places: Sequence[int],
    jobs: int,
    begun: list[int],
) -> Iterator[tuple[int, Any]]:
    """Yield results until all is done or a worker dies; `begun` tells what was handed out."""
    from joblib import Parallel, delayed, parallel_config

    def hand_out() -> Iterator[Any]:
        for place in list(places):
            begun.append(place)
            yield delayed(_numbered)(function, place, work[place], os.getpid())

    with warnings.catch_warnings(), parallel_config(backend="loky", inner_max_num_threads=1):
        # A worker that has grown is replaced by a new one, which is no news to anybody.
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs")
        pool = Parallel(
            n_jobs=jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs"
        )
        try:
            yield from pool(hand_out())
        except BrokenProcessPool:
            return


def _numbered(
    function: Callable[[Work], Any], place: int, piece: Work, command: int
) -> tuple[int, Any]:
    _follow(command)
    return place, function(piece)


@cache
def _follow(command: int) -> None:
    """Have this worker end with the command that started it, however that was killed."""
    if os.getppid() != command:
        return

    def watch() -> None:
        while os.getppid() == command:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
