"""Progress of long work: share done, rate and time left.

A bar on a terminal, elsewhere a line now and then, so that logs stay readable, and nothing with
`--quiet`. Before that, as soon as it is known, how long all takes, and how much memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opensetda.cli import console
from opensetda.cli.pace import Pace, TrainingPace
from opensetda.progress import ProgressEvent, ProgressListener
from opensetda.system.memory import peak_megabytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

# Then at growing intervals: a day of work makes a page of log, quick work nothing.
_FIRST_LINE_SECONDS = 10.0
_LINES_GROW = 1.5

# What is expected is told if it is this many seconds, and not when most is done.
_WORTH_TELLING = 10.0
_LATEST_SHARE = 0.5

_SAME_FOR_MANY = ("it", "MB")


CountingProgress = Callable[..., None]
"""Called with how many items are done and how many there are.

Then perhaps a remark, a function of the seconds left, and the memory in MB."""


@contextmanager
def counting_progress(title: str, noun: str = "image") -> Iterator[CountingProgress]:
    """Yield a function that shows the progress of work on items, each a `noun` ("image")."""
    with _meter(title) as show:
        pace, expectation = Pace(), _Expectation(title)
        latest: int | None = None

        def tell(
            done: int,
            total: int,
            more: str = "",
            left: Callable[[], float | None] | None = None,
            megabytes: float | None = None,
        ) -> None:
            nonlocal latest, pace, expectation
            if latest is not None and done < latest:
                # The next batch of the same kind has a count of its own.
                pace, expectation, latest = Pace(), _Expectation(title), None
            pace.at(done)
            state = _joined([f"{done:,}/{total:,} {plural(noun)}", more])
            share, rate = done / total if total else 1.0, rate_text(pace.rate, noun)
            sign = _Sign(share, state, rate, left or (lambda: pace.left(total)))
            expectation.offer(sign, megabytes)
            show(sign)
            if latest is None:
                # Items done at once were found, not computed: they say nothing about the rate.
                pace.mark()
            latest = done

        yield tell


@contextmanager
def training_progress(title: str) -> Iterator[ProgressListener]:
    """Yield a listener that shows the progress of a training.

    In a log, each step that has iterations gets a line; long steps get more.
    """
    with _meter(title, at_once=True) as show:
        pace, expectation = TrainingPace(), _Expectation(title)
        latest: ProgressEvent | None = None

        def sign(event: ProgressEvent, due: bool = False) -> _Sign:
            rate = rate_text(pace.rate, "it" if event.iterations else "step")
            return _Sign(event.fraction, _state(event, is_over=due), rate, pace.left, due)

        def listen(event: ProgressEvent) -> None:
            nonlocal latest
            pace.at(event)
            # A step is over when the next one begins: after its last iteration it still ranks.
            if latest is not None and event.step > latest.step and latest.iterations:
                show(sign(latest, due=True))
            latest = event
            expectation.offer(sign(event))
            show(sign(event))

        yield listen
        if latest is not None:
            show(sign(latest, due=True))


class _Expectation:
    """The time and memory of one piece of work, told once, as soon as they are known."""

    def __init__(self, title: str) -> None:
        self._title, self._begun, self._told = title, time.monotonic(), False

    def offer(self, sign: _Sign, megabytes: float | None = None) -> None:
        left = None if self._told or sign.share > _LATEST_SHARE else sign.left()
        if left is None:
            return
        self._told = True
        memory = peak_megabytes() if megabytes is None else megabytes
        console.expect(self._begun, left, memory)
        if left >= _WORTH_TELLING:
            console.note(f"{self._title}: {_joined([f'about {duration(left)}', size(memory)])}")


def rate_text(rate: float | None, noun: str) -> str:
    """Return "85 images/s", or "4.1 s/step" for slow work; "" while unknown."""
    if rate is None:
        return ""
    if rate >= 1:
        return f"{rate:,.{0 if rate >= 100 else 1}f} {plural(noun)}/s"
    return f"{1 / rate:.1f} s/{noun}" if 1 / rate < 100 else f"{1 / rate / 60:.1f} min/{noun}"


def duration(seconds: float) -> str:
    """Return "42 s", "12 min" or "3 h 20 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def size(megabytes: float) -> str:
    """Return "640 MB of memory" or "1.8 GB of memory"; "" if unknown."""
    if math.isnan(megabytes):
        return ""
    amount = f"{megabytes:.0f} MB" if megabytes < 995 else f"{megabytes / 1000:.1f} GB"
    return f"{amount} of memory"


