"""No silence: a line about what is being done, every few seconds in which nothing else is said."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from opensetda.cli import console

SILENT_SECONDS = 1.5  # at first; of long stages a part of their time
PART_OF_STAGE = 0.05
_TICK = 0.25


@contextmanager
def heartbeat() -> Iterator[None]:
    """Say what is being done while the block works silently; nothing with `--quiet`."""
    if console.is_quiet():
        yield
        return
    done = Event()

    def beat() -> None:
        while not done.wait(_TICK):
            state = console.state()
            now = time.monotonic()
            elapsed = now - state.stage_began
            if now - state.last_output > max(SILENT_SECONDS, PART_OF_STAGE * elapsed):
                parts = (state.detail, f"{elapsed:.0f} s")
                console.note(f"{state.stage}: {', '.join(part for part in parts if part)}")

    thread = Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
