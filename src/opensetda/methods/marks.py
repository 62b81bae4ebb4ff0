r"""What a person said about some targets, spread to the others.

A method votes, and marks correct it. With :math:`p_i` the votes for target i, over the classes and
unknown, and :math:`y_i` the mark of a target, the corrected probabilities are

.. math::
    f_i = \bar p_i + k_i^\top (K + \sigma^2 I)^{-1} (Y - \bar P), \quad
    \bar p_i = a\, p_i + (1 - a) / (C + 1)

which is the posterior mean of a Gaussian process whose prior mean are the votes, and whose kernel
:math:`k_{ij}` is the share of the partitions in which targets i and j are in one group
(`opensetda.methods.groups`). How far the votes can be believed, :math:`a`, and a mark,
:math:`\sigma^2`, is what predicts each mark best from the others. So marks that agree with the
votes leave them as they are elsewhere, and marks that contradict them let the groups decide.

The next target to ask for is the one whose mark is expected to settle most doubtful labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri
from torch import Tensor, nn

from opensetda.methods.groups import TargetGroups
from opensetda.methods.saving import rejection_numbers
from opensetda.rows import KNOWN, IntArray, Marks, Rows
from opensetda.share.decision import Decision, Matrix, Vector
from opensetda.share.evidence import CONFIDENCE, ShareEstimate

TRUSTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""What a may be, how far the votes are believed."""
NOISES = (0.02, 0.1, 0.3, 1.0)
"""What the variance of a mark may be, as a part of that of the votes' error."""
USUAL_TRUST, USUAL_NOISE = 0.75, 0.1
STRENGTH = 3.0  # log-likelihood that a trust costs which is 1 away from the usual one
LEAST = 1e-4  # of a probability, before all are divided by their sum
WRONG = 0.05
"""The share of the marks that are wrong, as far as is known before."""
ALSO_SURE = 0.07  # added to the doubt of every label: also sure votes are wrong together
FEWEST_MARKS = 10  # of fewer marks no share of unknowns is computed


@dataclass(frozen=True)
class Spread:
    """How marks correct the votes for n targets in groups; columns are classes, then unknown."""

    trust: float
    noise: float
    weights: Matrix
    """What each group adds to the probabilities of its members: (G, C + 1)."""
    settled: Matrix
    """Directions over groups about which the marks say something (G, r), by how much."""
    starts: IntArray
    """The first group of each partition among all G: (L,)."""

    @classmethod
    def fit(
        cls,
        votes: Matrix,
        cells: IntArray,
        rows: IntArray,
        labels: IntArray,
        trust: float | None = None,
    ) -> Spread:
        """Learn from marks of some rows: (n, C + 1), (n, L), (m,), (m,).

        `trust` fixes how far votes are believed that have already heard of the marks.
        """
        sizes = cells.max(axis=0) + 1
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        n_groups = int(sizes.sum())
        n_columns = votes.shape[1]
        if not len(rows):
            none = np.zeros((n_groups, n_columns))
            return cls(1.0, USUAL_NOISE, none, np.zeros((n_groups, 0)), starts)
        given = np.eye(n_columns)[labels]
        features = one_hot(cells[rows], starts, n_groups)
        believed = np.ones(len(rows))
        trusts = TRUSTS if trust is None else (trust,)
        chosen = _most_likely(features, given, votes[rows], believed, trusts)
        # A person errs, too: the less likely a mark is by all others, the less it counts.
        likely = chosen.likely
        believed = likely / (likely + WRONG / (n_columns - 1))
        found = _most_likely(features, given, votes[rows], believed, trusts)
        apart = given - tempered(votes[rows], found.trust)
        scale = np.sqrt(believed)[:, None]
        left, values, right = np.linalg.svd(scale * features, full_matrices=False)
        squared = values**2
        by_value = values / (squared + found.noise)
        weights = right.T @ (by_value[:, None] * (left.T @ (scale * apart)))
        settled = right.T * np.sqrt(squared / (squared + found.noise))
        return cls(found.trust, found.noise, weights, settled, starts)

    @property
    def n_groups(self) -> int:
        """The number of groups in all partitions, G."""
        return len(self.weights)

    def probabilities(self, votes: Matrix, cells: IntArray) -> Matrix:
        """Correct votes by the groups of their rows: (n, C + 1), (n, L) -> (n, C + 1)."""
        added = self.weights[cells + self.starts].sum(axis=1) / np.sqrt(cells.shape[1])
        return normalised(tempered(votes, self.trust) + added)

    def covariance(self, some: Matrix, others: Matrix) -> Matrix:
        """Return how errors of rows still go together: `one_hot` (n, G), (k, G) -> (n, k)."""
        return np.asarray(some @ others.T - (some @ self.settled) @ (others @ self.settled).T)

    def tables(self) -> list[Matrix]:
        """Return what is added by the groups of each partition: (k, C + 1) each."""
        ends = [*self.starts[1:].tolist(), self.n_groups]
        scale = np.sqrt(len(self.starts))
        spans = zip(self.starts.tolist(), ends, strict=True)
        return [self.weights[start:end] / scale for start, end in spans]


