"""Where the cells of a grid run: local processes, or a cluster of dask or ray, through joblib.

`run_all` yields results as they come. If a worker dies, for example because the system ran out
of memory, everything that was running at that moment is run again, one piece at a time; only
what kills its worker a second time is reported as lost.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

from joblib import Parallel, delayed, parallel_config
from threadpoolctl import threadpool_limits

from opensetda import __version__
from opensetda.errors import InputError

Work = TypeVar("Work")

LOKY, DASK, RAY = "loky", "dask", "ray"
DEFAULT_JOBS = 2

_ADDRESSES = {DASK: "DASK_SCHEDULER_ADDRESS", RAY: "RAY_ADDRESS"}
_PACKAGES = {DASK: "distributed", RAY: "ray"}
_CONNECT_SECONDS = 10
_FIRST_WORKER_SECONDS = 30
# joblib replaces workers that have grown, and warns if a caller stops early.
_JOBLIB_WARNINGS = r"A worker stopped while some jobs|\d+ tasks (have been succ|which were still)"

_busy = threading.Lock()


class LostWorkerError(Exception):
    """The process that worked on this died."""

    def __str__(self) -> str:
        return "its process was killed, perhaps for lack of memory"


@dataclass(frozen=True)
class Backend:
    """Processes of this machine ("loky"), or a cluster ("dask", "ray") at `scheduler`.

    Without an address, also in the environment, a cluster is started on this machine.
    """

    name: str = LOKY
    scheduler: str | None = None

    @property
    def address(self) -> str | None:
        """The cluster to use: the given one, or the one named in the environment."""
        return self.scheduler or os.environ.get(_ADDRESSES.get(self.name, "")) or None

    def check(self) -> None:
        """Raise an `InputError` if the backend cannot be used, or no worker has this release."""
        if self.name == LOKY:
            if self.scheduler is not None:
                raise InputError(
                    f"--scheduler {self.scheduler}: only for a cluster; add --backend dask or "
                    "--backend ray, or leave it out"
                )
            return
        package = _PACKAGES[self.name]
        try:
            importlib.import_module(package)
        except ImportError:
            raise InputError(
                f"--backend {self.name}: needs the package '{package}'; "
                f"pip install 'opensetda[{self.name}]'"
            ) from None
        if self.address is None:
            return
        with _OPEN[self.name](self.address, None) as pool:
            try:
                found = [str(release) for _, release in _results(pool, _release, [None], [0], [])]
            except TimeoutError:
                raise InputError(
                    f"--scheduler {self.address}: no worker in {_FIRST_WORKER_SECONDS} s; "
                    "start some first"
                ) from None
            except Exception as error:
                found = [" ".join(f"{type(error).__name__}: {error}".split())]
        if found != [__version__]:
            raise InputError(
                f"--scheduler {self.address}: its workers need opensetda {__version__}, as here; "
                f"found: {', '.join(found) or 'a worker that died'}"
            )


def run_all(
    function: Callable[[Work], Any],
    work: Sequence[Work],
    jobs: int | None,
    backend: Backend | None = None,
) -> Generator[tuple[int, Any]]:
    """Yield each index in `work` and its result or `LostWorkerError`, in order of completion.

    `function` can be pickled, and turns errors into results. `jobs` pieces run at once; with
    "loky", 1 works in this process. None means one per worker of a given cluster, or two.
    """
    backend = backend or Backend()
    left = list(range(len(work)))
    if backend.name == LOKY and jobs == 1:
        for place in left:
            yield _run_piece(function, place, work[place], os.getpid())
    elif left:
        with _OPEN[backend.name](backend.address, jobs) as pool:
            while left:
                begun: list[int] = []
                for place, result in _results(pool, function, work, left, begun):
                    left.remove(place)
                    yield place, result
                # Empty unless a worker died.
                for place in [place for place in begun if place in left]:
                    left.remove(place)
                    alone = list(_results(pool, function, work, [place], []))
                    yield place, alone[0][1] if alone else LostWorkerError()


class _Pool(NamedTuple):
    """Arguments of `parallel_config`, pieces at once, and errors that mean a dead worker."""

    config: dict[str, Any]
    at_once: int
    deaths: tuple[type[BaseException], ...]


def _results(
    pool: _Pool,
    function: Callable[[Work], Any],
    work: Sequence[Work],
    places: Sequence[int],
    begun: list[int],
) -> Iterator[tuple[int, Any]]:
    """Yield results until all is done or a worker dies; fill `begun` with what was begun."""

    def hand_out() -> Iterator[Any]:
        for place in list(places):
            begun.append(place)
            yield delayed(_run_piece)(function, place, work[place], os.getpid())

    with warnings.catch_warnings(), parallel_config(**pool.config):
        warnings.filterwarnings("ignore", message=_JOBLIB_WARNINGS)
        how = {"return_as": "generator_unordered", "batch_size": 1, "pre_dispatch": pool.at_once}
        try:
            yield from Parallel(**how)(hand_out())
        except pool.deaths:
            return


def _run_piece(function: Callable[[Any], Any], place: int, piece: Any, command: int) -> Any:
    _end_with(command)
    # One at a time, on one thread, and nothing of it in other workers: a worker of a cluster may
    # have several threads, which share what a cell measures and sets.
    with _busy, parallel_config(backend="sequential"), one_thread():
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


@cache
def _end_with(command: int) -> None:
    """Have a child process end with the command that started it, even if that is killed."""

    def watch() -> None:
        while os.getppid() == command:
            time.sleep(1)
        os._exit(1)

    if os.getppid() == command:
        threading.Thread(target=watch, daemon=True).start()


def _release(_: None) -> str:
    return __version__


# Each of these starts workers that end with the context, or connects to those at the address.


@contextmanager
def _open_loky(_: None, jobs: int | None) -> Iterator[_Pool]:
    jobs = jobs or DEFAULT_JOBS
    config = {"backend": LOKY, "n_jobs": jobs, "inner_max_num_threads": 1}
    yield _Pool(config, jobs, (BrokenProcessPool,))


@contextmanager
def _open_dask(address: str | None, jobs: int | None) -> Iterator[_Pool]:
    from distributed import CancelledError, Client, KilledWorker
    from distributed.utils import silence_logging_cmgr
    from joblib._dask import DaskDistributedBackend

    class DaskBackend(DaskDistributedBackend):  # type: ignore[misc]
        """joblib's own, which waits forever for a piece of work whose worker died."""

        def submit(self, func: Any, callback: Any = None) -> Any:
            future = super().submit(func, callback)
            future.add_done_callback(lambda own: own.exception() and callback(own.exception()))
            return future

        def effective_n_jobs(self, n_jobs: int) -> int:
            # With one, joblib would work in this very process.
            return max(int(super().effective_n_jobs(n_jobs)), 2)

    # No memory limit, as without dask; after a death `run_all` itself tries again.
    own = {"n_workers": jobs or DEFAULT_JOBS, "threads_per_worker": 1, "host": "127.0.0.1"}
    own |= {"dashboard_address": None, "silence_logs": logging.CRITICAL, "memory_limit": 0}
    own["scheduler_kwargs"] = {"allowed_failures": 0, "dashboard_address": "127.0.0.1:0"}
    # Errors are reported in one line of our own.
    with silence_logging_cmgr(logging.CRITICAL):
        try:
            client = Client(
                address, timeout=_CONNECT_SECONDS, set_as_default=False, **({} if address else own)
            )
        except (OSError, ValueError) as error:
            raise _unreachable(address, error) from None
        try:
            backend = DaskBackend(client=client, wait_for_workers_timeout=_FIRST_WORKER_SECONDS)
            at_once = jobs or max(len(client.nthreads()), 1)
            yield _Pool({"backend": backend}, at_once, (KilledWorker,))
        except CancelledError:
            raise ConnectionError(
                f"--scheduler {address}: the connection was lost; finished runs are kept, "
                "continue with the same command"
            ) from None
        finally:
            client.close()


@contextmanager
def _open_ray(address: str | None, jobs: int | None) -> Iterator[_Pool]:
    import ray
    from ray.exceptions import RayActorError, WorkerCrashedError
    from ray.util.joblib import register_ray

    quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    try:
        if address is None:
            ray.init("local", num_cpus=jobs or DEFAULT_JOBS, include_dashboard=False, **quiet)
        else:
            host, _, port = address.rpartition("://")[2].rpartition(":")
            if host and port.isdecimal():
                # ray itself would try for long, or end the process.
                socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
            ray.init(address, **quiet)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise _unreachable(address, error) from None
    try:
        register_ray()
        at_once = jobs or max(int(ray.cluster_resources().get("CPU", 1)), 1)
        # With one, joblib would work in this very process.
        config = {"backend": RAY, "n_jobs": max(at_once, 2)}
        yield _Pool(config, at_once, (RayActorError, WorkerCrashedError))
    finally:
        ray.shutdown()


def _unreachable(address: str | None, error: BaseException) -> InputError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"--scheduler {address or ''}: cannot be reached: {reason}")


_OPEN: dict[str, Any] = {LOKY: _open_loky, DASK: _open_dask, RAY: _open_ray}
