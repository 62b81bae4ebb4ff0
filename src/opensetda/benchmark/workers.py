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
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from opensetda import __version__
from opensetda.errors import InputError

Work = TypeVar("Work")

LOKY, DASK, RAY = "loky", "dask", "ray"
DEFAULT_JOBS = 2

_ADDRESSES = {DASK: "DASK_SCHEDULER_ADDRESS", RAY: "RAY_ADDRESS"}
_PACKAGES = {DASK: "distributed", RAY: "ray"}
_CONNECT_SECONDS = 10
_FIRST_WORKER_SECONDS = 30

_busy = threading.Lock()


class LostWorkerError(Exception):
    """The process that worked on this died."""

    def __init__(self) -> None:
        super().__init__("its process was killed, perhaps for lack of memory")


@dataclass(frozen=True)
class Backend:
    """Which processes do the work.

    Attributes
    ----------
    name : {"loky", "dask", "ray"}
        "loky" means processes of this machine, and needs no further package.
    scheduler : str, optional
        Address of a dask or ray cluster; by default one is started on this machine.
    """

    name: str = LOKY
    scheduler: str | None = None

    @property
    def address(self) -> str | None:
        """The cluster to use: the given one, or the one named in the environment."""
        return self.scheduler or os.environ.get(_ADDRESSES.get(self.name, "")) or None

    def check(self) -> None:
        """Raise an `InputError` if the backend cannot be used."""
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
        if self.address is not None:
            with self._open(None) as pool:
                _check_workers(self.address, pool)

    @contextmanager
    def _open(self, jobs: int | None) -> Iterator[_Pool]:
        """Start workers that end with the context, or connect to those of a cluster."""
        if self.name == LOKY:
            jobs = jobs or DEFAULT_JOBS
            config = {"backend": LOKY, "n_jobs": jobs, "inner_max_num_threads": 1}
            yield _Pool(config, jobs, (BrokenProcessPool,))
            return
        with (_open_dask if self.name == DASK else _open_ray)(self.address, jobs) as pool:
            yield pool


@dataclass(frozen=True)
class _Pool:
    """Workers that joblib hands work to.

    Attributes
    ----------
    config : dict
        Arguments of `joblib.parallel_config`.
    at_once : int
        Pieces of work that are handed out at a time.
    deaths : tuple of exception types
        Errors that mean that a worker died.
    """

    config: dict[str, Any]
    at_once: int
    deaths: tuple[type[BaseException], ...]

    def run(
        self,
        function: Callable[[Work], Any],
        work: Sequence[Work],
        places: Sequence[int],
        begun: list[int],
    ) -> Iterator[tuple[int, Any]]:
        """Yield results until all is done or a worker dies; fill `begun` with what was begun."""
        from joblib import Parallel, delayed, parallel_config

        def hand_out() -> Iterator[Any]:
            for place in list(places):
                begun.append(place)
                yield delayed(_run_piece)(function, place, work[place], os.getpid())

        with warnings.catch_warnings(), parallel_config(**self.config):
            # joblib replaces workers that have grown, and says so if a caller stops early.
            for message in (
                "A worker stopped while some jobs",
                r"\d+ tasks (have been successfully|which were still)",
            ):
                warnings.filterwarnings("ignore", message=message)
            pool = Parallel(
                return_as="generator_unordered", batch_size=1, pre_dispatch=self.at_once
            )
            try:
                yield from pool(hand_out())
            except self.deaths:
                return


def run_all(
    function: Callable[[Work], Any],
    work: Sequence[Work],
    jobs: int | None,
    backend: Backend | None = None,
) -> Generator[tuple[int, Any]]:
    """Yield the place of each piece of work and its result, in the order of completion.

    Parameters
    ----------
    function : callable
        Can be pickled, and turns errors into results.
    work : sequence
        Its arguments, begun in this order.
    jobs : int, optional
        Pieces at once; with "loky", 1 works in this process. By default the number of workers
        of a given cluster, or two.
    backend : Backend, optional
        By default processes of this machine.

    Yields
    ------
    place : int
        Index in `work`.
    result : object
        What `function` returned, or a `LostWorkerError`.
    """
    backend = backend or Backend()
    if backend.name == LOKY and jobs == 1:
        for place, piece in enumerate(work):
            yield _run_piece(function, place, piece)
        return
    left = list(range(len(work)))
    if not left:
        return
    with backend._open(jobs) as pool:
        while left:
            begun: list[int] = []
            for place, result in pool.run(function, work, left, begun):
                left.remove(place)
                yield place, result
            # Empty unless a worker died.
            for place in [place for place in begun if place in left]:
                left.remove(place)
                alone = list(pool.run(function, work, [place], []))
                yield place, alone[0][1] if alone else LostWorkerError()


