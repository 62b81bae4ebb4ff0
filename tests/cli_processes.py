"""`osda` in a process of its own that stops at a moment to be killed there.

The processes come from a server that has imported everything and has no threads yet, so
that none of them costs the seconds of the imports.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import stepping_method

_SERVED = multiprocessing.get_context("forkserver")
_PRELOADED = ("methods.means.estimator", "training.rounds", "usecases.fit_run")
_SERVED.set_forkserver_preload([*(f"opensetda.{name}" for name in _PRELOADED), __name__])

READING, STORING, WRITING = "reading", "storing", "writing"
"""Moments: some images have been read, some activations stored; the run folder is being written."""


class Osda:
    """A command at work in `folder`.

    It waits for a signal right after the checkpoint number `moment` of its training was written,
    or at `READING`, `STORING` or `WRITING`.
    """

    def __init__(self, folder, *arguments, moment):
        beside = Path(folder).parent / f"{Path(folder).name}-{time.monotonic_ns()}"
        self.output, self.waiting = beside.with_suffix(".output"), beside.with_suffix(".waiting")
        self.process = _SERVED.Process(
            target=_run,
            args=(str(folder), arguments, self.output, self.waiting, moment),
            daemon=True,
        )
        self.process.start()
        end = time.monotonic() + 120
        while not self.waiting.exists():
            assert self.process.is_alive(), self.text()
            assert time.monotonic() < end, self.text()
            time.sleep(0.005)

    def send(self, number=signal.SIGKILL):
        """Send a signal; return the exit code and what was printed."""
        os.kill(self.process.pid, number)
        self.process.join(120)
        return self.process.exitcode, self.text()

    def text(self):
        return self.output.read_text() if self.output.exists() else ""


def _run(folder, arguments, output, waiting, moment):
    from opensetda.cli.main import run
    from opensetda.runs.registry import METHODS

    METHODS[stepping_method.NAME] = stepping_method.PLACE
    # A shell that runs the tests in the background has them ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    stream = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(stream, number)

    def wait():
        waiting.touch()
        time.sleep(600)

    if moment == READING:
        _wait_at_images(wait)
    elif moment == STORING:
        _wait_at_activations(wait)
    elif moment == WRITING:
        from opensetda.usecases import fit_rows

        fit_rows.environment = lambda *_: wait()
    else:
        _wait_at_record(moment, wait)
    sys.argv = ["osda", *arguments]
    run()


def _wait_at_record(moment, wait):
    from opensetda.runs.unfinished import CheckpointFile

    write, written = CheckpointFile.write, []

    def write_and_wait(self, record):
        written.append(record)
        write(self, record)
        if len(written) == moment:
            wait()

    CheckpointFile.write = write_and_wait


def _wait_at_images(wait):
    from opensetda.usecases import read_domains

    load_images = read_domains.load_images

    def load_and_wait(request, progress, *more):
        def tell(done, total):
            if done > total / 3:
                wait()

        return load_images(request, tell, *more)

    read_domains.load_images = load_and_wait


def _wait_at_activations(wait):
    from opensetda.training import images as activations

    decode, decoded = activations.decode_again, []

    def decode_and_wait(path):
        decoded.append(path)
        return wait() if len(decoded) > 9 else decode(path)

    activations.decode_again = decode_and_wait
