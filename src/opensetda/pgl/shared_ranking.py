"""Pseudo-labels by global ranking (Eq. 6) of targets that lie in shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from opensetda.pgl.pseudo_labels import UNLABELLED
from opensetda.rows import IntArray
from opensetda.runs import order_statistics
from opensetda.runs.order_statistics import (
    Counts,
    Cut,
    Extent,
    Grid,
    Intervals,
    Team,
    Vector,
    collect,
    columns,
    cuts_of_smallest,
    keys_of,
    scores_of,
    survey,
    tally,
)

# Chunks of consecutive targets: index of the first, known scores, nearest classes.
ClassShard = Callable[[], Iterable[tuple[int, Vector, IntArray]]]

# Cells of the histogram by bin and class.
CELLS = 2**20


@dataclass(frozen=True)
class SharedRanking:
    """Who is labelled, as cuts: one for the unknowns and one for the knowns of each class.

    Attributes
    ----------
    unknown : Cut
        Targets below are unknown.
    known_scores, known_indices : arrays of shape (C,)
        Targets of the class from this cut on are known.
    """

    unknown: Cut
    known_scores: Vector
    known_indices: Counts

    def labels(self, first_index: int, scores: Vector, nearest: IntArray) -> IntArray:
        """Label consecutive targets: class index, C for unknown, `UNLABELLED` between."""
        labels = np.full(len(scores), UNLABELLED, dtype=np.intp)
        labels[self.unknown.below(first_index, scores)] = len(self.known_scores)
        cut = self.known_scores[nearest]
        known = scores > cut
        ties = np.flatnonzero(scores == cut)
        known[ties] = first_index + ties >= self.known_indices[nearest[ties]]
        return np.where(known, nearest, labels)


def rank_shards(
    shard: ClassShard,
    team: Team,
    openness: float,
    progress: float,
    n_classes: int,
    class_balance: float = 0.0,
) -> SharedRanking:
    """Rank the targets of all processes as `rank_pseudo_labels` ranks those of one.

    The labels are the same for every target, ties included.

    Without class balance the labels follow from two cuts, found by `cuts_of_smallest` in the
    same passes. With it, a target's place depends on its rank among all candidates and on that
    within its class. Both rise with the score, so that there is one cut a class. Candidates
    are counted by bin of the score and class; the counts bound the places in each bin, these
    bound the place up to which targets are labelled, and only the bins that may hold
    this place are divided again. A pass exchanges about 8 * `CELLS` bytes (8 MB), the last
    one at most 32 * `COLLECTED` (4 MB) from each process.

    Parameters
    ----------
    shard : callable
        Returns this process's chunks anew; the targets of all processes have indices of their own.
    openness, progress, n_classes, class_balance
        As in `rank_pseudo_labels`, all of them between 0 and 1.
    """
    shares = {"openness": openness, "progress": progress, "class_balance": class_balance}
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ValueError(f"{name} = {share}: expected 0 to 1")

    def scores() -> Iterator[tuple[int, Vector]]:
        return ((first, known) for first, known, _ in shard())

    extent = survey(scores, team)
    n = extent.n
    # The same roundings as in `rank_pseudo_labels`.
    n_unknown, n_rejected = round(openness * progress * n), round(openness * n)
    n_known = min(round(progress * n) - n_unknown, n - n_rejected)
    one_cut = class_balance == 0 or n_known in (0, n - n_rejected)
    k = n - n_known if one_cut else n_rejected
    unknown, known = cuts_of_smallest(scores, [n_unknown, k], team, extent)
    if one_cut:
        return SharedRanking(
            unknown, np.full(n_classes, known.score), np.full(n_classes, known.index)
        )
    search = _Search(shard, team, extent, known, n - n_rejected, n_known, n_classes, class_balance)
    return SharedRanking(unknown, *search.run())


class _Search:
    """The search for the cuts of the classes.

    The open intervals hold the candidates in doubt, `held` in each, and `above` candidates lie
    higher than it. A cell is a class in doubt in an interval. The `chosen` candidates of a class
    that lie above its cells are known for certain, those below are not.
    """

    def __init__(
        self,
        shard: ClassShard,
        team: Team,
        extent: Extent,
        candidates_from: Cut,
        n_candidates: int,
        n_known: int,
        n_classes: int,
        class_balance: float,
    ) -> None:
        self.shard, self.team = shard, team
        self.candidates_from = candidates_from
        self.n_candidates, self.n_known = n_candidates, n_known
        self.n_classes, self.class_balance = n_classes, class_balance
        self.intervals = Intervals.between(candidates_from.score, extent.high, extent)
        self.held = np.array([n_candidates])
        self.above = np.zeros(1, dtype=np.int64)
        self.weight = np.ones(1)
        # By class, then by interval.
        self.cells = np.arange(n_classes)
        self.chosen = np.zeros(n_classes, dtype=np.int64)
        self.class_sizes: Counts | None = None
        # Nobody is known yet.
        self.cut_keys = np.repeat(keys_of(np.array([extent.end.score])), n_classes)
        self.cut_indices = np.full(n_classes, extent.end.index)

    def run(self) -> tuple[Vector, Counts]:
        """Return scores and indices of the cuts."""
        limit = order_statistics.COLLECTED
        while self.class_sizes is None or (self.held.sum() > limit and (self.held > 1).any()):
            self._narrow(Grid(self.intervals, self._parts()))
        self._finish()
        # The lowest bin may begin below the candidates.
        floor = keys_of(np.array([self.candidates_from.score]))[0]
        at_floor = self.cut_keys == floor
        self.cut_indices[at_floor] = np.maximum(
            self.cut_indices[at_floor], self.candidates_from.index
        )
        return scores_of(self.cut_keys), self.cut_indices

    def _parts(self) -> Counts:
        """Into how many bins to divide: the more, the more doubt is within."""
        cost = 1 + np.bincount(self.cells % len(self.held), minlength=len(self.held))
        room = max(CELLS - int(cost.sum()), CELLS // 8)
        share = self.weight / max(float((self.weight * cost).sum()), 1e-300)
        # Always progress, even if the table is full.
        least = np.where((self.held > 1) & (self.weight >= self.weight.max() / 2), 2, 1)
        return np.maximum((room * share).astype(np.int64), least)

    def _place(self, above: Counts, above_in_class: Counts, classes: IntArray) -> Vector:
        """Where candidates come in the order of labelling, to the bit as `rank_pseudo_labels`."""
        assert self.class_sizes is not None
        overall = above / self.n_candidates
        own = above_in_class / self.class_sizes[classes]
        return np.asarray((1 - self.class_balance) * overall + self.class_balance * own)

    # One pass -----------------------------------------------------------------------------

    def _pieces(self) -> Iterator[tuple[int, Vector, IntArray]]:
        size = order_statistics.PIECE
        for first, scores, nearest in self.shard():
            for at in range(0, len(scores), size):
                piece = slice(at, at + size)
                yield first + at, scores[piece], nearest[piece].astype(np.intp, copy=False)

    def _cell_of(self, classes: IntArray, place: IntArray) -> tuple[IntArray, IntArray]:
        """Which candidates, of these classes and in these intervals, are in a cell; which one."""
        code = classes * len(self.held) + place
        if len(self.held) == 1 and len(self.cells) == self.n_classes:
            return np.arange(len(code)), code
        cell = np.minimum(np.searchsorted(self.cells, code), len(self.cells) - 1)
        rows = np.flatnonzero(self.cells[cell] == code)
        return rows, cell[rows]

    def _count(self, grid: Grid, start: IntArray) -> tuple[Counts, Counts]:
        """Count candidates by bin, and those in doubt by cell and bin."""
        n_bins = len(grid)
        counts = np.zeros(n_bins + int(start[-1]) + 1, dtype=np.int64)
        for first, scores, nearest in self._pieces():
            rows, place, within = grid.locate(first, scores)
            above = np.flatnonzero(~self.candidates_from.below(first, scores)[rows])
            classes, place, within = nearest[rows[above]], place[above], within[above]
            if invalid := np.count_nonzero((classes < 0) | (classes >= self.n_classes)):
                counts[-1] += invalid
                continue
            tally(counts[:n_bins], grid.start[place] + within)
            doubt, cell = self._cell_of(classes, place)
            tally(counts[n_bins:-1], start[cell] + within[doubt])
        counts = self.team.sum(counts)
        if counts[-1]:
            raise ValueError(f"{counts[-1]} nearest classes are not 0 to {self.n_classes - 1}")
        return counts[:n_bins], counts[n_bins:-1]

    def _narrow(self, grid: Grid) -> None:
        """Count by the bins of `grid` and leave only those open that may hold a cut."""
        classes, place = np.divmod(self.cells, len(self.held))
        parts = np.diff(grid.start)[place]
        start = np.concatenate([[0], np.cumsum(parts)])
        held, own = self._count(grid, start)
        of_class = start[np.searchsorted(classes, np.arange(self.n_classes + 1))]
        if self.class_sizes is None:
            self.class_sizes = np.diff(np.concatenate([[0], np.cumsum(own)])[of_class])
        above = self.above[grid.interval_of] + _sums_after(held, grid.start)

        filled = np.flatnonzero(own)
        bins = (np.arange(len(own)) + np.repeat(grid.start[place] - start[:-1], parts))[filled]
        classes = np.repeat(classes, parts)[filled]
        above_in_class = self.chosen[classes] + _sums_after(own, of_class)[filled]
        own = own[filled]
        earliest = self._place(above[bins], above_in_class, classes)
        latest = self._place(above[bins] + held[bins] - 1, above_in_class + own - 1, classes)
        # The place up to which targets are labelled lies between these two.
        wanted = self.n_known - int(self.chosen.sum())
        surely, hardly = _smallest(earliest, own, wanted), _smallest(latest, own, wanted)

        known = latest < surely
        np.add.at(self.chosen, classes[known], own[known])
        # By class and rising score: the first of a class is its lowest.
        lowest_class, at = np.unique(classes[known], return_index=True)
        lowest = grid.only(bins[known][at])
        self.cut_keys[lowest_class] = lowest.low
        self.cut_indices[lowest_class] = lowest.first_index

        doubt = ~known & (earliest <= hardly)
        open_bins, place = np.unique(bins[doubt], return_inverse=True)
        self.intervals = grid.only(open_bins)
        self.held, self.above = held[open_bins], above[open_bins]
        self.cells = classes[doubt] * len(open_bins) + place
        # Where places are equal, the rank among all decides: it is worth a little.
        self.weight = 1e-6 * self.held * (self.held - 1) / self.n_candidates
        np.add.at(self.weight, place, (own * (latest - earliest))[doubt])

    # The end ------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Collect the candidates in doubt and rank them."""
        parts = []
        for first, scores, nearest in self._pieces():
            rows, place, _ = self.intervals.locate(first, scores)
            above = np.flatnonzero(~self.candidates_from.below(first, scores)[rows])
            rows, place = rows[above], place[above]
            parts.append(columns(place, nearest[rows], keys_of(scores[rows]), first + rows))
        place, classes, signed, indices = collect(parts, 4, self.team)
        keys = signed.view(np.uint64)
        descending = np.lexsort((indices, keys, place))[::-1]
        place, classes = place[descending], classes[descending]
        # Intervals come from the highest: so many collected lie in higher ones.
        higher = np.concatenate([[0], np.cumsum(self.held[::-1])])[-2::-1]
        above = self.above[place] + np.arange(len(place)) - higher[place]
        doubt, _ = self._cell_of(classes, place)
        above, classes = above[doubt], classes[doubt]
        rank = _rank_in_class(classes) + self.chosen[classes]
        order = np.lexsort((above, self._place(above, rank, classes)))
        chosen = np.sort(order[: self.n_known - int(self.chosen.sum())])
        # The last of a class is its lowest.
        present, at = np.unique(classes[chosen][::-1], return_index=True)
        lowest = descending[doubt[chosen[::-1][at]]]
        self.cut_keys[present], self.cut_indices[present] = keys[lowest], indices[lowest]


def _sums_after(values: Counts, start: IntArray) -> Counts:
    """Return, for each value, the sum of those behind it in its segment; segments may be empty."""
    upto = np.cumsum(values)
    ends = np.concatenate([[0], upto])[start[1:]]
    return np.asarray(np.repeat(ends, np.diff(start)) - upto)


def _smallest(values: Vector, counts: Counts, k: int) -> float:
    """Return the k-th smallest value, from 1, where each counts so many times."""
    order = np.argsort(values)
    return float(values[order[np.searchsorted(np.cumsum(counts[order]), k)]])


def _rank_in_class(classes: IntArray) -> Counts:
    """Rank of each sample among those of its class, in the order they come."""
    order = np.argsort(classes, kind="stable")
    _, start, number = np.unique(classes[order], return_index=True, return_counts=True)
    rank = np.empty(len(classes), dtype=np.int64)
    rank[order] = np.arange(len(classes)) - np.repeat(start, number)
    return rank
