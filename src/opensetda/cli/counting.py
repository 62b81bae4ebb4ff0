"""Progress of long work: share done, rate and time left.

A bar on a terminal, elsewhere a line now and then, so that logs stay readable, and nothing with
`--quiet`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opensetda.cli import console
from opensetda.progress import ProgressEvent, ProgressListener

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

# Then at growing intervals: a day of work makes a page of log, quick work nothing.
_FIRST_LINE_SECONDS = 10.0
_LINES_GROW = 1.5

_SAME_FOR_MANY = ("it", "MB")


CountingProgress = Callable[..., None]
"""Called with how many items are done, how many there are, and perhaps a remark."""


@contextmanager
def counting_progress(title: str, noun: str = "image") -> Iterator[CountingProgress]:
    """Yield a function that shows the progress of work on items, each a `noun` ("image")."""
    with _meter(title) as show:
        pace = Pace()
        latest: int | None = None

        def tell(done: int, total: int, more: str = "") -> None:
            nonlocal latest, pace
            if latest is not None and done < latest:
                # The next batch of the same kind has a count of its own.
                pace, latest = Pace(), None
            pace.at(done)
            state = _joined([f"{done:,}/{total:,} {plural(noun)}", more])
            share = done / total if total else 1.0
            show(_Sign(share, state, rate_text(pace.rate, noun), lambda: pace.left(total)))
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
        pace, updates = Pace(), Pace()
        n_events = 0
        latest: ProgressEvent | None = None

        def left() -> float | None:
            # How long the final labelling of the targets takes is not known.
            return None if latest is None or latest.fraction >= 1 else pace.left(1.0)

        def sign(event: ProgressEvent, due: bool = False) -> _Sign:
            rate = rate_text(updates.rate, "it" if event.iterations else "step")
            return _Sign(event.fraction, _state(event, is_over=due), rate, left, due)

        def listen(event: ProgressEvent) -> None:
            nonlocal latest, n_events
            if latest is None:
                # A resumed run has done the steps before in an earlier process.
                pace.begin_with(event.fraction_before)
            n_events += 1
            updates.at(n_events)
            pace.at(event.fraction)
            # A step is over when the next one begins: after its last iteration it still ranks.
            if latest is not None and event.step > latest.step and latest.iterations:
                show(sign(latest, due=True))
            latest = event
            show(sign(event))

        yield listen
        if latest is not None:
            show(sign(latest, due=True))


class Pace:
    """The rate of work since a mark."""

    def __init__(self) -> None:
        self._mark = self._latest = (time.monotonic(), 0.0)

    def begin_with(self, before: float) -> None:
        """Set how much was done at the start."""
        self._mark = (self._mark[0], before)

    def at(self, done: float) -> None:
        """Record how much is done now."""
        self._latest = (time.monotonic(), done)

    def mark(self) -> None:
        """Measure from here on."""
        self._mark = self._latest

    @property
    def rate(self) -> float | None:
        """How much is done per second; None while unknown."""
        (since, before), (now, done) = self._mark, self._latest
        return (done - before) / (now - since) if now > since and done > before else None

    def left(self, total: float) -> float | None:
        """Return the seconds left until `total`; None while unknown."""
        rate, (then, done) = self.rate, self._latest
        if rate is None:
            return None
        return max((total - done) / rate - (time.monotonic() - then), 0.0)


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
