"""What a report says: everything that is shown of a run, ready to be drawn.

`opensetda.report.collect` reads it from a run folder, `opensetda.report.page` makes an HTML file
of it. Nothing here is escaped: names are as the user wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from opensetda.share.report import ShareSource

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Sample:
    """The card of one target."""

    row: int  # among the targets, from 0
    name: str  # its id: a file name, or a row number
    label: str
    nearest: str  # the class it would get if nothing were rejected
    confidence: float  # the probability of the label
    p_unknown: float
    truth: str | None = None
    picture: str | None = None  # a data: address of a thumbnail
    others: tuple[tuple[str, float], ...] = ()  # what it may be otherwise, the likeliest first


@dataclass(frozen=True)
class LabelCount:
    """How many targets got a label, and the mean confidence of these labels."""

    name: str
    count: int
    share: float
    confidence: float | None


@dataclass(frozen=True)
class Openness:
    """The share of unknowns; `sentence` says where it comes from, `true` is known with truth.

    `low` and `high` are the interval of the audit, or else of the estimate, whether it was used
    or not.
    """

    share: float
    low: float
    high: float
    source: ShareSource
    sentence: str
    true: float | None = None
    # The estimates that it was weighed from: share, and which targets it counts.
    looked_at: tuple[tuple[float, str], ...] = ()
    confidence: float = 0.9  # of the interval

    @property
    def is_estimated(self) -> bool:
        """Whether the interval is that of the share."""
        return self.source in (ShareSource.ESTIMATED, ShareSource.AUDITED)

    @property
    def kind(self) -> str:
        """Where the share comes from, in words."""
        is_own = self.source is ShareSource.OWN_BOUNDARY
        return "by the method's own boundary" if is_own else self.source.value


@dataclass(frozen=True)
class SampleMap:
    """Samples of both domains in a plane, sources first."""

    classes: tuple[str, ...]
    true_classes: tuple[str, ...]  # the known ones first in the same order; empty without truth
    places: Numbers  # shape (n, 2), within [0, 1]
    is_target: npt.NDArray[np.bool_]
    labels: Indices  # into `classes`, or its length for unknown
    confidence: Numbers  # of the label; 1 for a source
    truth: Indices | None  # index into `true_classes`
    names: tuple[str, ...]  # ids of the samples, or ""
    pictures: tuple[str | None, ...]  # data: addresses of thumbnails
    n_source: int  # in the run, of which the map may have fewer
    n_target: int
    no_truth: int | None = None  # the index in `truth` of samples without a true label

    @property
    def is_sampled(self) -> bool:
        """Whether some samples are not in the map."""
        return len(self.names) < self.n_source + self.n_target


@dataclass(frozen=True)
class ScoreHistogram:
    """Known scores: bin edges, counts of both kinds, and the threshold if anything is unknown."""

    edges: Numbers
    known: Indices
    unknown: Indices
    threshold: float | None


@dataclass(frozen=True)
class Refit:
    """A command with a gap for the share, and one for its percentage in the folder's name."""

    head: str
    middle: str
    tail: str
    is_whole: bool  # False if options of the run may be missing


@dataclass(frozen=True)
class WhatIf:
    """The labels that another share of unknowns would give, by moving the threshold."""

    shares: tuple[float, ...]  # ascending
    cuts: tuple[float, ...]  # the threshold at each share
    used: int  # index of the run's own share
    counts: Indices  # shape (shares, classes + 1), unknown last; classes as in the map
    order: Indices  # targets of the map by ascending known score
    nearest: Indices  # their nearest class
    below: tuple[int, ...]  # how many of `order` are unknown at each share


@dataclass(frozen=True)
class Confusion:
    """Counts of targets by true class (rows) and label (columns).

    The first `n_known` rows are the known classes, each unknown class has a row of its own. The
    last column is the unknown label.
    """

    true_names: tuple[str, ...]
    given_names: tuple[str, ...]
    counts: Indices
    n_known: int


@dataclass(frozen=True)
class ClassGallery:
    """The most and the least confident targets of a label."""

    name: str
    count: int
    surest: tuple[Sample, ...]
    least_sure: tuple[Sample, ...]


@dataclass(frozen=True)
class UnknownGroup:
    """Unknowns that look alike; the largest group is the first."""

    size: int
    near: tuple[str, ...]  # the most frequent nearest known classes of its members
    truth: tuple[tuple[str, int], ...]  # their most frequent true classes
    typical: tuple[Sample, ...]


@dataclass(frozen=True)
class Series:
    """One line: its values by step."""

    name: str
    points: Mapping[float, float]
    color: str
    marker: str
    width: float = 1.6


@dataclass(frozen=True)
class LinePanel:
    """Lines over the steps of a method."""

    title: str
    unit: str
    series: Sequence[Series]
    percent: bool = False


@dataclass(frozen=True)
class Marks:
    """What a person said about targets, and what the next ten marks are expected to bring."""

    given: int  # labels by a person
    changed: int  # other labels that follow from them
    trust: float | None  # how far the votes were believed beside them
    gain: float  # the share of all labels that the next ten should put right
    asked: tuple[str, ...]  # the samples to mark next


@dataclass(frozen=True)
class Report:
    """A whole report; what a run does not have is None or empty."""

    title: str
    noun: str  # what a target is called: "image", "row"
    headline: str  # the result in one sentence
    how: tuple[str, ...]  # how the targets were labelled, in sentences
    n_target: int
    counts: tuple[LabelCount, ...]  # known classes by size, unknown last
    openness: Openness
    warnings: tuple[str, ...]
    metrics: Mapping[str, float] | None  # "HOS", "OS*", ... as fractions
    panels: tuple[LinePanel, ...]  # curves over steps
    map: SampleMap
    histogram: ScoreHistogram
    what_if: WhatIf
    refit: Refit  # the command for another share
    confusion: Confusion | None
    galleries: tuple[ClassGallery, ...]
    groups: tuple[UnknownGroup, ...]
    groups_note: str  # how the groups were made, and of how many unknowns
    border: tuple[Sample, ...]  # those nearest to the threshold, the nearest first
    facts: Mapping[str, Mapping[str, str]]  # heading -> name -> value: settings, versions, ...
    run: str  # the path of the run folder, for the commands that the page shows
    n_truth: int | None = None  # targets with a true label, if not all have one
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of `metrics`
    marks: Marks | None = None
