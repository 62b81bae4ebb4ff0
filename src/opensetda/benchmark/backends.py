"""Clusters of dask and ray for `opensetda.benchmark.workers`, as backends of joblib.

Not the ones that come with joblib and ray, which a grid cannot use. That of dask waits for
ever for a piece of work whose worker died, and works in the command's own process if the
cluster has one core. That of ray gives all results at the end, hands work to workers that are
busy while others wait, and goes on handing it to dead ones. Ours hands each piece to the
cluster as a task of its own, and a death is a result like any other.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from typing import Any, TypeVar

from joblib import Parallel, delayed
from joblib.parallel import ParallelBackendBase

from opensetda import __version__
from opensetda.benchmark.workers import DASK, DEFAULT_JOBS, STOPPED_EARLY, Backend, LostWorkerError
from opensetda.errors import InputError

Work = TypeVar("Work")

_REACHED = 10
"""Seconds that a scheduler has to answer."""
_STAFFED = 30
"""Seconds that a cluster has to bring up its first worker."""
_DEATHS = 3
"""So many times ray gives a dead worker's piece to another; dask's own number is the same."""

_busy = threading.Lock()


class Cluster(ABC):
    """Workers that take one piece of work after the other.

    Attributes
    ----------
    at_once : int
        So many pieces are handed out at a time.
    """

    at_once: int

    @abstractmethod
    def submit(self, call: Callable[[], Any], then: Callable[[Any], None]) -> Any:
        """Have a worker make a call; in the end `then` gets its future, in some thread."""

    @abstractmethod
    def is_death(self, error: BaseException) -> bool:
        """Return whether the worker died; any other error is none of the work's making."""

    def run(
        self, function: Callable[[Work], Any], work: Sequence[Work], places: Sequence[int]
    ) -> Generator[tuple[int, Any]]:
        """Yield the places and their results as they come; a death is a `LostWorkerError`."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=STOPPED_EARLY)
            pool = Parallel(
                n_jobs=self.at_once,
                backend=_TaskBackend(self),
                return_as="generator_unordered",
                batch_size=1,
                pre_dispatch=self.at_once,
            )
            yield from pool(delayed(_work_alone)(function, place, work[place]) for place in places)


@contextmanager
def open_cluster(backend: Backend, jobs: int | None) -> Iterator[Cluster]:
    """Connect to a cluster, or start one of this machine's own that ends here, too.

    Parameters
    ----------
    backend : Backend
        "dask" or "ray", and perhaps an address.
    jobs : int, optional
        Pieces of work at once; by default as many as a given cluster has workers, or two.

    Raises
    ------
    InputError
        If there is nobody at the address, or no worker that could do the work.
    """
    start, connect = (_start_dask, _dask) if backend.name == DASK else (_start_ray, _ray)
    address = backend.address
    if address is None:
        with start(jobs or DEFAULT_JOBS) as cluster:
            yield cluster
        return
    with connect(address, jobs) as cluster:
        _check_worker(address, cluster)
        yield cluster


def check_package(name: str) -> None:
    """Raise an `InputError` if a package is missing that a backend needs."""
    package = "distributed" if name == DASK else name
    try:
        importlib.import_module(package)
    except ImportError:
        raise InputError(
            f"--backend {name}: needs the package '{package}'; pip install 'opensetda[{name}]'"
        ) from None


class _TaskBackend(ParallelBackendBase):  # type: ignore[misc]
    """What joblib knows of a `Cluster`."""

    supports_retrieve_callback = True

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def effective_n_jobs(self, n_jobs: int) -> int:
        # With one, joblib would work in this very process.
        return max(n_jobs, 2)

    def submit(self, func: Any, callback: Callable[[Any], None]) -> Any:
        """Hand out a batch, which is always of one piece."""
        ((_, (_, place, _), _),) = func.items

        def then(future: Any) -> None:
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = future.result(), None
            except BaseException as error:
                outcome = [(place, LostWorkerError())], error
            callback(outcome)

        return self._cluster.submit(func, then)

    def retrieve_result_callback(self, out: tuple[Any, BaseException | None]) -> Any:
        """Return the results of the batch, or raise what is no result."""
        results, error = out
        if error is not None and not self._cluster.is_death(error):
            raise error
        return results


def _work_alone(function: Callable[[Work], Any], place: int, piece: Work) -> tuple[int, Any]:
    """Do a piece of work in a worker of the cluster."""
    from opensetda.benchmark.running import one_thread

    # Threads of one worker share what a cell measures and sets: then one after the other.
    with _busy, one_thread():
        return place, function(piece)


def _release() -> str:
    return __version__


def _check_worker(address: str, cluster: Cluster) -> None:
    """Have a worker say which release it has; an `InputError` if none can."""
    answered = threading.Event()
    said: list[Any] = []

    def then(future: Any) -> None:
        try:
            said.append(future.result())
        except BaseException as error:
            said.append(error)
        answered.set()

    # Held, for dask forgets what nobody holds.
    future = cluster.submit(_release, then)
    in_time = answered.wait(_STAFFED)
    del future
    if not in_time:
        raise InputError(f"--scheduler {address}: no worker in {_STAFFED} s; start some first")
    if said[0] != __version__:
        found = said[0] if isinstance(said[0], str) else f"{type(said[0]).__name__}: {said[0]}"
        raise InputError(
            f"--scheduler {address}: its workers need opensetda {__version__}, as here; "
            f"found: {' '.join(found.split())}"
        )


def _unreachable(address: str, error: BaseException) -> InputError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"--scheduler {address}: cannot be reached: {reason}")


# dask -----------------------------------------------------------------------------------------


class _DaskCluster(Cluster):
    def __init__(self, client: Any, at_once: int, address: str) -> None:
        self.at_once = at_once
        self._client, self._address = client, address

    def submit(self, call: Callable[[], Any], then: Callable[[Any], None]) -> Any:
        """Have a worker make a call."""
        future = self._client.submit(call, pure=False)
        future.add_done_callback(then)
        return future

    def is_death(self, error: BaseException) -> bool:
        """Return whether the worker died."""
        from distributed import CancelledError, KilledWorker

        if isinstance(error, CancelledError):
            raise ConnectionError(
                f"--scheduler {self._address}: the connection was lost; what is finished is kept, "
                "go on with the same command"
            )
        return isinstance(error, KilledWorker)


@contextmanager
def _start_dask(jobs: int) -> Iterator[Cluster]:
    from distributed import Client, LocalCluster

    local = LocalCluster(
        n_workers=jobs,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address=None,
        # A death is a row, and needs no further lines.
        silence_logs=logging.CRITICAL,
        # As without dask: a worker may take what the system has.
        memory_limit=0,
        scheduler_kwargs={
            # What dies is run again alone, and not three times beside others first.
            "allowed_failures": 0,
            # Dask serves something even without a dashboard: then at any free port.
            "dashboard_address": "127.0.0.1:0",
        },
    )
    with local, Client(local, set_as_default=False) as client:
        yield _DaskCluster(client, jobs, local.scheduler_address)


@contextmanager
def _dask(address: str, jobs: int | None) -> Iterator[Cluster]:
    from distributed import Client
    from distributed.utils import silence_logging_cmgr

    # What there is to say of the connection is one line of our own.
    with silence_logging_cmgr(logging.CRITICAL):
        try:
            client = Client(address, timeout=_REACHED, set_as_default=False)
        except (OSError, ValueError) as error:
            raise _unreachable(address, error) from None
        with client:
            yield _DaskCluster(client, jobs or max(len(client.nthreads()), 1), address)


# ray ------------------------------------------------------------------------------------------

_QUIET = {"log_to_driver": False, "logging_level": logging.CRITICAL}


class _RayCluster(Cluster):
    def __init__(self, at_once: int, deaths: int, thread: ThreadPoolExecutor) -> None:
        import ray

        self.at_once = at_once
        self._call = ray.remote(_call).options(num_cpus=1, max_retries=deaths)
        self._thread = thread

    def submit(self, call: Callable[[], Any], then: Callable[[Any], None]) -> Any:
        """Have a worker make a call."""
        future = self._call.remote(call).future()
        # The thread that tells of it is ray's own, and ray needs it.
        future.add_done_callback(lambda done: self._thread.submit(then, done))
        return future

    def is_death(self, error: BaseException) -> bool:
        """Return whether the worker died."""
        from ray.exceptions import RayError, RayTaskError

        return isinstance(error, RayError) and not isinstance(error, RayTaskError)


def _call(call: Callable[[], Any]) -> Any:
    return call()


@contextmanager
def _start_ray(jobs: int) -> Iterator[Cluster]:
    import ray

    ray.init("local", num_cpus=jobs, include_dashboard=False, **_QUIET)
    with _shut_down() as thread:
        yield _RayCluster(jobs, 0, thread)


@contextmanager
def _ray(address: str, jobs: int | None) -> Iterator[Cluster]:
    import ray

    _knock(address)
    try:
        ray.init(address, **_QUIET)
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreachable(address, error) from None
    with _shut_down() as thread:
        at_once = jobs or max(int(ray.cluster_resources().get("CPU", 1)), 1)
        yield _RayCluster(at_once, _DEATHS, thread)


@contextmanager
def _shut_down() -> Iterator[ThreadPoolExecutor]:
    """Give a thread for what comes back, and leave ray at the end."""
    import ray

    thread = ThreadPoolExecutor(1, thread_name_prefix="ray-results")
    # Ray tells of deaths on stdout, which is for results.
    with redirect_stdout(sys.stderr):
        try:
            yield thread
        finally:
            ray.shutdown()
            thread.shutdown(wait=False, cancel_futures=True)


def _knock(address: str) -> None:
    """Raise an `InputError` if nobody listens: ray would try for long, or end the process."""
    import socket

    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        # "auto", for example.
        return
    try:
        socket.create_connection((host, int(port)), _REACHED).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise _unreachable(address, error) from None
