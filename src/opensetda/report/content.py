"""What a report says: everything that is shown of a run, ready to be drawn.

`opensetda.report.collect` gets it from a run folder, `opensetda.report.page` makes an HTML file
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
    """One target, as a card shows it.

    Attributes
    ----------
    row : int
        Its row among the targets, from 0.
    name : str
        Its id: a file name, or a row number.
    label : str
        What it was labelled.
    nearest : str
        The class it would get if nothing were rejected.
    confidence, p_unknown : float
        The probability of the label, and of unknown.
    truth : str or None
        What it is, if the truth was given.
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
    """How many targets got a label, and how sure that is on average."""

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
    told: bool
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
    """Samples of both domains in a plane, at every step.

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
        Where each sample is at each step, within [0, 1].
    is_target : bool array of shape (n,)
        The samples' domain; sources first.
    labels : array of shape (steps, n)
        Index into `classes`, its length for unknown; of a source, its class at all steps.
    confidence : array of shape (n,)
        Of the final label; 1 for a source.
    truth : array of shape (n,) or None
        Index into `true_classes`; of a source, its class.
    names : tuple of str
        Ids of the samples; "" where there is none.
    pictures : tuple of (str or None)
        ``data:`` addresses of thumbnails.
    n_source, n_target : int
        How many there are in all, of which these are a sample.
    moves : bool
        Whether the places differ from step to step, or only the labels.
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
    """Known scores of the targets, those labelled known and unknown, and the threshold.

    Attributes
    ----------
    edges : array of shape (bins + 1,)
    known, unknown : arrays of int of shape (bins,)
        How many were labelled so.
    threshold : float or None
        Below it a target is unknown; None if nothing was rejected.
    """

    edges: Numbers
    known: Indices
    unknown: Indices
    threshold: float | None


@dataclass(frozen=True)
class Confusion:
    """How targets of each true class were labelled.

    Attributes
    ----------
    true_names : tuple of str
        A row each; unknown classes are listed one by one, after the known ones.
    given_names : tuple of str
        A column each: the known classes, then the unknown label.
    counts : array of shape (rows, columns)
    n_known : int
        The first so many rows are known classes.
    """

    true_names: tuple[str, ...]
    given_names: tuple[str, ...]
    counts: Indices
    n_known: int


@dataclass(frozen=True)
class EdgeMap:
    """What the network makes of pairs of nodes, beside what their labels say.

    Attributes
    ----------
    affinity : array of shape (N, N)
        Learned, in [0, 1]; ordered by class, unknown last, source before target.
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
    """The surest and the least sure targets of a label."""

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
    size : int
        How many targets are in it.
    near : tuple of str
        The known classes that its members are nearest to, the most frequent first.
    truth : tuple of (str, int)
        What they are, if the truth was given, the most frequent first.
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
    """A whole report.

    Attributes
    ----------
    title : str
        A short line: what was labelled, by what.
    noun : str
        What a target is called: "image", "row", "digit".
    headline : str
        One sentence in words.
    n_source, n_target : int
        How many samples there are.
    counts : tuple of LabelCount
        Known classes by size, unknown last.
    openness : Openness
    kept : KeptStep or None
    warnings : tuple of str
        In words.
    metrics : mapping of str to float, or None
        With truth: "HOS", "OS*", "UNK", "OS", "ALL", "AUROC" as fractions, in this order.
    panels : tuple of Panel
        Curves over steps.
    n_steps : int
        How many steps there were.
    map : SampleMap or None
    histogram : ScoreHistogram
    confusion : Confusion or None
    edges : EdgeMap or None
    galleries : tuple of ClassGallery
    groups : tuple of UnknownGroup
    groups_note : str
        How the groups were made, and of how many unknowns.
    border : tuple of Sample
        Those nearest to the threshold, the nearest first.
    facts : mapping of str to mapping of str to str
        Heading -> name -> value: settings, environment, versions, command, time, memory.
    run : str
        The run folder's path, for commands that are shown.
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
