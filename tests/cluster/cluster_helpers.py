"""Work for the processes of dask: they import it from here."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def kill_first_worker(piece, aside):
    """Write a number; the worker that gets 1 first is killed."""
    log = Path(piece[0])
    with log.open("a") as stream:
        stream.write(f"{piece[1]}\n")
    if piece[1] == 1 and log.read_text().splitlines().count("1") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    aside.write_text(str(piece[1]))


def fail_on_odd(piece, aside):
    """Write a number, unless it is odd and a file says so."""
    with Path(piece[0]).open("a") as stream:
        stream.write(f"{piece[1]}\n")
    if piece[1] % 2 and Path("refuse").exists():
        raise ValueError("odd\nnumber")
    aside.write_text(str(piece[1]))
