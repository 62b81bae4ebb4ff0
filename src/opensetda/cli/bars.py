"""Progress of long work on stderr: a bar on a terminal, lines elsewhere, nothing with `--quiet`.

Rate and time left are those of rich. Numbers that it cannot reckon with and errors of the terminal
are ignored: a progress line must never end a run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from opensetda.cli import console
from opensetda.progress import ProgressEvent, ProgressListener

# In a log. The intervals grow: a day of work makes a page, quick work nothing.
_FIRST_LINE_SECONDS, _LINES_GROW = 10.0, 1.5
# The rate is that of the latest iterations or runs within this time.
_RATE_SECONDS = 3600.0


@contextmanager
def counting_progress(title: str, noun: str = "image") -> Iterator[Callable[..., None]]:
    """Yield a function of how many are done, how many there are, each a `noun`, and a remark."""
    with _meter(title) as show:

        def tell(done: int, total: int, remark: str = "") -> None:
            show(done, total, noun, f"{done:,}/{total:,} {_plural(noun)}", remark)

        yield tell


@contextmanager
def training_progress(title: str) -> Iterator[ProgressListener]:
    """Yield a listener that shows the progress of a training.

    In a log, each step that has iterations gets a line, and so does the last of those without.
    """
    with _meter(title, at_once=True) as show:

        def listen(event: ProgressEvent) -> None:
            step, each, is_over = event.step, event.iterations, event.entry is not None
            count = (step - 1) * max(each, 1) + (event.iteration if each else 1)
            total = event.steps * max(each, 1)
            within = f"iteration {event.iteration}/{each}" if each and not is_over else ""
            loss = "" if event.loss is None else f"loss {event.loss:.3f}"
            doing = "finishing" if count >= total else event.message
            parts = ("it" if each else "step", f"step {step}/{event.steps}", within, loss, doing)
            show(count, total, *parts, line=is_over and (each > 0 or step == event.steps))

        yield listen


@contextmanager
def _meter(title: str, at_once: bool = False) -> Iterator[Callable[..., None]]:
    """Yield what shows a count, its total, its noun and the state in words, or a `line` of them.

    A bar appears with the first report, unless `at_once`: downloads before it have their own bar.
    """
    if console.is_quiet():
        yield lambda *_, **__: None
        return
    begun, next_line = time.monotonic(), _FIRST_LINE_SECONDS
    with _bars() as bars:
        # Without a total the bar pulses.
        number = bars.add_task(title, total=None, visible=at_once, state="")
        task = next(task for task in bars.tasks if task.id == number)

        def show(done: int, total: int, noun: str, *parts: str, line: bool = False) -> None:
            nonlocal next_line
            with suppress(ValueError, OverflowError):
                done, total = int(done), int(total)
                if done < task.completed:
                    # The next lot has a rate of its own.
                    bars.reset(number)
                bars.update(number, completed=done, total=total, visible=True)
                state = _joined(*parts, _rate(task, noun))
                bars.update(number, state=state)
                seconds = time.monotonic() - begun
                if bars.console.is_interactive:
                    bars.start()
                elif line or (seconds >= next_line and done < total):
                    next_line = max(seconds + _FIRST_LINE_SECONDS, _LINES_GROW * seconds)
                    so_far = f"{TimeElapsedColumn().render(task)} so far"
                    left = f"{TimeRemainingColumn().render(task)} left"
                    shown = _joined(state, so_far, left if task.time_remaining else "")
                    console.note(f"{title}: {shown}")

        if at_once and bars.console.is_interactive:
            bars.start()
        try:
            yield show
        finally:
            bars.remove_task(number)


_under_way: Progress | None = None


@contextmanager
def _bars() -> Iterator[Progress]:
    """Yield the group of bars, which disappear at the end; nested work adds its bar below."""
    global _under_way
    if _under_way is not None:
        yield _under_way
        return
    terminal: Any = _Terminal(sys.stderr)
    bars = _under_way = Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=16),
        _State(),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        console=Console(file=terminal),
        transient=True,
        speed_estimate_period=_RATE_SECONDS,
        get_time=lambda: time.monotonic(),
    )
    try:
        yield bars
    finally:
        _under_way = None
        # Those that were never shown would end with an empty line.
        if bars.live.is_started:
            bars.stop()


class _State(ProgressColumn):
    """How far it is, and how fast; cut off if the terminal is narrow."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["state"], "cyan", no_wrap=True, overflow="ellipsis")


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

    def flush(self) -> None:
        """Nothing: `write` has flushed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _rate(task: Task, noun: str) -> str:
    speed = task.speed or 0.0
    if 0 < speed < 1:
        return f"{1 / speed:.1f} s/{noun}"
    return f"{speed:,.{0 if speed >= 100 else 1}f} {_plural(noun)}/s" if speed else ""


def _plural(noun: str) -> str:
    return noun if noun in ("it", "MB") else f"{noun}s"


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
