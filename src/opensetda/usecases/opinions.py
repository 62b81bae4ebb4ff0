"""Second opinions: how far other methods agree with the labels of a run.

A method's own probabilities do not know what it does not know. Other quick methods see the same
rows in another way, and a label that they share is right more often. The part of the opinions that
agree, with a share of unknowns that is only known to an interval, is the probability of a label;
measured on suites of several fields, it needs no further correction (docs/label-free.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from opensetda.context import FitContext
from opensetda.methods.base import OpenSetClassifier
from opensetda.methods.daod import DAOD
from opensetda.metrics.open_set import evaluate
from opensetda.rows import IntArray, Rows, canonical_source, first_of_every_class, split_domains
from opensetda.runs.options import OPINIONS
from opensetda.runs.registry import method_class, method_name
from opensetda.share.decision import Matrix, Vector, unknown_votes, votes_for

# Methods and scalings that differ most from each other, in the order in which they are asked.
OTHERS = (
    ("daod", "standard"),
    ("smoothed-means", "ranks"),
    ("moving-means", "none"),
    ("moving-means", "ranks"),
    ("daod", "none"),
)
MOST_ROWS = 800
"""Rows of each domain that an opinion learns from; it is then asked about all targets."""
HIDDEN_CLASSES = 3  # of the source, on which methods are compared without labels of the target
DISPUTED = 1 / 3  # warn if others disagree with so many labels, on average


class Opinion(NamedTuple):
    """What a method says of all targets: its vote for unknown, the rest is for the nearest class.

    With many classes the votes of all methods as matrices would need gigabytes.
    """

    method: str
    scaling: str
    unknown: Vector
    nearest: IntArray
    n_classes: int

    @property
    def votes(self) -> Matrix:
        """The votes for each class and for unknown: (n, C + 1)."""
        return votes_for(self.unknown, self.nearest, self.n_classes)

    @property
    def labels(self) -> IntArray:
        """The labels, C for unknown: (n,)."""
        return np.where(self.unknown > 0.5, self.n_classes, self.nearest)


def mean_votes(opinions: Sequence[Opinion]) -> Matrix:
    """Return the mean of the votes of all opinions: (n, C + 1)."""
    total = opinions[0].votes
    for opinion in opinions[1:]:
        total += opinion.votes
    total /= len(opinions)
    return total


def second_opinions(
    classifier: OpenSetClassifier,
    X: npt.NDArray[Any],
    y: npt.NDArray[Any],
    sample_domain: npt.NDArray[Any],
    number: int = OPINIONS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Opinion]:
    """Ask other methods, and let `classifier` take the votes as the probabilities of its labels.

    X, y and `sample_domain` are those of its `fit`. Its labels stay. Returns its own opinion, then
    the others.
    """
    names, n_classes = classifier.classes_, len(classifier.classes_)
    of_source, of_target = split_domains(sample_domain, len(X))
    report, largest = classifier.openness_report_, 1 - 1 / (len(of_target) + 1)
    share = min(report.share, largest)
    voting_share = min(report.share_of(classifier.transduction_scores_), largest)
    # In canonical order the first rows are a random sample that the caller's order has no part in.
    classes = np.searchsorted(names, y[of_source].astype(names.dtype))
    source, classes = canonical_source(Rows(X, of_source), classes)
    some = source.take(first_of_every_class(classes, n_classes, MOST_ROWS)).index
    target = Rows(X, of_target)
    rows = np.sort(np.concatenate([some, target.in_canonical_order().first(MOST_ROWS).index]))

    def opinion(name: str, scaling: str, known: Any, nearest: IntArray) -> Opinion:
        unknown = unknown_votes(known, voting_share, report.spread)
        return Opinion(name, scaling, unknown, nearest, n_classes)

    own = method_name(classifier), classifier.scaler_.name
    nearest = np.searchsorted(names, classifier.transduction_nearest_)
    found = [opinion(*own, classifier.transduction_scores_, nearest)]
    able = [other for other in OTHERS if other[0] != "daod" or n_classes <= DAOD.most_classes]
    asked = [other for other in able if other != own][:number]
    for done, (name, scaling) in enumerate(asked, start=1):
        label = classifier.unknown_label
        other = method_class(name)(share, scaling=scaling, unknown_label=label)
        other.fit(X[rows], y[rows], sample_domain[rows], FitContext())
        parts = (other.open_set_scores(chunk) for _, chunk in target.chunks())
        pairs = [(scores.known, scores.nearest) for scores in parts]
        known, nearest = (np.concatenate(values) for values in zip(*pairs, strict=True))
        found.append(opinion(name, scaling, known, nearest))
        progress(done, len(asked))
    if asked:
        classifier.calibrate(mean_votes(found))
    return found


def dispute(opinions: list[Opinion]) -> list[str]:
    """Return a warning if the others, on average, disagree with many labels of the first."""
    own, *others = (opinion.labels for opinion in opinions)
    differ = float(np.mean([labels != own for labels in others]))
    if differ <= DISPUTED:
        return []
    return [
        f"other methods disagree with {differ:.0%} of the labels: compare them with 'osda "
        "benchmark SOURCE TARGET --unlabelled', and check labels with 'osda review RUN'"
    ]


class Compared(NamedTuple):
    """A method on data without labels of the target.

    The shares of targets that it calls unknown, and that another method, on average, labels alike;
    HOS on parts of the source in which a class was hidden, NaN with two classes.
    """

    method: str
    scaling: str
    unknown: float
    agreement: float
    hidden_hos: float


def compare_opinions(
    X: npt.NDArray[Any],
    y: npt.NDArray[Any],
    target: npt.NDArray[Any],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Compared]:
    """Compare the default and the others on a labelled source and a target without labels."""
    both = np.concatenate([X, target]).astype(np.float32)
    labels = np.concatenate([y, np.repeat(y[:1], len(target))])
    domain = np.repeat([0, -1], [len(X), len(target)])
    run = method_class("moving-means")().fit(both, labels, domain, FitContext())
    found = second_opinions(run, both, labels, domain, len(OTHERS), progress)
    given = np.stack([opinion.labels for opinion in found])
    alike = (given[:, None] == given[None]).mean(axis=2)
    compared = []
    for opinion, own, shared in zip(found, given, alike, strict=True):
        unknown = float((own == len(run.classes_)).mean())
        others = float((shared.sum() - 1) / (len(found) - 1))
        hidden = _hidden_hos(both[: len(X)], y, opinion)
        compared.append(Compared(opinion.method, opinion.scaling, unknown, others, hidden))
    return compared


def _hidden_hos(X: npt.NDArray[Any], y: npt.NDArray[Any], opinion: Opinion) -> float:
    """Hide some classes in turn: half of the other rows are the source, the rest the target."""
    names = np.unique(y)
    if len(names) < 3:
        return float("nan")
    rng, scores = np.random.default_rng(0), []
    for hidden in rng.permutation(names)[:HIDDEN_CLASSES]:
        rows = rng.permutation(len(y))[:MOST_ROWS]
        # Every class has a row in the source.
        first = np.concatenate([rows[::2], [np.flatnonzero(y == name)[0] for name in names]])
        first, second = first[y[first] != hidden], rows[1::2]
        chosen = np.concatenate([first, second])
        domain = np.repeat([0, -1], [len(first), len(second)])
        classifier = method_class(opinion.method)(
            float((y[second] == hidden).mean()), scaling=opinion.scaling
        )
        classifier.fit(X[chosen], y[chosen], domain, FitContext())
        scores.append(evaluate(y[second], classifier.transduction_, classifier.classes_).hos)
    return float(np.nanmean(scores))
