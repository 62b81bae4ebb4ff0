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
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from opensetda import __version__
from opensetda.errors import InputError, one_line
from opensetda.progress import RunListener

CONNECT_SECONDS = 5
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
        seen = client.run(_problem, versions(), files, folder, on_error="return")
        for worker, problem in seen.items():
            if isinstance(problem, Exception) and not isinstance(problem, OSError):
                problem = f"no opensetda {__version__} ({one_line(problem, 120)}); install it there"
            # One whose connection is broken was lost meanwhile.
            if isinstance(problem, str):
                raise InputError(f"worker {worker}: {problem}")
        yield client


def _connect(where: str, stack: ExitStack) -> Any:
    """Return a client that is closed, and workers that are ended, with `stack`."""
    import distributed

    for name in ("distributed", "distributed.client"):
        # Lost workers and connections are reported in lines of ours.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    given, (kind, _, count) = f"--scheduler {where}", where.partition(":")
    if kind == "local":
        if not count.isdecimal() or not int(count):
            raise InputError(f"{given}: write local:N, with the number of worker processes")
        own: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
        own |= {"n_workers": int(count), "silence_logs": logging.CRITICAL}
        cluster = stack.enter_context(distributed.LocalCluster(**own))
        return stack.enter_context(distributed.Client(cluster, set_as_default=False))
    if where.endswith(".json") and not Path(where).is_file():
        raise InputError(f"{given}: no such file; 'dask scheduler --scheduler-file' writes it")
    answers: SimpleQueue[Any] = SimpleQueue()

    class QuietClient(distributed.Client):
        def __del__(self) -> None:
            """Do not close: `stack` does, and of one that never connected dask waits in vain."""

    def ask() -> None:
        name = "scheduler_file" if where.endswith(".json") else "address"
        how = {name: where, "timeout": CONNECT_SECONDS, "set_as_default": False}
        try:
            answers.put(QuietClient(**how))
        except Exception as error:
            answers.put(error)

    # In a thread: at the port of another service, dask waits for ever.
    Thread(target=ask, daemon=True).start()
    with suppress(Empty):
        client = answers.get(timeout=2 * CONNECT_SECONDS)
        if isinstance(client, distributed.Client):
            return stack.enter_context(client)
    raise InputError(f"{given}: no scheduler of dask answers; start it, or correct the address")


def versions() -> dict[str, str]:
    """Return the versions that all processes must have in common."""
    python = platform.python_version().rpartition(".")[0]
    return {"opensetda": __version__, "python": python} | {
        p: metadata.version(p) for p in _PACKAGES
    }


def _problem(ours: dict[str, str], files: Sequence[str], folder: str | None) -> str | None:
    """Return what a worker lacks."""
    for name, version in versions().items():
        if version != ours[name]:
            return f"{name} {version}, but {ours[name]} here; install the same version"
    shared = "all machines need the same files in the same place"
    for path in files:
        if not os.path.lexists(path):
            return f"{path}: no such file; {shared}"
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return f"{folder}: cannot be written ({error.strerror}); {shared}"
    return None