def plural(noun: str) -> str:
    """Return "images"; units stay as they are."""
    return noun if noun in _SAME_FOR_MANY else f"{noun}s"


def on_terminal() -> bool:
    """Whether stderr is a terminal that can show a bar."""
    from rich.console import Console

    return Console(stderr=True).is_terminal


@dataclass(frozen=True)
class _Sign:
    share: float
    state: str
    rate: str
    # Seconds left; a bar asks repeatedly.
    left: Callable[[], float | None]
    # Whether a line is due now, regardless of the time since the last.
    due: bool = False


_Show = Callable[[_Sign], None]


@contextmanager
def _meter(title: str, at_once: bool = False) -> Iterator[_Show]:
    """Yield what shows progress: on a bar, as a line, or not at all.

    A bar appears with the first report, unless `at_once`: downloads before it have their own bar.
    """
    from rich.console import Console

    if console.is_quiet():
        yield lambda sign: None
        return
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield _lines(title)
        return
    with _bars(screen) as bars:
        # Without a total the bar pulses.
        texts: dict[str, Any] = {"state": "", "rate": "", "left": lambda: None}
        task = bars.add_task(title, total=None, visible=at_once, **texts)

        def show(sign: _Sign) -> None:
            if not sign.due:
                bars.update(task, total=1.0, completed=sign.share, visible=True)
                bars.update(task, state=sign.state, rate=sign.rate, left=sign.left)
                bars.start()

        if at_once:
            bars.start()
        try:
            yield show
        finally:
            bars.remove_task(task)


_under_way: Progress | None = None


@contextmanager
def _bars(screen: Console) -> Iterator[Progress]:
    """Yield the group of bars, which disappear at the end; nested work adds its bar below."""
    global _under_way
    if _under_way is not None:
        yield _under_way
        return
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            left = task.fields["left"]()
            return Text("" if left is None else f"{duration(left)} left", style="cyan")

    title, state = TextColumn("[bold]{task.description}"), TextColumn("[cyan]{task.fields[state]}")
    rate, bar = TextColumn("{task.fields[rate]}"), BarColumn(bar_width=None)
    columns = (title, bar, state, rate, Elapsed(), TimeLeft())
    bars = _under_way = Progress(*columns, console=screen, transient=True, expand=True)
    try:
        yield bars
    finally:
        _under_way = None
        bars.stop()


def _lines(title: str) -> _Show:
    started = time.monotonic()
    next_line = _FIRST_LINE_SECONDS

    def show(sign: _Sign) -> None:
        nonlocal next_line
        seconds = time.monotonic() - started
        if not sign.due and (seconds < next_line or sign.share >= 1):
            return
        next_line = max(seconds + _FIRST_LINE_SECONDS, _LINES_GROW * seconds)
        left = sign.left()
        parts = [sign.state, sign.rate, duration(seconds)]
        parts += [] if left is None else [f"about {duration(left)} left"]
        console.note(f"{title}: {_joined(parts)}")

    return show


def _state(event: ProgressEvent, is_over: bool) -> str:
    parts = [f"step {event.step}/{event.steps}"]
    if event.iterations and not is_over:
        parts.append(f"iteration {event.iteration}/{event.iterations}")
    if event.loss is not None:
        parts.append(f"loss {event.loss:.3f}")
    if not is_over:
        parts.append("finishing" if event.fraction >= 1 else event.message)
    return _joined(parts)


def _joined(parts: list[str]) -> str:
    return ", ".join(part for part in parts if part)
