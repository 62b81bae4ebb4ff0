"""Processes that work together, started by `torchrun` or `accelerate launch`.

All of them run the same program on the same files, and all of them take part in every
exchange. Results are put together in the order of the ranks, so that no answer depends on
which process was faster.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError, LostProcessError, OtherProcessError
from opensetda.system.launch import is_shared, restart_count

Number = TypeVar("Number", bound=np.generic)

# One process may write or decode for long while the others wait. A process that dies closes its
# connections, which ends the waiting at once.
_PATIENCE = timedelta(hours=12)


class Team:
    """A single process; `this_team` returns the team that this process belongs to.

    `rank` is the number of this process, from 0, `size` the number of processes.
    """

    rank, size = 0, 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and messages."""
        return self.rank == 0

    def rows(self, n: int) -> range:
        """Return this process's share of n consecutive items; shares differ by one at most."""
        return range(self.rank * n // self.size, (self.rank + 1) * n // self.size)

    def sum(self, values: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Return the sum of the arrays of all processes, which have one shape.

        A sum of floats is the same for any number of processes only where all but one are zero.
        """
        return values

    def gather(self, values: npt.NDArray[Number]) -> list[npt.NDArray[Number]]:
        """Return the arrays of all processes, which have one shape, by rank."""
        return [values]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Return the data of all processes, of any length, by rank."""
        return [data]

    def from_first(self, data: bytes) -> bytes:
        """Return the data of the first process; that of the others is ignored."""
        return data

    def wait(self) -> None:
        """Wait until all processes have called this."""

    def may_speak(self) -> bool:
        """Whether this process is the first to ask: only one reports an error."""
        return True

    def first_does(self, action: Callable[[], Any]) -> Any:
        """Let the first process do something; all get its answer, which JSON can hold.

        If it fails, the first raises the error and the others `OtherProcessError`.
        """
        return action()


class _Processes(Team):
    """Several processes, connected by torch.distributed through accelerate."""

    def __init__(self) -> None:
        import torch
        from accelerate import PartialState

        self._torch, on_gpu = torch, torch.cuda.is_available()
        with _lost():
            self._store = _connect("cuda:nccl,cpu:gloo" if on_gpu else "gloo")
            # accelerate needs `cpu` without a GPU: otherwise each process would be on its own.
            state = PartialState(cpu=not on_gpu)
        self._may_speak: bool | None = None
        self.rank, self.size = int(state.process_index), int(state.num_processes)

    def sum(self, values: npt.NDArray[Number]) -> npt.NDArray[Number]:
        # Not on a GPU: there the loss of a process would be noticed much later.
        total = self._torch.from_numpy(np.array(values, order="C"))
        with _lost():
            self._torch.distributed.all_reduce(total)
        return np.asarray(total.numpy())

    def gather(self, values: npt.NDArray[Number]) -> list[npt.NDArray[Number]]:
        own = self._torch.from_numpy(np.ascontiguousarray(values))
        parts = [self._torch.empty_like(own) for _ in range(self.size)]
        with _lost():
            self._torch.distributed.all_gather(parts, own)
        return [np.asarray(part.numpy()) for part in parts]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        lengths = [int(n) for n in np.concatenate(self.gather(np.array([len(data)])))]
        padded = np.zeros(max(lengths), dtype=np.uint8)
        padded[: len(data)] = np.frombuffer(data, dtype=np.uint8)
        parts = self.gather(padded)
        return [part[:length].tobytes() for part, length in zip(parts, lengths, strict=True)]

    def from_first(self, data: bytes) -> bytes:
        torch, distributed = self._torch, self._torch.distributed
        length = torch.tensor([len(data)])
        with _lost():
            distributed.broadcast(length, 0)
            content = torch.empty(int(length), dtype=torch.uint8)
            if self.is_first and data:
                content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if len(content):
                distributed.broadcast(content, 0)
        return bytes(content.numpy().tobytes())

    def wait(self) -> None:
        # Not torch's barrier: with gloo it may end in another error than a lost connection.
        self.sum(np.zeros(1, dtype=np.int64))

    def may_speak(self) -> bool:
        if self._may_speak is None:
            try:
                # The launcher keeps the store, so it outlives the processes.
                self._may_speak = bool(self._store.add("spoken", 1) == 1)
            except Exception:
                # The launcher is gone as well: better two messages than none.
                self._may_speak = True
        return self._may_speak

    def first_does(self, action: Callable[[], Any]) -> Any:
        answer: dict[str, Any] = {}
        if self.is_first:
            try:
                answer = {"value": action()}
            except BaseException as error:
                code = 2 if isinstance(error, InputError) else 1
                with suppress(LostProcessError):
                    self.from_first(json.dumps({"failed": code}).encode())
                raise
        answer = json.loads(self.from_first(json.dumps(answer).encode()))
        if "failed" in answer:
            raise OtherProcessError(answer["failed"])
        return answer["value"]


def _connect(backend: str) -> Any:
    """Connect the processes, as accelerate would, and return their store.

    The launcher's store outlives the processes. After a restart, a process that looks for the
    address of another would find that of a dead one, and hang: each restart has its own prefix.
    """
    from torch import distributed
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(rendezvous("env://"))
    prefix = f"opensetda/{restart_count()}"
    own = distributed.PrefixStore(prefix, store)  # type: ignore[attr-defined]
    atexit.register(_disconnect)
    place = {"rank": rank, "world_size": size}
    distributed.init_process_group(backend, store=own, timeout=_PATIENCE, **place)
    return own


def _disconnect() -> None:
    """Close the connections: threads that still run at the end would abort the process."""
    from torch import distributed

    with suppress(Exception):
        distributed.destroy_process_group()


@contextmanager
def _lost() -> Iterator[None]:
    """Turn torch's errors about a lost connection into a `LostProcessError`."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(" ".join(str(error).split())[:200]) from error


ALONE = Team()


@cache
def this_team() -> Team:
    """Return the team of this process: one of several, or alone."""
    return _Processes() if is_shared() else ALONE