def _run_piece(
    function: Callable[[Work], Any], place: int, piece: Work, command: int | None = None
) -> tuple[int, Any]:
    from joblib import parallel_config

    from opensetda.benchmark.running import one_thread

    if command is not None:
        _end_with(command)
    # One at a time, on one thread, and nothing of it in other workers: a worker of a cluster may
    # have several threads, which share what a cell measures and sets.
    with _busy, parallel_config(backend="sequential"), one_thread():
        return place, function(piece)


@cache
def _end_with(command: int) -> None:
    """Have this worker end with the command that started it, even if that is killed."""
    if os.getppid() != command:
        return

    def watch() -> None:
        while os.getppid() == command:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# Clusters -----------------------------------------------------------------------------------


def _check_workers(address: str, pool: _Pool) -> None:
    """Raise an `InputError` if no worker has this release of the package."""
    try:
        found = [str(release) for _, release in pool.run(_release, [None], [0], [])]
    except TimeoutError:
        raise InputError(
            f"--scheduler {address}: no worker in {_FIRST_WORKER_SECONDS} s; start some first"
        ) from None
    except Exception as error:
        found = [" ".join(f"{type(error).__name__}: {error}".split())]
    if found != [__version__]:
        raise InputError(
            f"--scheduler {address}: its workers need opensetda {__version__}, as here; "
            f"found: {', '.join(found) or 'a worker that died'}"
        )


def _release(_: None) -> str:
    return __version__


def _unreachable(address: str, error: BaseException) -> InputError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"--scheduler {address}: cannot be reached: {reason}")


@contextmanager
def _open_dask(address: str | None, jobs: int | None) -> Iterator[_Pool]:
    from distributed import CancelledError, Client, KilledWorker, LocalCluster
    from distributed.utils import silence_logging_cmgr
    from joblib._dask import DaskDistributedBackend

    class DaskBackend(DaskDistributedBackend):  # type: ignore[misc]
        """joblib's own, which waits forever for a piece of work whose worker died."""

        def submit(self, func: Any, callback: Any = None) -> Any:
            future = super().submit(func, callback)
            future.add_done_callback(
                lambda done: callback(done.exception()) if done.exception() else None
            )
            return future

        def effective_n_jobs(self, n_jobs: int) -> int:
            # With one, joblib would work in this very process.
            return max(int(super().effective_n_jobs(n_jobs)), 2)

    # Errors are reported in one line of our own.
    with silence_logging_cmgr(logging.CRITICAL):
        try:
            if address is not None:
                client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
            else:
                # No memory limit, as without dask; after a death `run_all` itself tries again.
                local = LocalCluster(
                    n_workers=jobs or DEFAULT_JOBS,
                    threads_per_worker=1,
                    host="127.0.0.1",
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,
                    memory_limit=0,
                    scheduler_kwargs={
                        "allowed_failures": 0,
                        "dashboard_address": "127.0.0.1:0",
                    },
                )
                client = Client(local, set_as_default=False)
        except (OSError, ValueError) as error:
            raise _unreachable(address or "", error) from None
        try:
            joblib_backend = DaskBackend(
                client=client, wait_for_workers_timeout=_FIRST_WORKER_SECONDS
            )
            at_once = jobs or max(len(client.nthreads()), 1)
            yield _Pool({"backend": joblib_backend}, at_once, (KilledWorker,))
        except CancelledError:
            raise ConnectionError(
                f"--scheduler {address}: the connection was lost; finished runs are kept, "
                "continue with the same command"
            ) from None
        finally:
            client.close()
            if address is None:
                local.close()


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
        raise _unreachable(address or "", error) from None
    try:
        register_ray()
        at_once = jobs or max(int(ray.cluster_resources().get("CPU", 1)), 1)
        # With one, joblib would work in this very process.
        config = {"backend": RAY, "n_jobs": max(at_once, 2)}
        yield _Pool(config, at_once, (RayActorError, WorkerCrashedError))
    finally:
        ray.shutdown()
