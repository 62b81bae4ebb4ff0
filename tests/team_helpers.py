"""Teams for the tests: threads that meet at a barrier, and real processes connected by gloo.

The processes come from a server that has imported everything, and meet at a store that the test
keeps, as `torchrun` does: the system chooses its port, and it outlives who dies.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch

import cli_processes
from opensetda.errors import OtherProcessError
from opensetda.system.team import Team

_SERVED = cli_processes._SERVED
_SERVED.set_forkserver_preload(
    [
        *("opensetda.pgl.estimator", "opensetda.cli.fit_display", "opensetda.runs.curves"),
        # The first optimiser would import the former, and that takes longer than the rest.
        *("torch._dynamo", "torch.distributed", "opensetda.cli.main", "cli_processes", __name__),
    ]
)
PATIENCE = 100


class Member(Team):
    """One thread of a team; checks that all do the same exchanges."""

    def __init__(self, rank, size, exchange):
        self.rank, self.size, self._exchange = rank, size, exchange

    def _same(self, kind, value):
        everyones = self._exchange(self.rank, (kind, value))
        assert {theirs for theirs, _ in everyones} == {kind}, "ranks went different ways"
        return [value for _, value in everyones]

    def sum(self, values):
        return np.sum(self._same(f"sum {values.shape} {values.dtype}", values), axis=0)

    def gather(self, values):
        return self._same(f"gather {values.shape} {values.dtype}", values.copy())

    def gather_bytes(self, data):
        return self._same("bytes", data)

    def from_first(self, data):
        return self._same("first", data)[0]

    def wait(self):
        self._same("wait", None)

    def first_does(self, action):
        value, failed = None, None
        if self.is_first:
            try:
                value = action()
            except Exception as error:
                failed = error
        value, theirs = self._same("does", (value, failed))[0]
        if failed is not None:
            raise failed
        if theirs is not None:
            raise OtherProcessError(1)
        return value


def in_threads(size, work):
    """Call `work(team)` once a rank; return the answers by rank, or raise the first error."""
    if size == 1:
        return [work(Team())]
    barrier, values = threading.Barrier(size), [None] * size
    answers, errors = [None] * size, []

    def exchange(rank, value):
        values[rank] = value
        barrier.wait(timeout=20)
        everyones = list(values)
        barrier.wait(timeout=20)
        return everyones

    def one(rank):
        try:
            answers[rank] = work(Member(rank, size, exchange))
        except BaseException as error:
            errors.append(error)
            if not isinstance(error, OtherProcessError):
                barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return answers


class Served:
    """Processes of one team, each of which calls `function(*arguments)`."""

    def __init__(self, folder, function, *arguments, size=2, before=None, **environment):
        from torch.distributed import TCPStore

        self.store = TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
        )
        name = f"{Path(folder).name}-{time.monotonic_ns()}"
        self.beside = Path(folder).parent / name
        self.processes = []
        for rank in range(size):
            around = {
                **{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size},
                **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.store.port},
                **{"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RUN_ID": name},
                **environment,
            }
            process = _SERVED.Process(
                target=_serve,
                args=(
                    *(str(folder), {k: str(v) for k, v in around.items()}, self._path(rank)),
                    *(before, function, arguments),
                ),
                daemon=True,
            )
            process.start()
            self.processes.append(process)

    def _path(self, rank, suffix=".answer"):
        return f"{self.beside}-{rank}{suffix}"

    def kill(self, rank):
        os.kill(self.processes[rank].pid, signal.SIGKILL)

    def codes(self, patience=PATIENCE):
        """Wait for all, and return their exit codes."""
        end = time.monotonic() + patience
        for process in self.processes:
            process.join(max(0, end - time.monotonic()))
        late = [process for process in self.processes if process.is_alive()]
        for process in late:
            process.kill()
        assert not late, self.output()
        return [process.exitcode for process in self.processes]

    def output(self):
        """Return what all of them printed."""
        paths = [Path(self._path(rank, ".output")) for rank in range(len(self.processes))]
        return "".join(path.read_text() for path in paths if path.exists())

    def answers(self):
        """Return what the function returned, by rank."""
        codes = self.codes()
        assert not any(codes), f"{codes}\n{self.output()}"
        paths = [Path(self._path(rank)) for rank in range(len(self.processes))]
        return [pickle.loads(path.read_bytes()) for path in paths]


def _serve(folder, environment, answer, before, function, arguments):
    os.environ.update(environment)
    os.chdir(folder)
    torch.set_num_threads(1)
    stream = os.open(
        answer.removesuffix(".answer") + ".output", os.O_WRONLY | os.O_CREAT | os.O_APPEND
    )
    for number in (1, 2):
        os.dup2(stream, number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if before is not None:
            before()
        value = function(*arguments)
        Path(answer).write_bytes(pickle.dumps(value))
    except Exception:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(70)


def osda(*arguments):
    """Run the command as its script does; it ends the process."""
    from opensetda.cli.main import run

    sys.argv = ["osda", *arguments]
    run()


def error_lines(text):
    return [line for line in text.splitlines() if line.startswith("error:")]
