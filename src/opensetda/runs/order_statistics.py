"""Order statistics of scores that lie in shards, exact and without gathering them.

Every process of a team holds some scores and goes through them a few times. What the
processes exchange are histograms of the range that is still in doubt, and at the end the
few scores in it: the memory does not grow with the number of scores.

Floats are compared as 64-bit integers of the same order, so that a range can be halved
until it holds one value; equal scores are told apart by their index in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from opensetda.rows import IntArray

Vector = npt.NDArray[np.float64]
Keys = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
# Chunks of consecutive scores, each with the index of its first among all scores of the team.
Shard = Callable[[], Iterable[tuple[int, Vector]]]

BINS = 2**16
# So few scores in doubt, of the whole team, are collected instead of counted once more.
COLLECTED = 2**17
# A chunk is worked on in pieces that stay in the processor's cache.
PIECE = 2**14

_SIGN = np.int64(-(2**63))


class Team(Protocol):
    """The processes that hold the shards; each calls the same functions in the same order."""

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""

    @property
    def size(self) -> int:
        """How many processes there are."""

    def sum(self, values: Counts) -> Counts:
        """Return the sum of all processes' values."""

    def gather(self, values: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Return all processes' values, by rank; they have one shape and one dtype."""


@dataclass(frozen=True)
class Cut:
    """A place in the order of (score, index)."""

    score: float
    index: int

    def below(self, first_index: int, scores: Vector) -> npt.NDArray[np.bool_]:
        """Which of consecutive scores come before the cut."""
        below = scores < self.score
        ties = min(max(self.index - first_index, 0), len(scores))
        below[:ties] |= scores[:ties] == self.score
        return np.asarray(below)


def cut_of_smallest(shard: Shard, k: int, team: Team) -> Cut:
    """Cut off the `k` smallest of all scores; of equal ones, those of the lowest index.

    They are the first `k` of ``np.argsort(scores, kind="stable")``. See `cuts_of_smallest`.
    """
    return cuts_of_smallest(shard, [k], team)[0]


def cuts_of_smallest(
    shard: Shard, ks: Sequence[int], team: Team, extent: Extent | None = None
) -> list[Cut]:
    """Find several cuts in the same passes.

    Where scores are spread out there are three passes: for the smallest and largest, for
    a histogram, and to collect the bins that hold the cuts. A histogram decides 16 bits of
    one cut: there are at most 4 of scores and, where more than `COLLECTED` of them are
    equal, 3 of indices (2^48); for c cuts each decides log2(c) bits fewer.

    A histogram takes 8 * `BINS` bytes (0.5 MB) to be summed, the collection at most
    24 * `COLLECTED` (3.1 MB) from each process.
    """
    if extent is None:
        extent = survey(shard, team)
    if bad := [k for k in ks if not 0 <= k <= extent.n]:
        raise ValueError(f"k = {bad[0]}: expected 0 to {extent.n}, the number of scores")
    inner = [k for k in ks if 0 < k < extent.n]
    found = dict(zip(inner, _select(shard, inner, team, extent), strict=True))
    found |= {extent.n: extent.end, 0: Cut(-np.inf, 0)}
    return [found[k] for k in ks]


def shared_rejection_cut(shard: Shard, share: float, team: Team) -> float:
    """Return the `rejection_cut` of all scores: `share` of them lie below.

    The passes of `cuts_of_smallest` over the score bits, and one more for the neighbours.
    """
    extent = survey(shard, team)
    wanted = min(max(round(share * extent.n), 0), extent.n)
    if wanted == 0:
        return float("-inf")
    if wanted == extent.n:
        return float(np.nextafter(extent.high, np.inf))
    score = _select(shard, [wanted], team, extent, scores_only=True)[0].score
    below, upto, before, after = _surroundings(shard, score, team)
    if wanted - below <= upto - wanted:
        cut, lower, upper = below, before, score
    else:
        cut, lower, upper = upto, score, after
    if cut == 0:
        return float("-inf")
    if cut == extent.n:
        return float(np.nextafter(extent.high, np.inf))
    with np.errstate(over="ignore", invalid="ignore"):
        middle = (np.float64(lower) + np.float64(upper)) / 2
    return float(middle if middle > lower else upper)


def _surroundings(shard: Shard, score: float, team: Team) -> tuple[int, int, float, float]:
    """How many scores lie below `score` and up to it, and the values next to it."""
    counts, before, after = np.zeros(2, dtype=np.int64), -np.inf, np.inf
    for _, scores in pieces(shard):
        below, above = scores < score, scores > score
        counts += [below.sum(), len(scores) - above.sum()]
        before = scores.max(where=below, initial=before)
        after = scores.min(where=above, initial=after)
    ends = np.array(team.gather(np.array([before, after])))
    below_all, upto_all = team.sum(counts)
    return int(below_all), int(upto_all), float(ends[:, 0].max()), float(ends[:, 1].min())


# The first pass ---------------------------------------------------------------------------


class Extent(NamedTuple):
    """What one pass tells: how many scores there are and where they lie."""

    n: int
    low: float
    high: float
    end_index: int

    @property
    def end(self) -> Cut:
        """The cut behind everything."""
        return Cut(np.inf, self.end_index)


def survey(shard: Shard, team: Team) -> Extent:
    """Count all scores and find the smallest and the largest; 40 bytes from each process.

    Raises
    ------
    ValueError
        If a score is NaN; in every process, so that none waits for another.
    """
    n = end = invalid = 0
    low, high = np.inf, -np.inf
    for first, scores in pieces(shard):
        n, end = n + len(scores), max(end, first + len(scores))
        smallest, largest = scores.min(), scores.max()
        if np.isnan(smallest):
            invalid += int(np.isnan(scores).sum())
        else:
            low, high = min(low, smallest), max(high, largest)
    ends = np.array(team.gather(np.array([low, high])))
    totals = np.array(team.gather(np.array([n, end, invalid], dtype=np.int64)))
    if invalid := int(totals[:, 2].sum()):
        raise ValueError(f"scores: {invalid} are NaN, which has no place in an order")
    return Extent(
        int(totals[:, 0].sum()),
        float(ends[:, 0].min()),
        float(ends[:, 1].max()),
        int(totals[:, 1].max()),
    )


def pieces(shard: Shard) -> Iterator[tuple[int, Vector]]:
    """Go through the shard in pieces of at most `PIECE` scores, none of them empty."""
    for first, scores in shard():
        for start in range(0, len(scores), PIECE):
            yield first + start, scores[start : start + PIECE]


# Keys and intervals -----------------------------------------------------------------------


def keys_of(scores: Vector) -> Keys:
    """Return integers in the order of the scores; -0.0 and 0.0 have one."""
    bits = np.asarray(scores + 0.0, dtype=np.float64).view(np.int64)
    # The bits of negative floats fall as the floats rise: turn them all; else the sign only.
    return np.asarray((bits ^ ((bits >> 63) | _SIGN)).view(np.uint64))


def scores_of(keys: Keys) -> Vector:
    """Turn keys back."""
    turned = keys.view(np.int64)
    return np.asarray((turned ^ (~(turned >> 63) | _SIGN)).view(np.float64))


@dataclass(frozen=True)
class Intervals:
    """Disjoint ranges in rising order, both ends included.

    They are ranges of keys with all indices, or of a single key with some of the indices.
    """

    low: Keys
    last: Keys
    first_index: Counts
    last_index: Counts

    @classmethod
    def between(cls, low: float, high: float, extent: Extent) -> Intervals:
        """Make one interval of scores."""
        keys = keys_of(np.array([low, high]))
        return cls(keys[:1], keys[1:], np.array([0]), np.array([extent.end_index - 1]))

    def __len__(self) -> int:
        return len(self.low)

    @cached_property
    def single(self) -> npt.NDArray[np.bool_]:
        """Which have one key only and are divided by index."""
        return np.asarray(self.low == self.last)

    @cached_property
    def width(self) -> Keys:
        """How many keys or indices lie behind the first."""
        indices = (self.last_index - self.first_index).astype(np.uint64)
        return np.where(self.single, indices, self.last - self.low)

    @cached_property
    def _lows(self) -> Keys:
        return np.unique(self.low)

    @cached_property
    def _index_bits(self) -> int:
        """Bits of an index; 0 if no interval is divided by index."""
        bits = max(int(self.last_index.max()).bit_length(), 1) if self.single.any() else 0
        if len(self).bit_length() + bits > 63:
            raise ValueError(f"too many scores: {len(self)} ranges of {bits}-bit indices")
        return bits

    @cached_property
    def _starts(self) -> Counts:
        """Place of the key and first index in one number."""
        place = np.searchsorted(self._lows, self.low)
        return np.asarray((place << self._index_bits) + self.first_index)

    def locate(self, first: int, scores: Vector) -> tuple[IntArray, IntArray, Keys]:
        """Which scores lie in an interval, in which one, and how far from its start."""
        keys = keys_of(scores)
        rows = np.flatnonzero((keys >= self.low[0]) & (keys <= self.last[-1]))
        keys = keys[rows]
        place = np.zeros(len(rows), dtype=np.intp)
        if len(self) == 1 and not self._index_bits:
            return rows, place, keys - self.low[0]
        place = np.searchsorted(self._lows, keys, side="right") - 1
        index = first + rows
        if self._index_bits:
            place = np.searchsorted(self._starts, (place << self._index_bits) + index, "right") - 1
        inside = (keys >= self.low[place]) & (keys <= self.last[place])
        inside &= (index >= self.first_index[place]) & (index <= self.last_index[place])
        rows, place, keys, index = rows[inside], place[inside], keys[inside], index[inside]
        beyond = keys - self.low[place]
        if self._index_bits:
            indices = (index - self.first_index[place]).astype(np.uint64)
            beyond = np.where(self.single[place], indices, beyond)
        return rows, place, beyond


class Grid:
    """Intervals divided into bins.

    Parameters
    ----------
    intervals : Intervals
    parts : array of shape (len(intervals),)
        At most so many bins each.
    """

    def __init__(self, intervals: Intervals, parts: Counts) -> None:
        self.intervals = intervals
        width = intervals.width
        shift = np.maximum(_bit_length(width) - _bit_length(parts.astype(np.uint64)) + 1, 0)
        self.shift = np.minimum(shift, 63).astype(np.uint64)
        sizes = (width >> self.shift).astype(np.int64) + 1
        self.start = np.concatenate([[0], np.cumsum(sizes)])
        self.interval_of = np.repeat(np.arange(len(sizes)), sizes)

    def __len__(self) -> int:
        return len(self.interval_of)

    def locate(self, first: int, scores: Vector) -> tuple[IntArray, IntArray, IntArray]:
        """Which scores lie in an interval, in which one, and in which of its bins."""
        rows, place, beyond = self.intervals.locate(first, scores)
        shift = self.shift[0] if len(self.intervals) == 1 else self.shift[place]
        return rows, place, (beyond >> shift).astype(np.intp)

    def only(self, bins: IntArray) -> Intervals:
        """Return some of the bins, in rising order, as intervals."""
        place = self.interval_of[bins]
        step = np.uint64(1) << self.shift[place]
        start = (bins - self.start[place]).astype(np.uint64) * step
        end = np.minimum(start + (step - np.uint64(1)), self.intervals.width[place])
        low, index = self.intervals.low[place], self.intervals.first_index[place]
        single = self.intervals.single[place]
        return Intervals(
            np.where(single, low, low + start),
            np.where(single, low, low + end),
            np.where(single, index + start.astype(np.int64), index),
            np.where(single, index + end.astype(np.int64), self.intervals.last_index[place]),
        )


def _bit_length(values: Keys) -> Counts:
    exponent = np.minimum(np.frexp(values.astype(np.float64))[1], 64).astype(np.int64)
    # A large value may have been rounded up to the next power of 2.
    top = values >> np.maximum(exponent - 1, 0).astype(np.uint64)
    return np.asarray(exponent - ((top == 0) & (values > 0)))


# Selection --------------------------------------------------------------------------------


def _select(
    shard: Shard, ks: Sequence[int], team: Team, extent: Extent, scores_only: bool = False
) -> list[Cut]:
    """Return the scores of rank `ks`, each above 0 and below n, with their indices."""
    if not ks:
        return []
    ranks = np.array(ks, dtype=np.int64)
    intervals = Intervals.between(extent.low, extent.high, extent)
    below, held = np.zeros(1, dtype=np.int64), np.array([extent.n])
    while held.sum() > COLLECTED and (held > 1).any():
        if scores_only and intervals.single.all():
            values = scores_of(intervals.low)
            return [Cut(float(value), 0) for value in values[_holder(below + held, ranks)]]
        grid = Grid(intervals, np.where(held > 1, max(BINS // len(intervals), 2), 1))
        counts = np.zeros(len(grid), dtype=np.int64)
        for first, scores in pieces(shard):
            _, place, within = grid.locate(first, scores)
            tally(counts, grid.start[place] + within)
        counts = team.sum(counts)
        before = np.cumsum(counts) - counts
        before += (below - before[grid.start[:-1]])[grid.interval_of]
        open_bins = np.unique(_holder(before + counts, ranks))
        intervals, below, held = grid.only(open_bins), before[open_bins], counts[open_bins]
    found = []
    for first, scores in pieces(shard):
        rows, place, _ = intervals.locate(first, scores)
        found.append(columns(place, keys_of(scores[rows]), rows + first))
    place, keys, index = collect(found, 3, team)
    order = np.lexsort((index, keys.view(np.uint64), place))
    start = np.concatenate([[0], np.cumsum(held)])
    which = _holder(below + held, ranks)
    chosen = order[start[which] + ranks - below[which]]
    cuts = zip(scores_of(keys[chosen].view(np.uint64)), index[chosen], strict=True)
    return [Cut(float(score), int(i)) for score, i in cuts]


def _holder(upto: Counts, ranks: Counts) -> IntArray:
    """Which bin holds the score of each rank, given the numbers of scores up to the bins' ends."""
    return np.asarray(np.searchsorted(upto, ranks, side="right"))


def tally(counts: Counts, cells: IntArray) -> None:
    """Add up how often each cell occurs."""
    if 4 * len(cells) > len(counts):
        counts += np.bincount(cells, minlength=len(counts))
    else:
        np.add.at(counts, cells, 1)


def columns(*values: npt.NDArray[Any]) -> Counts:
    """Put integers of 64 bits into the rows of one array."""
    return np.stack([value.view(np.int64) for value in values])


def collect(parts: list[Counts], n_columns: int, team: Team) -> Counts:
    """Join the parts (n_columns, any number) of all processes."""
    mine = np.concatenate([np.empty((n_columns, 0), dtype=np.int64), *parts], axis=1)
    sizes = [int(size[0]) for size in team.gather(np.array([mine.shape[1]]))]
    padded = np.zeros((n_columns, max(sizes)), dtype=np.int64)
    padded[:, : mine.shape[1]] = mine
    everyones = team.gather(padded) if max(sizes) else [padded] * len(sizes)
    return np.concatenate(
        [part[:, :size] for part, size in zip(everyones, sizes, strict=True)], axis=1
    )