class _Chosen(NamedTuple):
    """What predicts each mark best from the others, and how likely they make it: (m,)."""

    trust: float
    noise: float
    likely: Vector


def _most_likely(
    features: Matrix, given: Matrix, votes: Matrix, believed: Vector, trusts: Sequence[float]
) -> _Chosen:
    """Choose trust and noise by leaving out one mark at a time: (m, G), (m, C + 1) twice, (m,)."""
    scale = np.sqrt(believed)[:, None]
    left, values, _ = np.linalg.svd(scale * features, full_matrices=False)
    squared = values**2
    best = -np.inf
    for noise in NOISES:
        shrunk = squared / (squared + noise)
        leverage = np.minimum((left**2 * shrunk).sum(axis=1), 1 - 1e-9)
        for trust in trusts:
            apart = scale * (given - tempered(votes, trust))
            fitted = left @ (shrunk[:, None] * (left.T @ apart))
            others = given - (apart - fitted) / (1 - leverage)[:, None] / scale
            likely = (normalised(others) * given).sum(axis=1)
            usual = STRENGTH * abs(trust - USUAL_TRUST)
            fit = float((believed * np.log(likely)).sum()) - usual
            if fit > best:
                best = fit
                chosen = _Chosen(trust, noise, likely)
    return chosen


def one_hot(cells: IntArray, starts: IntArray, n_groups: int) -> Matrix:
    """Return rows whose products are the kernel: (n, L) -> (n, G)."""
    features = np.zeros((len(cells), n_groups))
    np.put_along_axis(features, cells + starts, 1 / np.sqrt(cells.shape[1]), axis=1)
    return features


def tempered(votes: Matrix, trust: float) -> Matrix:
    """Move votes towards equal ones."""
    return np.asarray(trust * votes + (1 - trust) / votes.shape[1])


def normalised(values: Matrix) -> Matrix:
    """Make values probabilities."""
    values = np.maximum(values, LEAST)
    return np.asarray(values / values.sum(axis=1, keepdims=True))


class Suggestion(NamedTuple):
    """Targets to ask for, the most useful first."""

    rows: IntArray
    gain: float
    """The share of all labels that their marks are expected to put right."""


