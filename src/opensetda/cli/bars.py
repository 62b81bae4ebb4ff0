"""Progress of long work on stderr: a bar on a terminal, lines elsewhere, nothing with `--quiet`.

Rate and time left are those of rich. It gets whole numbers only, because its arithmetic fails on
NaN, and errors of the terminal are ignored: a progress line must never end a run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.progress import TimeRemainingColumn as Remaining
from rich.table import Column
from rich.text import Text

from opensetda.cli import console
from opensetda.progress import ProgressEvent, ProgressListener

# In a log. The intervals grow: a day of work makes a page, quick work nothing.
_FIRST_LINE_SECONDS, _LINES_GROW = 10.0, 1.5
# The rate is that of the latest iterations or runs within this time.
_RATE_SECONDS = 3600.0

CountingProgress = Callable[..., None]
"""Called with how many items are done, how many there are, and perhaps a remark."""


@contextmanager
def counting_progress(title: str, noun: str = "image") -> Iterator[CountingProgress]:
    """Yield a function that shows the progress of work on items, each a `noun` ("image")."""
    with _meter(title) as show:

        def tell(done: int, total: int, remark: str = "") -> None:
            done, total = _whole(done), _whole(total)
            show(done, total, noun, f"{done:,}/{total:,} {_plural(noun)}", remark)

        yield tell


@contextmanager
def training_progress(title: str) -> Iterator[ProgressListener]:
    """Yield a listener that shows the progress of a training.

    In a log, each step that has iterations gets a line, and so does the last of those without.
    """
    with _meter(title, at_once=True) as show:

        def listen(event: ProgressEvent) -> None:
            step, steps = _whole(event.step), _whole(event.steps)
            done, each = _whole(event.iteration), _whole(event.iterations)
            count = max(step - 1, 0) * max(each, 1) + (done if each else 1)
            total, is_over = steps * max(each, 1), event.entry is not None
            within = f"iteration {done}/{each}" if each and not is_over else ""
            loss = "" if event.loss is None else f"loss {event.loss:.3f}"
            doing = "finishing" if count >= total else event.message
            parts = ("it" if each else "step", f"step {step}/{steps}", within, loss, doing)
            show(count, total, *parts, line=is_over and (each > 0 or step == steps))

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
        number = bars.add_task(title, total=None, visible=at_once, state="", noun="")
        task = next(task for task in bars.tasks if task.id == number)

        def show(done: int, total: int, noun: str, *parts: str, line: bool = False) -> None:
            nonlocal next_line
            if done < task.completed:
                # The next lot has a rate of its own.
                bars.reset(number)
            state = _joined(*parts)
            bars.update(number, completed=done, total=total, visible=True, state=state, noun=noun)
            seconds = time.monotonic() - begun
            if bars.console.is_interactive:
                bars.start()
            elif line or (seconds >= next_line and done < total):
                next_line = max(seconds + _FIRST_LINE_SECONDS, _LINES_GROW * seconds)
                so_far, left = f"{Elapsed().render(task)} so far", _Left().render(task).plain
                console.note(f"{title}: {_joined(state, _rate(task), so_far, left)}")

        if at_once and bars.console.is_interactive:
            bars.start()
        try:
            yield show
        finally:
            bars.remove_task(number)


class _State(ProgressColumn):
    """How far it is, and how fast; cut off if the terminal is narrow."""

    def render(self, task: Task) -> Text:
        text = _joined(task.fields["state"], _rate(task))
        return Text(text, "cyan", no_wrap=True, overflow="ellipsis")


class _Left(Remaining):
    def render(self, task: Task) -> Text:
        return Text(f"{super().render(task)} left" if task.time_remaining else "")


class _Screen(Console):
    def on_broken_pipe(self) -> None:
        console.print_nowhere(sys.stderr)


class _Bars(Progress):
    """Bars that ignore errors of the terminal: its window may be closed."""

    def start(self) -> None:
        with suppress(OSError):
            super().start()

    def stop(self) -> None:
        # Those that were never shown would end with an empty line.
        if self.live.is_started:
            with suppress(OSError):
                super().stop()

    def refresh(self) -> None:
        with suppress(OSError):
            super().refresh()


_under_way: _Bars | None = None


@contextmanager
def _bars() -> Iterator[_Bars]:
    """Yield the group of bars, which disappear at the end; nested work adds its bar below."""
    global _under_way
    if _under_way is not None:
        yield _under_way
        return
    bars = _under_way = _Bars(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=16),
        _State(),
        _Left(table_column=Column(no_wrap=True)),
        console=_Screen(stderr=True),
        transient=True,
        speed_estimate_period=_RATE_SECONDS,
        get_time=lambda: time.monotonic(),
    )
    try:
        yield bars
    finally:
        _under_way = None
        bars.stop()


def _rate(task: Task) -> str:
    speed, noun = task.speed or 0.0, task.fields["noun"]
    if 0 < speed < 1:
        return f"{1 / speed:.1f} s/{noun}"
    return f"{speed:,.{0 if speed >= 100 else 1}f} {_plural(noun)}/s" if speed else ""


def _whole(number: float) -> int:
    """Return a count that rich can reckon with, 0 for NaN."""
    return int(min(max(number, 0), sys.maxsize)) if number == number else 0


def _plural(noun: str) -> str:
    return noun if noun in ("it", "MB") else f"{noun}s"


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
