"""What a report says: everything that is shown of a run, ready to be drawn.

`opensetda.report.collect` reads it from a run folder, `opensetda.report.page` makes an HTML file
of it and `opensetda.report.figures` figures for a paper. Nothing here is escaped: names are
as the user wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opensetda.runs.curves import Panel

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Sample:
    """The card of one target.

    Attributes
    ----------
    row : int
        Its row among the targets, from 0.
    name : str
        Its id: a file name, or a row number.
    nearest : str
        The class it would get if nothing were rejected.
    confidence, p_unknown : float
        The probability of the label, and of unknown.
    truth : str or None
        The true label, if it is known.
    picture : str or None
        A ``data:`` address of a thumbnail.
    """

    row: int
    name: str
    label: str
    nearest: str
    confidence: float
    p_unknown: float
    truth: str | None = None
    picture: str | None = None


@dataclass(frozen=True)
class LabelCount:
    """How many targets got a label, and the mean confidence of these labels."""

    name: str
    count: int
    share: float
    confidence: float | None
    is_unknown: bool = False


@dataclass(frozen=True)
class Openness:
    """The share of unknowns; `sentence` says where it comes from, `true` is known with truth."""

    share: float
    low: float
    high: float
    is_given: bool
    sentence: str
    true: float | None = None


@dataclass(frozen=True)
class KeptStep:
    """The step whose labels were kept, of how many, and why."""

    step: int
    steps: int
    reason: str


@dataclass(frozen=True)
class SampleMap:
    """Samples of both domains in a plane, at every step; sources first.

    Attributes
    ----------
    classes : tuple of str
        The known classes.
    true_classes : tuple of str
        All true classes, the known ones first in the same order; empty without truth.
    steps : tuple of int
        Numbers of the steps, ascending.
    kept : int
        Place of the kept step in `steps`.
    places : array of shape (steps, n, 2)
        Positions within [0, 1].
    is_target : bool array of shape (n,)
    labels : array of shape (steps, n)
        Index into `classes`, its length for unknown; of a source, its class at all steps.
    confidence : array of shape (n,)
        Of the final label; 1 for a source.
    truth : array of shape (n,) or None
        Index into `true_classes`; of a source, its class.
    names : tuple of str
        Ids of the samples, or "".
    pictures : tuple of (str or None)
        ``data:`` addresses of thumbnails.
    n_source, n_target : int
        Sizes of the domains, of which these samples are a part.
    moves : bool
        Whether positions differ from step to step, or only the labels.
    """

    classes: tuple[str, ...]
    true_classes: tuple[str, ...]
    steps: tuple[int, ...]
    kept: int
    places: Numbers
    is_target: npt.NDArray[np.bool_]
    labels: Indices
    confidence: Numbers
    truth: Indices | None
    names: tuple[str, ...]
    pictures: tuple[str | None, ...]
    n_source: int
    n_target: int
    moves: bool

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
class EdgeMap:
    """Learned affinities of pairs of nodes, and the labels of the nodes.

    Attributes
    ----------
    affinity : array of shape (N, N)
        In [0, 1]; ordered by class, unknown last, source before target.
    labels : array of shape (N,)
        Index into `names`.
    is_target : bool array of shape (N,)
    names : tuple of str
        The known classes, then the unknown label.
    """

    affinity: Numbers
    labels: Indices
    is_target: npt.NDArray[np.bool_]
    names: tuple[str, ...]


@dataclass(frozen=True)
class ClassGallery:
    """The most and the least confident targets of a label."""

    name: str
    count: int
    surest: tuple[Sample, ...]
    least_sure: tuple[Sample, ...]


@dataclass(frozen=True)
class UnknownGroup:
    """Unknowns that look alike.

    Attributes
    ----------
    number : int
        From 1, the largest group first.
    near : tuple of str
        The most frequent nearest known classes of its members.
    truth : tuple of (str, int)
        Their most frequent true classes, if the truth is known.
    typical : tuple of Sample
        The most typical members.
    """

    number: int
    size: int
    near: tuple[str, ...]
    truth: tuple[tuple[str, int], ...]
    typical: tuple[Sample, ...]


@dataclass(frozen=True)
class Report:
    """A whole report; what a run does not have is None or empty.

    Attributes
    ----------
    noun : str
        What a target is called: "image", "row".
    headline : str
        The result in one sentence.
    counts : tuple of LabelCount
        Known classes by size, unknown last.
    metrics : mapping of str to float, or None
        With truth: "HOS", "OS*", "UNK", "OS", "ALL", "AUROC" as fractions, in this order.
    panels : tuple of Panel
        Curves over steps.
    groups_note : str
        How the groups were made, and of how many unknowns.
    border : tuple of Sample
        Those nearest to the threshold, the nearest first.
    facts : mapping of str to mapping of str to str
        Heading -> name -> value: settings, environment, versions, command, time, memory.
    run : str
        The path of the run folder, for the commands that the page shows.
    """

    title: str
    noun: str
    headline: str
    n_source: int
    n_target: int
    counts: tuple[LabelCount, ...]
    openness: Openness
    kept: KeptStep | None
    warnings: tuple[str, ...]
    metrics: Mapping[str, float] | None
    panels: tuple[Panel, ...]
    n_steps: int
    map: SampleMap | None
    histogram: ScoreHistogram
    confusion: Confusion | None
    edges: EdgeMap | None
    galleries: tuple[ClassGallery, ...]
    groups: tuple[UnknownGroup, ...]
    groups_note: str
    border: tuple[Sample, ...]
    facts: Mapping[str, Mapping[str, str]]
    run: str
