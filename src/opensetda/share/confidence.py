"""What the votes of a committee are worth: doubts of all, the part that is right, classes to check.

The constants come from tasks with known labels: those of alarms and of the range were fitted, the
doubt was set by hand near fitted values (`docs/experiments.md`). `python benchmarks/answers.py`
says how far they hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from opensetda.rows import IntArray
from opensetda.share.decision import Matrix, Vector

# Members that see few classes agree on an unknown that resembles one. Logit of the part of every
# vote that is spread over all columns: constant, for the logarithm of the number of classes.
DOUBT = (-1.12, -1.2)
MOST_CLASSES = 10  # with more classes, doubts are those of so many
RIGHT = 0.45  # half the width of the range, in deviations of a label that is right or wrong
# Logit that fewer than 40 % of a class are right: constant, for its confidence, for its part of
# the votes for it.
ALARM = (6.43, -7.24, -3.22)
NAMED = 3  # classes in one warning; the others are counted


def doubt(n_classes: int) -> float:
    """Return how much of every vote is spread over all columns, which keep their order."""
    logit = DOUBT[0] + DOUBT[1] * np.log(min(n_classes, MOST_CLASSES))
    return float(1 / (1 + np.exp(-logit)))


def right_range(confidence: Vector) -> tuple[float, float]:
    """Return between which parts of the labels are right, on nine of ten tasks."""
    mean = float(np.mean(confidence)) if len(confidence) else 0.0
    half = RIGHT * float(np.sqrt(mean * (1 - mean)))
    return max(mean - half, 0.0), min(mean + half, 1.0)


class ClassAlarm(NamedTuple):
    """A class whose labels are probably wrong, or whose targets have another label."""

    name: str
    labelled: int
    """How many targets have its label."""
    expected: int
    """How many would have it if known targets were distributed as the source is."""
    confidence: float

    @property
    def sentence(self) -> str:
        """Why it is named."""
        if 2 * self.labelled < self.expected:
            many = "no target has" if not self.labelled else f"only {self.labelled:,} have"
            return f"{self.name!r} ({many} this label, of about {self.expected:,})"
        if not self.labelled:
            return f"{self.name!r} (no target has this label)"
        noun = "label" if self.labelled == 1 else "labels"
        return f"{self.name!r} ({self.labelled:,} {noun}, {self.confidence:.0%} sure)"


def class_alarms(
    votes: Matrix, labels: IntArray, of_source: Vector, names: Iterable[Any]
) -> tuple[ClassAlarm, ...]:
    """Find classes to check first, the worst first.

    Shapes: votes before any doubt (n, C + 1), labels (n,) with C for unknown, the part of each
    class in the source (C,).
    """
    n_known = int((labels < len(of_source)).sum())
    found: list[tuple[float, ClassAlarm]] = []
    for place, name in enumerate(names):
        own = votes[labels == place, place]
        confidence = float(own.mean()) if len(own) else 0.0
        part = (own.sum() + 0.5) / (votes[:, place].sum() + 1)
        logit = ALARM[0] + ALARM[1] * confidence + ALARM[2] * float(part)
        if logit > 0:
            expected = round(n_known * float(of_source[place]))
            found.append((logit, ClassAlarm(str(name), len(own), expected, confidence)))
    return tuple(alarm for _, alarm in sorted(found, key=lambda one: -one[0]))


def alarm_warnings(alarms: Sequence[ClassAlarm]) -> tuple[str, ...]:
    """Return one line about all classes to check; none without any."""
    if not alarms:
        return ()
    some = ", ".join(alarm.sentence for alarm in alarms[:NAMED])
    more = f" and {len(alarms) - NAMED} more" if len(alarms) > NAMED else ""
    classes = "this class are" if len(alarms) == 1 else "these classes are"
    return (
        f"most labels of {classes} probably wrong or missing, check them first with "
        f"'osda review RUN': {some}{more}",
    )
