"""Where the cells of a grid run: the one place that knows of processes.

`run_all` yields results as they come. A worker that dies, for example because the system had
no memory left, takes the others of this machine with it: what was under way is then run again,
each alone, and only who dies alone, too, is lost. On a cluster the others go on, and the
cluster may first give the work to other workers, as often as it is set to.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from opensetda.errors import InputError

Work = TypeVar("Work")


LOKY, DASK, RAY = "loky", "dask", "ray"
DEFAULT_JOBS = 2
STOPPED_EARLY = r"\d+ tasks (have been successfully|which were still)"
"""What joblib warns of who stops before the end, and knows that something was under way."""

_ADDRESSES = {DASK: "DASK_SCHEDULER_ADDRESS", RAY: "RAY_ADDRESS"}


class LostWorkerError(Exception):
    """The process that worked on this died."""

    def __init__(self) -> None:
        super().__init__("its process was killed, perhaps for want of memory")


@dataclass(frozen=True)
class Backend:
    """Whose processes work.

    Attributes
    ----------
    name : {"loky", "dask", "ray"}
        "loky" is processes of this machine, and needs nothing else.
    scheduler : str, optional
        Address of a cluster of dask or ray; without, one is started on this machine.
    """

    name: str = LOKY
    scheduler: str | None = None

    @property
    def address(self) -> str | None:
        """The cluster to use: the one that is given, or that of the environment."""
        return self.scheduler or os.environ.get(_ADDRESSES.get(self.name, "")) or None

    def check(self) -> None:
        """Raise an `InputError` if nothing can be run there."""
        if self.name == LOKY:
            if self.scheduler is not None:
                raise InputError(
                    f"--scheduler {self.scheduler}: only for a cluster; add --backend dask or "
                    "--backend ray, or leave it out"
                )
            return
        from opensetda.benchmark.backends import check_package, open_cluster

        check_package(self.name)
        if self.address is not None:
            with open_cluster(self, None):
                pass


def run_all(
    function: Callable[[Work], Any],
    work: Sequence[Work],
    jobs: int | None,
    backend: Backend | None = None,
) -> Generator[tuple[int, Any]]:
    """Yield the place of each piece of work and its result, in the order in which they end.

    Parameters
    ----------
    function : callable
        Can be pickled, and turns errors into results.
    work : sequence
        What to call it with, begun in this order.
    jobs : int, optional
        How many at once; with "loky", 1 works in this process. By default as many as a given
        cluster has workers, or two.
    backend : Backend, optional
        Where; by default processes of this machine.

    Yields
    ------
    place : int
        Index in `work`.
    result : object
        What `function` returned, or a `LostWorkerError`.
    """
    if work and backend is not None and backend.name != LOKY:
        yield from _on_cluster(function, work, jobs, backend)
        return
    jobs = jobs or DEFAULT_JOBS
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
            yield place, alone[0][1] if alone else LostWorkerError()


def _on_cluster(
    function: Callable[[Work], Any], work: Sequence[Work], jobs: int | None, backend: Backend
) -> Iterator[tuple[int, Any]]:
    from opensetda.benchmark.backends import open_cluster

    died: list[int] = []
    with open_cluster(backend, jobs) as cluster:
        with closing(cluster.run(function, work, range(len(work)))) as results:
            for place, result in results:
                if isinstance(result, LostWorkerError):
                    died.append(place)
                else:
                    yield place, result
        for place in died:
            yield from cluster.run(function, work, [place])


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
        warnings.filterwarnings("ignore", message=STOPPED_EARLY)
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
