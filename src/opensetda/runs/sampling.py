"""The sample of many targets that a method learns from, drawn by content, in any row order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opensetda.rows import IntArray, content_keys, row_chunks
from opensetda.runs.request import SAMPLE
from opensetda.system.team import ALONE, Team

# Largest size of the table of probabilities of a sample: with many classes it is smaller.
SAMPLE_CELLS = 2**25
_CHUNK = 4096

Keys = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]


def sample_size(n_classes: int, wanted: int = SAMPLE) -> int:
    """Return the largest number of targets to learn from."""
    return min(wanted, max(1024, SAMPLE_CELLS // n_classes))


def draw_sample(X: npt.NDArray[np.floating], size: int, team: Team = ALONE) -> IntArray:
    """Return which rows are the sample, in rising order.

    Those whose content has the smallest hashes; content that occurs several times gets its
    share. Each process reads its own rows; memory is that of the sample.
    """
    keys, counts, places = _smallest_keys(X, size, team)
    if len(keys) < size or counts.max() > 1:
        wanted = _shares(counts, min(size, int(counts.sum())))
        return _places_of(X, keys, wanted, team)
    return np.sort(places).astype(np.intp)


def _smallest_keys(
    X: npt.NDArray[np.floating], size: int, team: Team
) -> tuple[Keys, Counts, Counts]:
    """Return the `size` smallest hashes, how often each occurs, and its first row."""
    found = np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64)
    for start, chunk in row_chunks(X, team.rows(len(X)), _CHUNK):
        rows = np.arange(start, start + len(chunk), dtype=np.int64)
        new = content_keys(chunk), np.ones(len(chunk), np.int64), rows
        found = tuple(np.concatenate(pair) for pair in zip(found, new, strict=True))  # type: ignore[assignment]
        if len(found[0]) > 4 * size:
            found = _merged(*found, size)
    keys, counts, places = _merged(*found, size)
    # Arrays of one length for all processes, padded with counts of 0.
    padded = np.zeros((3, size), dtype=np.int64)
    padded[:, : len(keys)] = keys.view(np.int64), counts, places
    together = np.concatenate(team.gather(padded), axis=1)
    together = together[:, together[1] > 0]
    return _merged(together[0].view(np.uint64), together[1], together[2], size)


def _merged(keys: Keys, counts: Counts, places: Counts, size: int) -> tuple[Keys, Counts, Counts]:
    """Add up equal hashes, and keep the smallest; the others cannot come back."""
    distinct, group = np.unique(keys, return_inverse=True)
    total = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(total, group, counts)
    first = np.full(len(distinct), np.iinfo(np.int64).max)
    np.minimum.at(first, group, places)
    return distinct[:size], total[:size], first[:size]


def _shares(counts: Counts, size: int) -> Counts:
    """Divide `size` places among contents by their counts, by largest remainders."""
    exact = counts * (size / counts.sum())
    shares = np.minimum(np.floor(exact).astype(np.int64), counts)
    behind = np.argsort(-(exact - shares), kind="stable")
    shares[behind[: size - int(shares.sum())]] += 1
    return np.asarray(shares)


def _places_of(X: npt.NDArray[np.floating], keys: Keys, wanted: Counts, team: Team) -> IntArray:
    """Return the first `wanted` rows with each hash, in rising order."""
    left = wanted.copy()
    mine: list[Counts] = []
    for start, chunk in row_chunks(X, team.rows(len(X)), _CHUNK):
        of_rows = content_keys(chunk)
        number = np.minimum(np.searchsorted(keys, of_rows), len(keys) - 1)
        rows = np.flatnonzero((keys[number] == of_rows) & (left[number] > 0))
        rows = rows[np.argsort(number[rows], kind="stable")]
        taken = _first_of_each(number[rows], left)
        rows = rows[taken]
        np.subtract.at(left, number[rows], 1)
        mine.append(np.stack([number[rows], start + rows]))
    own = np.concatenate(mine, axis=1) if mine else np.empty((2, 0), dtype=np.int64)
    parts = team.gather_bytes(np.ascontiguousarray(own, dtype=np.int64).tobytes())
    together = [np.frombuffer(part, dtype=np.int64).reshape(2, -1) for part in parts]
    number, rows = np.concatenate(together, axis=1)
    order = np.lexsort((rows, number))
    kept = order[_first_of_each(number[order], wanted)]
    return np.sort(rows[kept]).astype(np.intp)


def _first_of_each(numbers: Counts, most: Counts) -> npt.NDArray[np.bool_]:
    """Mark the first `most[number]` of each number in a sorted array."""
    begin = np.searchsorted(numbers, numbers, side="left")
    return np.asarray(np.arange(len(numbers)) - begin < most[numbers])