def most_useful(
    spread: Spread,
    votes: Matrix,
    cells: IntArray,
    central: IntArray,
    taken: IntArray,
    count: int,
) -> Suggestion:
    r"""Return the next targets to ask for: (n, C + 1), (n, L), (k,), (m,).

    Of the `central` rows, the next is that which settles most doubt, given those before it:

    .. math:: \sum_j d_j \frac{v_{ij}^2}{v_{ii} + \sigma^2}

    with the doubt :math:`d_j` of each label, one less its probability and a little more, and the
    covariance v that earlier marks have left. `taken` have been marked.
    """
    probabilities = spread.probabilities(votes, cells)
    doubt = 1 - probabilities.max(axis=1)
    doubt[taken] = 0.0
    features = one_hot(cells, spread.starts, spread.n_groups)
    candidates = np.setdiff1d(central, taken)
    if len(candidates) < count:
        # All groups are marked: any other row.
        candidates = np.setdiff1d(np.arange(len(cells)), taken)
    candidates = candidates[: max(len(central), count)]
    left = spread.covariance(features, features[candidates])
    before = (features**2).sum(axis=1) - ((features @ spread.settled) ** 2).sum(axis=1)
    variance = before.copy()
    chosen: list[int] = []
    is_open = np.ones(len(candidates), dtype=bool)
    for _ in range(min(count, len(candidates))):
        own = left[candidates, np.arange(len(candidates))] + spread.noise
        score = ((doubt + ALSO_SURE) @ left**2) / own
        place = int(np.where(is_open, score, -1.0).argmax())
        is_open[place] = False
        chosen.append(place)
        column = left[:, place].copy()
        variance -= column**2 / own[place]
        left -= np.outer(column, column[candidates]) / own[place]
    resolved = 1 - np.clip(variance / np.maximum(before, 1e-9), 0, 1)
    return Suggestion(candidates[chosen], float((doubt * resolved).mean()))


def marked_share(
    spread: Spread, votes: Matrix, cells: IntArray, rows: IntArray, labels: IntArray
) -> ShareEstimate:
    """Return the share of unknowns by marks: the mean probability of unknown, and an interval.

    The interval is what groups without marks leave open: the variance of the mean under the
    process, scaled by how far the votes were off at the marks.
    """
    n_columns = votes.shape[1]
    unknown = spread.probabilities(votes, cells)[:, -1]
    unknown[rows] = labels == n_columns - 1
    features = one_hot(cells, spread.starts, spread.n_groups)
    middle = features.mean(axis=0)[None]
    open_variance = float(spread.covariance(middle, middle)[0, 0])
    own = (labels == n_columns - 1) - tempered(votes[rows], spread.trust)[:, -1]
    kernel = features[rows] @ features[rows].T + spread.noise * np.eye(len(rows))
    scale = float(own @ np.linalg.solve(kernel, own)) / len(rows)
    deviation = float(np.sqrt(max(open_variance * scale, 0.0)))
    share = float(unknown.mean())
    reach = float(ndtri((1 + CONFIDENCE) / 2)) * deviation
    return ShareEstimate(share, max(share - reach, 0.0), min(share + reach, 1.0))


class Followed(NamedTuple):
    """How marks correct the votes for the targets of a fit."""

    spread: Spread
    columns: Matrix
    """From the columns of the method, 1, to those with new classes: (C + 1, C' + 1)."""
    share: ShareEstimate | None
    """Of unknowns; None with fewer than `FEWEST_MARKS`."""
    sentence: str
    summary: dict[str, Any]
    """How many marks there were, and what they changed, as JSON can hold it."""


