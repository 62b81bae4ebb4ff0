"""How fast work goes, and how long the rest takes: None until that is known.

The first items are slower than the others (a network is loaded, memory is taken), and some are
much faster (they are cached). The rate is therefore that of the latest half of the work, and it
counts as known when its two halves agree, or when a part of the work is done.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter

from opensetda.progress import ProgressEvent

# A rate needs this many seconds and reports, and a time window that is not a burst of reports.
_SECONDS, _WINDOW, _REPORTS = 3.0, 1.0, 4
# Halves that differ by more are not steady; after this share of the work they count anyway.
_DIFFERENCE, _SHARE = 0.2, 0.05
_MOST_POINTS = 256


class Pace:
    """The rate of work since a mark; times are in seconds of any clock."""

    def __init__(self, now: float | None = None, done: float = 0.0) -> None:
        # Replaced or appended to, never shortened: another thread may read it to draw a bar.
        self._points = [(time.monotonic() if now is None else now, done)]

    def at(self, done: float, now: float | None = None) -> None:
        """Record how much is done now."""
        if done <= self._points[-1][1]:
            return
        if len(self._points) >= _MOST_POINTS:
            self._points = self._points[:1] + self._points[1::2]
        self._points.append((time.monotonic() if now is None else now, done))

    def mark(self) -> None:
        """Measure from here on."""
        self._points = self._points[-1:]

    @property
    def rate(self) -> float | None:
        """How much is done per second, in the latest half of the work; None while unknown."""
        points = self._points
        return _rate(_later_half(points), points[-1])

    def steady_rate(self, total: float) -> float | None:
        """Return the rate if it is reliable, for work that ends at `total`; else None."""
        points = list(self._points)
        begun, middle, now = points[0], _later_half(points), points[-1]
        # The first report alone says nothing: it has all that is done once.
        if len(points) < 3 or now[0] - begun[0] < _SECONDS or now[0] - middle[0] < _WINDOW:
            return None
        if now[1] - begun[1] < _SHARE * (total - begun[1]):
            if len(points) <= _REPORTS:
                return None
            between = points[bisect_left(points, (now[0] + middle[0]) / 2, key=itemgetter(0))]
            first, second = _rate(middle, between), _rate(between, now)
            if first is None or second is None or abs(second / first - 1) > _DIFFERENCE:
                return None
        return _rate(middle, now)

    def left(self, total: float) -> float | None:
        """Return the seconds left until `total`; None while unknown."""
        rate, (then, done) = self.steady_rate(total), self._points[-1]
        return None if rate is None else max((total - done) / rate - (time.monotonic() - then), 0.0)


_Point = tuple[float, float]
"""A time, and how much was done by then."""


def _later_half(points: Sequence[_Point]) -> _Point:
    """Return where the latest half of the work begins; not at its end."""
    amount = (points[0][1] + points[-1][1]) / 2
    return points[min(bisect_left(points, amount, key=itemgetter(1)), max(len(points) - 2, 0))]


def _rate(first: _Point, last: _Point) -> float | None:
    (since, before), (now, done) = first, last
    return (done - before) / (now - since) if now > since and done > before else None


class TrainingPace:
    """The rate of a training: iterations, and what follows the last one of each step.

    The end of a step (features of all images, labels of all targets) may take as long as many
    iterations. Until one was measured it is what the training expects.
    """

    def __init__(self) -> None:
        self._latest: ProgressEvent | None = None
        self._then = self._clock = 0.0
        self._iterations, self._steps = Pace(0.0), Pace(0.0)
        self._n_iterations = self._n_steps = 0
        self._ending: float | None = None

    def at(self, event: ProgressEvent) -> None:
        """Record an event that comes now."""
        now, latest = time.monotonic(), self._latest
        self._latest, gap = event, now - self._then
        self._then = now
        # All that is done before the first event is done once.
        if latest is None:
            return
        if event.entry is not None and event.iterations:
            self._ending = gap
        else:
            # The ends of steps are no part of this clock.
            self._clock += gap
            if event.iterations:
                self._n_iterations += 1
                self._iterations.at(self._n_iterations, self._clock)
            else:
                self._n_steps += 1
                self._steps.at(self._n_steps, self._clock)

    @property
    def rate(self) -> float | None:
        """Iterations per second, or steps if they have none."""
        event = self._latest
        return self._iterations.rate if event and event.iterations else self._steps.rate

    def left(self) -> float | None:
        """Return the seconds left; None while unknown, and for the final labelling."""
        event = self._latest
        if event is None or event.fraction >= 1:
            return None
        steps = event.steps - event.step
        waited = time.monotonic() - self._then
        if not event.iterations:
            rate = self._steps.steady_rate(self._n_steps + steps)
            return None if rate is None else max(steps / rate - waited, 0.0)
        # The last of the iterations stands for the end of the step.
        per_step = max(event.iterations - 1, 1)
        iterations = max(per_step - event.iteration, 0) + steps * per_step
        rate = self._iterations.steady_rate(self._n_iterations + iterations)
        if rate is None:
            return None
        ends = steps + (event.iteration < event.iterations)
        ending = self._ending if self._ending is not None else event.ending
        ending = 1 / rate if ending is None else ending
        return max(iterations / rate + ends * ending - waited, 0.0)


class GridPace:
    """The rate of a grid: the runs of one method take about the same time each.

    `methods` has the method of every run, `at_once` is how many run at a time.
    """

    def __init__(self, methods: Sequence[str], at_once: int) -> None:
        self._begun = self._then = time.monotonic()
        self._left = {name: methods.count(name) for name in dict.fromkeys(methods)}
        self._at_once, self._n = at_once, len(methods)
        self._seconds: dict[str, list[float]] = {name: [] for name in self._left}

    def at(self, method: str, seconds: float | None) -> None:
        """Record a run that took some seconds; None: it failed."""
        self._then = time.monotonic()
        self._left[method] -= 1
        if seconds is not None:
            self._seconds[method].append(seconds)

    def left(self) -> float | None:
        """Return the seconds left; None until each method, or a fifth of all, is there."""
        n_left = sum(self._left.values())
        missing = any(n and not self._seconds[name] for name, n in self._left.items())
        elapsed = self._then - self._begun
        done = [seconds for some in self._seconds.values() for seconds in some]
        if not done or elapsed < _SECONDS or (missing and n_left > 0.8 * self._n):
            return None
        usual = sum(done) / len(done)
        todo = sum(n * _mean(self._seconds[name], usual) for name, n in self._left.items())
        # Runs that are under way are half done.
        begun = min(self._at_once - 1, n_left) * usual / 2
        share = (sum(done) + begun) / (sum(done) + todo)
        return max(elapsed * (1 / share - 1) - (time.monotonic() - self._then), 0.0)


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
