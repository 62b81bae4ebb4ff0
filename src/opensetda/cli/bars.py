"""Progress on stderr: a bar on a terminal, lines elsewhere; nothing in it may end a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from opensetda.cli import console
from opensetda.progress import CountingProgress, ProgressEvent, ProgressListener, RunListener

_LINE_SECONDS = 30.0


@contextmanager
def counting_progress(title: str, noun: str = "image") -> Iterator[CountingProgress]:
    """Yield a function of how many are done, and how many there are, each a `noun`."""
    nouns = noun if noun.isupper() else f"{noun}s"
    with _meter(title) as show:
        yield lambda done, total: show(done, total, f"{done:,}/{total:,} {nouns}")


@contextmanager
def training_progress(method: str) -> Iterator[ProgressListener]:
    """Yield a listener; a log has a line per step with iterations, or one for the last step."""
    with _meter(method) as show:

        def listen(event: ProgressEvent) -> None:
            each = event.iterations
            done = (event.step - 1) * max(each, 1) + (event.iteration if each else 1)
            loss = "" if event.loss is None else f"loss {event.loss:.3f}"
            step = f"step {event.step}/{event.steps}"
            line = event.entry is not None and (each > 0 or event.step == event.steps)
            show(done, event.steps * max(each, 1), step, loss, event.message, line=line)

        yield listen


class ConsoleListener(RunListener):
    """Prints notes and warnings, and shows progress."""

    note = staticmethod(console.note)
    warn = staticmethod(console.warn)
    counting = staticmethod(counting_progress)
    training = staticmethod(training_progress)

    def stage(self, name: str) -> None:
        """Name what begins, if it takes a while."""
        console.begin_stage(name)

    def worded(self, message: str) -> str:
        """Return the message as it is: the reader typed a command."""
        return message


@contextmanager
def _meter(title: str) -> Iterator[Callable[..., None]]:
    """Yield what shows a count, its total and the state in words, in a log at once if `line`."""
    console.begin_stage(title)
    if console.is_quiet():
        yield lambda *_, **__: None
        return
    cut = Column(no_wrap=True, overflow="ellipsis")
    bars = Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[state]}", style="cyan", markup=False, table_column=cut),
        TimeRemainingColumn(table_column=cut),
        console=_console(getattr(sys.stderr, "rich_proxied_file", sys.stderr)),
        transient=True,
        speed_estimate_period=3600,
        get_time=lambda: time.monotonic(),
    )
    bars.add_task(title, total=None, state="")
    task = bars.tasks[0]
    next_line = time.monotonic() + _LINE_SECONDS

    def show(done: int, total: int, *parts: str, line: bool = False) -> None:
        nonlocal next_line
        with suppress(Exception):
            done = int(done)
            total = int(total)
            if done < task.completed:
                # The next lot has a rate of its own.
                bars.reset(task.id)
            rate = task.speed and f"{task.speed:,.{1 if task.speed >= 1 else 3}f}/s"
            state = ", ".join(str(part) for part in (*parts, rate) if part)
            bars.update(task.id, completed=done, total=total, state=state)
            console.detail(state)
            if bars.console.is_interactive:
                bars.start()
                console.touch()
            elif line or (time.monotonic() >= next_line and done < total):
                next_line = time.monotonic() + _LINE_SECONDS
                left = timedelta(seconds=int(task.time_remaining or 0))
                console.note(f"{title}: {state}" + (f", {left} left" if left else ""))

    try:
        yield show
    finally:
        console.begin_stage("writing")
        # One that was never shown would end with an empty line.
        if bars.live.is_started:
            bars.stop()


@lru_cache(maxsize=1)
def _console(stream: Any) -> Console:
    """Return the one console of a stream: rich draws bars of one console below each other."""
    terminal: Any = _Terminal(stream)
    return Console(file=terminal)


class _Terminal:
    """A stream that ignores errors: the window of a terminal may be closed."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError:
            console.print_nowhere(self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
