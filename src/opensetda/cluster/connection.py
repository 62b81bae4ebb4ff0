"""A client of dask: as given, or of an address, a scheduler file or workers on this machine.

dask is imported in functions, and only where there is a scheduler.
"""

from __future__ import annotations

import logging
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from opensetda import __version__
from opensetda.errors import InputError, one_line
from opensetda.progress import RunListener

CONNECT_SECONDS = 5
_LOCAL = "local:"
# Others may write other bytes, or not understand each other.
_PACKAGES = ("dask", "distributed", "numpy", "pyarrow")


@contextmanager
def connected(
    scheduler: Any, listener: RunListener, files: Sequence[str] = (), folder: str | None = None
) -> Iterator[Any]:
    """Yield a client of `scheduler`: a `distributed.Client`, an address, a file, or ``local:N``.

    An `InputError` unless all workers have our versions, see `files`, and can write to `folder`.
    """
    if find_spec("distributed") is None:
        raise InputError("--scheduler: dask is not installed; pip install 'opensetda[cluster]'")
    from distributed import Client

    with ExitStack() as stack:
        is_client = isinstance(scheduler, Client)
        client = scheduler if is_client else _connect(f"{scheduler}", stack)
        listener.note(f"dashboard of dask: {client.dashboard_link}")
        if not client.nthreads():
            listener.note("no worker yet: waiting for the first")
            client.wait_for_workers(1)
        for worker, found in client.run(_inspect, files, folder, on_error="return").items():
            # One with a broken connection was lost meanwhile.
            if not isinstance(found, OSError) and (problem := _problem(found)):
                raise InputError(f"worker {worker}: {problem}")
        yield client


def _connect(where: str, stack: ExitStack) -> Any:
    """Return a client that is closed, and the workers that are ended, with `stack`."""
    import distributed

    Client: Any = distributed.Client
    for name in ("distributed", "distributed.client"):
        # Lost workers and connections are reported in lines of ours.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    given, how = f"--scheduler {where}", {"timeout": CONNECT_SECONDS, "set_as_default": False}
    if where.startswith(_LOCAL):
        count = where.removeprefix(_LOCAL)
        if not count.isdecimal() or not int(count):
            raise InputError(f"{given}: write local:N, with the number of worker processes")
        local: Any = distributed.LocalCluster
        own = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
        cluster = local(n_workers=int(count), silence_logs=logging.CRITICAL, **own)
        return stack.enter_context(Client(stack.enter_context(cluster), set_as_default=False))
    if where.endswith(".json") and not Path(where).is_file():
        raise InputError(f"{given}: no such file; 'dask scheduler --scheduler-file' writes it")
    try:
        kind = "scheduler_file" if where.endswith(".json") else "address"
        return stack.enter_context(Client(**{kind: where}, **how))
    except Exception as error:
        # Of a name without an address, of a port that nobody listens to, of another service.
        reason = f"no scheduler of dask answers ({one_line(error, 120)})"
        raise InputError(f"{given}: {reason}; start it, or correct the address") from error


def versions() -> dict[str, str]:
    """Return the versions that all processes must have in common."""
    python = platform.python_version().rpartition(".")[0]
    return {"opensetda": __version__, "python": python} | {
        p: metadata.version(p) for p in _PACKAGES
    }


def _inspect(files: Sequence[str], folder: str | None) -> tuple[dict[str, str], str | None]:
    """Return the versions of a worker, and what it lacks."""
    shared = "all machines need the same files in the same place"
    for path in files:
        if not os.path.lexists(path):
            return versions(), f"{path}: no such file; {shared}"
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return versions(), f"{folder}: cannot be written ({error.strerror}); {shared}"
    return versions(), None


def _problem(found: Any) -> str | None:
    """Return what is wrong with a worker by the result of `_inspect` there."""
    if isinstance(found, BaseException):
        return f"no opensetda {__version__} ({one_line(found, 120)}); install this version there"
    for name, ours in versions().items():
        if found[0].get(name) != ours:
            return f"{name} {found[0].get(name)}, but {ours} here; install the same version"
    return str(found[1] or "")


def worker_threads() -> int | None:
    """Return how many pieces this worker may work on at a time; None if it is no worker."""
    from distributed import get_worker

    with suppress(ValueError):
        return int(get_worker().state.nthreads)
    return None
