"""Progress of work that is counted: a bar on a terminal, a few lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opensetda.cli.console import note, progress_bar

if TYPE_CHECKING:
    from rich.console import Console

CountingProgress = Callable[[int, int], None]

_FIRST_LINE_SECONDS = 10.0


@contextmanager
def counting_progress(title: str) -> Iterator[CountingProgress]:
    """Yield a function to be called with how many are done, and how many there are.

    On a terminal it moves a bar that is gone at the end; elsewhere it prints a line after
    ten seconds, then ever more seldom: a day's work makes a page, a quick one nothing.
    """
    from rich.console import Console

    console = Console(stderr=True)
    listening = _bar(console, title) if console.is_terminal else _lines(title)
    with listening as tell:
        yield tell


@contextmanager
def _bar(console: Console, title: str) -> Iterator[CountingProgress]:
    from rich.progress import MofNCompleteColumn

    bar = progress_bar(console, MofNCompleteColumn())
    with bar:
        task = bar.add_task(title, total=None)

        def tell(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield tell


@contextmanager
def _lines(title: str) -> Iterator[CountingProgress]:
    started = time.monotonic()
    next_line = _FIRST_LINE_SECONDS

    def tell(done: int, total: int) -> None:
        nonlocal next_line
        seconds = time.monotonic() - started
        if seconds < next_line or done >= total:
            return
        next_line = max(seconds + _FIRST_LINE_SECONDS, 1.5 * seconds)
        left = seconds / max(done, 1) * (total - done)
        note(f"{title}: {done:,}/{total:,}  {seconds:.0f} s, about {left:.0f} s left")

    yield tell
