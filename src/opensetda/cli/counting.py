"""Progress of long work: share done, rate and time left.

A bar on a terminal, elsewhere a line now and then, so that logs stay readable, and nothing with
`--quiet`. Before that, as soon as it is known, how long all takes, and how much memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

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

# Elapsed time, gaps between columns, and a bar that is long enough to see.
_ROOM_BESIDE = 7 + 3 + 8

_SAME_FOR_MANY = ("it", "MB")


CountingProgress = Callable[..., None]
"""Called with how many items are done and how many there are.

Then perhaps a remark, the seconds left, and the memory in MB."""


@contextmanager
def counting_progress(
    title: str, noun: str = "image", alike: bool = True
) -> Iterator[CountingProgress]:
    """Yield a function that shows the progress of work on items, each a `noun` ("image").

    The time left of items that are not `alike` is given by the caller.
    """
    with _meter(title) as show:
        pace, expectation = Pace(), _Expectation(title)
        latest, then = None, 0.0

        def tell(
            done: int,
            total: int,
            more: str = "",
            left: float | None = None,
            megabytes: float | None = None,
        ) -> None:
            nonlocal latest, then, pace, expectation
            now = time.monotonic()
            if latest is None or done < latest:
                # Items done at once were found, not computed; the next batch has its own count.
                pace, expectation, then = Pace(), _Expectation(title), now
            elif done > latest:
                pace.add(done - latest, now - then)
                then = now
            latest = done
            left = pace.left(total - done) if alike else left
            state = f"{done:,}/{total:,} {plural(noun)}"
            sign = _Sign(done / total if total else 1.0, state, rate_text(pace.rate, noun), left)
            expectation.offer(sign, megabytes)
            show(replace(sign, details=(more,)))

        yield tell


@contextmanager
def training_progress(title: str) -> Iterator[ProgressListener]:
    """Yield a listener that shows the progress of a training.

    In a log, each step that has iterations gets a line; long steps get more.
    """
    with _meter(title, at_once=True) as show:
        pace, expectation = TrainingPace(), _Expectation(title)
        latest: ProgressEvent | None = None

        def sign(event: ProgressEvent, left: float | None, due: bool = False) -> _Sign:
            rate = rate_text(pace.rate, "it" if event.iterations else "step")
            state, details = f"step {event.step}/{event.steps}", _details(event, is_over=due)
            return _Sign(event.fraction, state, rate, left, details, due)

        def listen(event: ProgressEvent) -> None:
            nonlocal latest
            left = pace.at(event)
            # A step is over when the next one begins: after its last iteration it still ranks.
            if latest is not None and event.step > latest.step and latest.iterations:
                show(sign(latest, left, due=True))
            latest = event
            expectation.offer(sign(event, left))
            show(sign(event, left))

        yield listen
        if latest is not None:
            show(sign(latest, None, due=True))


class _Expectation:
    """The time and memory of one piece of work, told once, as soon as they are known."""

    def __init__(self, title: str) -> None:
        self._title, self._begun, self._told = title, time.monotonic(), False

    def offer(self, sign: _Sign, megabytes: float | None = None) -> None:
        left = sign.left
        if self._told or sign.share > _LATEST_SHARE or left is None:
            return
        self._told = True
        memory = peak_megabytes() if megabytes is None else megabytes
        console.expect(self._begun, left, memory)
        if left >= _WORTH_TELLING:
            console.note(f"{self._title}: {_joined(f'about {duration(left)}', size(memory))}")


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
    # Seconds left when it was made.
    left: float | None
    # The least important last: a bar shows those that fit.
    details: Sequence[str] = ()
    # Whether a line is due now, regardless of the time since the last.
    due: bool = False
    made: float = field(default_factory=lambda: time.monotonic())

    def within(self, room: int) -> str:
        """Return as much as fits: state, time left, rate and details, in order of importance."""
        left = self.left
        if left is not None:
            left = max(left - (time.monotonic() - self.made), 0.0)
        time_left = "" if left is None else f"{duration(left)} left"
        wanted, kept = [self.state, time_left, self.rate, *self.details], 1
        for many in range(2, len(wanted) + 1):
            kept = many if len(_joined(*wanted[:many])) <= room else kept
        shown = wanted[:kept]
        return _joined(shown[0], *shown[3:], *shown[2:3], *shown[1:2])


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
        task = bars.add_task(title, total=None, visible=at_once, sign=None)

        def show(sign: _Sign) -> None:
            if not sign.due:
                bars.update(task, total=1.0, completed=sign.share, visible=True, sign=sign)
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
    from rich.table import Column
    from rich.text import Text

    class Details(ProgressColumn):
        def render(self, task: Task) -> Text:
            titles = max(len(other.description) for other in bars.tasks)
            sign = task.fields["sign"]
            room = screen.width - titles - _ROOM_BESIDE
            return Text("" if sign is None else sign.within(room), style="cyan")

    title, bar = TextColumn("[bold]{task.description}"), BarColumn(bar_width=None)
    columns = (title, bar, Details(Column(no_wrap=True)), Elapsed())
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
        left = "" if sign.left is None else f"about {duration(sign.left)} left"
        parts = _joined(sign.state, *sign.details, sign.rate, duration(seconds), left)
        console.note(f"{title}: {parts}")

    return show


def _details(event: ProgressEvent, is_over: bool) -> list[str]:
    loss = "" if event.loss is None else f"loss {event.loss:.3f}"
    if is_over:
        return [loss]
    done = f"iteration {event.iteration}/{event.iterations}" if event.iterations else ""
    return [done, loss, "finishing" if event.fraction >= 1 else event.message]


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
