"""How fast work goes, and how many seconds are left: None until that is steady.

The first items are slower than the others (a network is loaded, memory is taken) and do not
count. The rate is that of the latest half of the latest samples, and steady when both halves
agree, or when a part of the work is done.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from opensetda.progress import ProgressEvent

# Shorter samples are joined; a time left needs this many seconds and samples.
_SAMPLES, _SHORTEST, _SECONDS, _FEWEST = 32, 0.25, 3.0, 3
# Halves that differ by more are not steady; after this share of the work they count anyway.
_DIFFERENCE, _SHARE = 0.25, 0.1


class Pace:
    """The rate of work, from samples of how much was done in how many seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self._done, self._begun = 0.0, False

    def add(self, amount: float, seconds: float) -> None:
        """Record work that took so many seconds."""
        if not self._begun:
            self._begun = True
            return
        self._done += amount
        if self._samples and self._samples[-1][1] < _SHORTEST:
            before = self._samples.pop()
            amount, seconds = before[0] + amount, before[1] + seconds
        self._samples.append((amount, seconds))

    @property
    def rate(self) -> float | None:
        """How much is done per second; None while unknown."""
        samples = list(self._samples)
        return _rate(samples[len(samples) // 2 :])

    def left(self, amount: float) -> float | None:
        """Return the seconds that this much work takes from now on; None while not steady."""
        samples, rate = list(self._samples), self.rate
        if rate is None or len(samples) < _FEWEST or sum(s for _, s in samples) < _SECONDS:
            return None
        earlier = _rate(samples[: len(samples) // 2])
        steady = earlier is not None and abs(rate / earlier - 1) <= _DIFFERENCE
        if not steady and self._done < _SHARE * (self._done + amount):
            return None
        return amount / rate


def _rate(samples: Sequence[tuple[float, float]]) -> float | None:
    amount, seconds = sum(a for a, _ in samples), sum(s for _, s in samples)
    return amount / seconds if amount > 0 and seconds > 0 else None


class TrainingPace:
    """The rate of a training: iterations, and what follows the last one of each step.

    The end of a step (features of all images, labels of all targets) may take as long as many
    iterations. Until one was measured it is what the training expects.
    """

    def __init__(self) -> None:
        self._pace, self._then = Pace(), float("nan")
        self._ending: float | None = None

    @property
    def rate(self) -> float | None:
        """Iterations per second, or steps if they have none."""
        return self._pace.rate

    def at(self, event: ProgressEvent) -> float | None:
        """Record an event that comes now, and return the seconds left.

        None while unknown, and for the final labelling.
        """
        now = time.monotonic()
        gap, self._then = now - self._then, now
        if event.entry is not None and event.iterations:
            self._ending = gap
        elif gap == gap:
            self._pace.add(1, gap)
        steps = event.steps - event.step
        if event.fraction >= 1 or not event.iterations:
            return None if event.fraction >= 1 else self._pace.left(steps)
        # The last of the iterations stands for the end of the step.
        per_step = max(event.iterations - 1, 1)
        iterations = max(per_step - event.iteration, 0) + steps * per_step
        left, rate = self._pace.left(iterations), self.rate
        if left is None or rate is None:
            return None
        ending = next((e for e in (self._ending, event.ending) if e is not None), 1 / rate)
        return left + (steps + (event.iteration < event.iterations)) * ending


class GridPace:
    """The rate of a grid: the runs of one method take about the same time each.

    `methods` has the method of every run, `at_once` is how many run at a time.
    """

    def __init__(self, methods: Sequence[str], at_once: int) -> None:
        self._begun = time.monotonic()
        self._todo = {name: methods.count(name) for name in dict.fromkeys(methods)}
        self._at_once, self._n = at_once, len(methods)
        self._seconds: dict[str, list[float]] = {name: [] for name in self._todo}

    def at(self, method: str, seconds: float | None) -> float | None:
        """Record a run that took some seconds (None: it failed), and return the seconds left.

        None until each method, or a fifth of all, is there.
        """
        self._todo[method] -= 1
        self._seconds[method] += [] if seconds is None else [seconds]
        n_left = sum(self._todo.values())
        done = [seconds for some in self._seconds.values() for seconds in some]
        missing = any(n and not self._seconds[name] for name, n in self._todo.items())
        elapsed = time.monotonic() - self._begun
        if not done or elapsed < _SECONDS or (missing and n_left > 0.8 * self._n):
            return None
        usual = sum(done) / len(done)
        each = {name: sum(s) / len(s) if s else usual for name, s in self._seconds.items()}
        todo = sum(n * each[name] for name, n in self._todo.items())
        # Runs that are under way are half done.
        begun = min(self._at_once - 1, n_left) * usual / 2
        return elapsed * ((sum(done) + todo) / (sum(done) + begun) - 1)