def follow_marks(
    classes: npt.NDArray[Any], votes: Matrix, cells: IntArray, target: Rows, marks: Marks
) -> Followed:
    """Learn how to correct the votes of a method with these classes: (n, C + 1), (n, L)."""
    n_classes = len(marks.classes)
    columns = np.zeros((len(classes) + 1, n_classes + 1))
    columns[np.arange(len(classes)), np.searchsorted(marks.classes, classes)] = 1.0
    columns[-1, -1] = 1.0
    votes = votes @ columns
    by_number = np.argsort(target.index)
    places = by_number[np.searchsorted(target.index[by_number], marks.rows)]
    # In canonical order, as all that may be added up; which of equal rows is marked says nothing.
    assert target.keys is not None, "known after in_canonical_order"
    first = np.searchsorted(target.keys, target.keys[places])
    order = np.lexsort((marks.labels, first))
    labels = marks.labels[order]
    rows = first[order]
    rows = rows + np.arange(len(rows)) - np.searchsorted(rows, rows)
    # Of some class of the source: the likeliest.
    in_source = columns[:-1].sum(axis=0)[:-1] > 0
    likeliest = np.where(in_source, votes[rows, :-1], -1.0).argmax(axis=1)
    labels = np.where(labels == KNOWN, likeliest, labels)
    # Votes of a method that has learned the marks agree with them anyway.
    trust = USUAL_TRUST if marks.is_joined else None
    spread = Spread.fit(votes, cells, rows, labels, trust)
    found = spread.probabilities(votes, cells)
    share = None
    if len(rows) >= FEWEST_MARKS:
        share = marked_share(spread, votes, cells, rows, labels)
    n_unknown = int((labels == n_classes).sum())
    sentence = f"{n_unknown:,} of {len(rows):,} marked targets are unknown, weighted by groups"
    changed = votes.argmax(axis=1) != found.argmax(axis=1)
    changed[rows] = False
    summary = {"marks": len(rows), "changed": int(changed.sum()), "trust": spread.trust}
    return Followed(spread, columns, share, sentence, summary)


class MarkedScorer(nn.Module):
    """A fitted method whose probabilities are corrected by marks.

    Shapes: x (n, D) -> probabilities of the classes (n, C), and the largest less that of unknown.
    """

    columns: Tensor
    trust: Tensor

    def __init__(
        self,
        scorer: nn.Module,
        decision: Decision,
        groups: TargetGroups,
        columns: Tensor,
        trust: Tensor,
        tables: Sequence[Tensor],
    ) -> None:
        super().__init__()
        self.inner = scorer
        self.decision = decision
        self.groups = groups
        self.n_tables = len(tables)
        self.register_buffer("columns", columns)
        self.register_buffer("trust", trust)
        for number, table in enumerate(tables):
            self.register_buffer(f"table_{number}", table)

    @classmethod
    def of(
        cls, scorer: nn.Module, decision: Decision, groups: TargetGroups, followed: Followed
    ) -> MarkedScorer:
        """Make the module that corrects later samples as the targets of `fit`."""
        return cls(
            scorer,
            decision,
            groups,
            columns=torch.from_numpy(followed.columns),
            trust=torch.tensor(followed.spread.trust, dtype=torch.float64),
            tables=[torch.from_numpy(table) for table in followed.spread.tables()],
        )

    @classmethod
    def of_state(
        cls,
        scorer: nn.Module,
        decision: Decision,
        groups: TargetGroups,
        arrays: Mapping[str, Tensor],
    ) -> MarkedScorer:
        """Return the module that these saved arrays are loaded into."""
        tables = [arrays[f"table_{number}"] for number in range(groups.n_partitions)]
        return cls(scorer, decision, groups, arrays["columns"], arrays["trust"], tables)

    def state_of_method(self) -> dict[str, Any]:
        """Return what the method alone needs beside its arrays, as JSON can hold it."""
        return {
            "classes": self.columns[:-1].argmax(dim=1).tolist(),
            "rejection": rejection_numbers(self.decision),
        }

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Score rows, each on its own."""
        classes, known = self.inner(x)
        votes, _ = self.decision(classes, known)
        return self.corrected(votes, self.groups(x))

    def corrected(self, votes: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Correct votes of the method by the groups of their rows: (n, C + 1), (n, L)."""
        votes = votes @ self.columns
        values = self.trust * votes + (1 - self.trust) / self.columns.shape[1]
        for number in range(self.n_tables):
            values = values + self.get_buffer(f"table_{number}")[cells[:, number]]
        values = values.clamp_min(LEAST)
        probabilities = values / values.sum(dim=1, keepdim=True)
        of_classes = probabilities[:, :-1]
        return of_classes, of_classes.amax(dim=1) - probabilities[:, -1]

    def embed(self, x: Tensor, of_source: bool = False) -> Tensor:
        """Return rows as the method represents them: (n, D) -> (n, d)."""
        embedded: Tensor = self.inner.embed(x, of_source)  # type: ignore[operator]
        return embedded
