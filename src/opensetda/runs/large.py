"""Targets that do not fit into memory: learn from a random sample, then label all, part by part.

The sample is drawn by the content of the rows, so their order has no effect. Every target is
then scored as later samples are, on its own, so that neither the batch nor the number of
processes changes an answer. The threshold is where the share of unknowns, estimated on the
sample, cuts the scores of all targets: an exact order statistic over the shards of all processes.
"""

from __future__ import annotations

import json
import mmap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from opensetda.base import SCORED_ROWS, OpenSetClassifier, Scores
from opensetda.rows import IntArray, content_keys, row_chunks
from opensetda.runs.folder import PREDICTIONS, PREDICTIONS_FOR_PEOPLE, STEP_PREFIX, STEPS
from opensetda.runs.predictions import CLASS_PREFIX, PredictionTable, class_names, numbers_of
from opensetda.runs.request import SAMPLE
from opensetda.runs.shared_tables import Parts
from opensetda.system.files import new_array_file
from opensetda.system.team import ALONE, Team

# Largest size of the table of probabilities of a sample: with many classes it is smaller.
SAMPLE_CELLS = 2**25
# Rows that are read, scored and written at a time.
CHUNK, CHUNK_CELLS = 4096, 2**22
# Scores that are ranked at a time.
RANKED = 2**17
_DIGIT = 16
_SIGN = np.int64(-(2**63))

Vector = npt.NDArray[np.float64]
Keys = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
# This process's scores, in parts; called once per pass.
Shard = Callable[[], Iterable[Vector]]
# With more classes than MOST_COLUMNS, the table has the most likely classes only.
MOST_COLUMNS, TOP_CLASSES = 100, 5


@dataclass(frozen=True)
class LabelledTargets:
    """All targets with their labels in files, one per process, and the labels' counts."""

    parts: Parts
    counts: Counter[str]

    def write(self, folder: Path, step: int) -> None:
        """Write predictions and labels of the last step into a run's folder."""
        parts = self.parts
        parts.write(folder / PREDICTIONS)
        # With one column per class the text would have many gigabytes.
        narrow = [name for name in parts.names() if not name.startswith(CLASS_PREFIX)]
        parts.write(folder / PREDICTIONS_FOR_PEOPLE, {name: name for name in narrow})
        parts.write(folder / STEPS, {narrow[0]: "id", "label": f"{STEP_PREFIX}{step}"})


def label_targets(
    classifier: OpenSetClassifier,
    X: npt.NDArray[Any],
    ids: Any | None,
    id_name: str,
    scratch: Path,
    team: Team = ALONE,
    progress: Callable[[int, int], None] | None = None,
) -> LabelledTargets:
    """Score, rank and label all targets, and set the threshold of the classifier of the sample.

    X and `ids` may be in files; all processes share the folder `scratch`, which the caller
    removes; `progress` gets the numbers of finished and of all targets of this process.
    """
    rows = team.rows(len(X))
    n_classes = len(classifier.classes_)
    top_k = None if n_classes <= MOST_COLUMNS else TOP_CLASSES
    stored = _Stored.make(scratch, team.rank, len(rows), n_classes, top_k)
    size = max(SCORED_ROWS, min(CHUNK, CHUNK_CELLS // n_classes))
    for start, chunk in row_chunks(X, rows, size):
        part = slice(start - rows.start, start - rows.start + len(chunk))
        stored.put(part, classifier.open_set_scores(chunk))
        stored.release()
        if progress is not None:
            progress(part.stop, len(rows))

    def shard() -> Iterator[Vector]:
        for first in range(0, len(rows), RANKED):
            yield np.array(stored.known[first : first + RANKED])
            stored.release()

    if not classifier.openness_report_.own_boundary:
        share = classifier.openness_
        classifier.rejection_threshold_ = shared_rejection_cut(shard, share, team)
    parts = Parts(scratch, team, top_k)
    counts: Counter[str] = Counter()
    with parts.writer() as writer:
        for first in range(0, len(rows), size):
            part = slice(first, min(first + size, len(rows)))
            names = slice(rows.start + part.start, rows.start + part.stop)
            table = _table(classifier, stored, part, names, ids, id_name)
            counts.update(table.labels.tolist())
            writer.write(table)
            stored.release()
    stored.remove()
    everywhere = [Counter(json.loads(c)) for c in team.gather_bytes(json.dumps(counts).encode())]
    return LabelledTargets(parts, sum(everywhere, Counter()))


def shared_rejection_cut(shard: Shard, share: float, team: Team) -> float:
    """Return the `rejection_cut` of the scores of all processes, exact, without gathering them.

    The processes exchange histograms of 0.5 MB. With a NaN, all of them raise a `ValueError`.
    """
    counted = np.zeros(2, dtype=np.int64)
    for scores in shard():
        counted += [len(scores), np.isnan(scores).sum()]
    n, invalid = (int(number) for number in team.sum(counted))
    if invalid:
        raise ValueError(f"scores: {invalid} are NaN, which cannot be ranked")
    wanted = min(max(round(share * n), 0), n)
    if wanted == 0:
        return float("-inf")
    score = _score_of_rank(shard, min(wanted, n - 1), team)
    below, upto, before, after = _surroundings(shard, score, team)
    # Equal scores are not separated: the nearer end of their group.
    if wanted - below <= upto - wanted:
        cut, lower, upper = below, before, score
    else:
        cut, lower, upper = upto, score, after
    if cut == 0:
        return float("-inf")
    if cut == n:
        return float(np.nextafter(score, np.inf))
    with np.errstate(over="ignore", invalid="ignore"):
        middle = (np.float64(lower) + np.float64(upper)) / 2
    return float(middle if middle > lower else upper)


def _score_of_rank(shard: Shard, rank: int, team: Team) -> float:
    """Return the score with `rank` smaller or equal ones before it, by 16 bits in each pass."""
    prefix = 0
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
        counts = np.zeros(2**_DIGIT, dtype=np.int64)
        for scores in shard():
            digits = keys_of(scores) >> np.uint64(shift)
            digits = digits[digits >> np.uint64(_DIGIT) == prefix]
            within = (digits & np.uint64(2**_DIGIT - 1)).astype(np.intp)
            counts += np.bincount(within, minlength=2**_DIGIT)
        upto = np.cumsum(team.sum(counts))
        digit = int(np.searchsorted(upto, rank, side="right"))
        rank -= int(upto[digit - 1]) if digit else 0
        prefix = (prefix << _DIGIT) + digit
    return float(scores_of(np.array([prefix], dtype=np.uint64))[0])


def _surroundings(shard: Shard, score: float, team: Team) -> tuple[int, int, float, float]:
    """Return how many scores lie below `score` and up to it, and the values next to it."""
    counts, before, after = np.zeros(2, dtype=np.int64), -np.inf, np.inf
    for scores in shard():
        below, above = scores < score, scores > score
        counts += [below.sum(), len(scores) - above.sum()]
        before = scores.max(where=below, initial=before)
        after = scores.min(where=above, initial=after)
    ends = np.array(team.gather(np.array([before, after])))
    below_all, upto_all = team.sum(counts)
    return int(below_all), int(upto_all), float(ends[:, 0].max()), float(ends[:, 1].min())


def keys_of(scores: Vector) -> npt.NDArray[np.uint64]:
    """Return integers in the order of the scores; -0.0 and 0.0 have the same."""
    bits = np.asarray(scores + 0.0, dtype=np.float64).view(np.int64)
    # The bits of negative floats fall as the floats rise: flip all of them, else the sign only.
    return np.asarray((bits ^ ((bits >> 63) | _SIGN)).view(np.uint64))


def scores_of(keys: npt.NDArray[np.uint64]) -> Vector:
    """Turn keys back into scores."""
    turned = keys.view(np.int64)
    return np.asarray((turned ^ (~(turned >> 63) | _SIGN)).view(np.float64))


@dataclass
class _Stored:
    """Scores of one process's targets, in memory-mapped files.

    `likely` and `places` (n, K) are probabilities of known classes, and which: all, or the
    most likely.
    """

    known: Any
    nearest: Any
    likely: Any
    places: Any
    n_classes: int

    def put(self, part: slice, scores: Scores) -> None:
        self.known[part], self.nearest[part] = scores.known, scores.nearest
        likely, kept = softmax(scores.classes, axis=1), self.likely.shape[1]
        if kept < self.n_classes:
            self.places[part] = np.argsort(-likely, axis=1, kind="stable")[:, :kept]
            likely = np.take_along_axis(likely, self.places[part], axis=1)
        self.likely[part] = likely

    def classes(self, part: slice) -> npt.NDArray[np.float64]:
        """Return the probabilities of all classes of some targets; 0 where they were not kept."""
        likely = np.array(self.likely[part], dtype=np.float64)
        if likely.shape[1] == self.n_classes:
            return likely
        dense = np.zeros((len(likely), self.n_classes))
        np.put_along_axis(dense, np.array(self.places[part]).astype(np.intp), likely, axis=1)
        return dense

    @classmethod
    def make(
        cls, folder: Path, rank: int, n_rows: int, n_classes: int, top_k: int | None
    ) -> _Stored:
        def new(name: str, dtype: Any, shape: tuple[int, ...]) -> Any:
            if 0 in shape:
                return np.zeros(shape, dtype=dtype)
            return new_array_file(folder / f"{name}-{rank:04d}.npy", dtype, shape)

        return cls(
            new("known", np.float64, (n_rows,)),
            new("nearest", np.int32, (n_rows,)),
            new("likely", np.float32, (n_rows, top_k or n_classes)),
            new("places", np.int32, (n_rows, top_k or 0)),
            n_classes,
        )

    def _arrays(self) -> list[Any]:
        arrays = self.known, self.nearest, self.likely, self.places
        return [array for array in arrays if isinstance(array, np.memmap)]

    def release(self) -> None:
        """Give the memory back: the files keep the values."""
        for array in self._arrays():
            array._mmap.madvise(mmap.MADV_DONTNEED)

    def remove(self) -> None:
        for array in self._arrays():
            Path(str(array.filename)).unlink(missing_ok=True)


def _table(
    classifier: OpenSetClassifier,
    stored: _Stored,
    part: slice,
    places: slice,
    ids: Any | None,
    id_name: str,
) -> PredictionTable:
    """Return the predictions of some of this process's targets, `places` among all targets."""
    known = np.array(stored.known[part])
    nearest = np.array(stored.nearest[part]).astype(np.intp)
    unknown = classifier.rejection.probability(known)
    classes = stored.classes(part) * (1 - unknown)[:, None]
    labels = classifier.rejection.labels(known, nearest, len(classifier.classes_))
    return PredictionTable(
        ids=numbers_of(places) if ids is None else np.asarray(ids[places]),
        labels=classifier.decode_labels(labels).astype(np.str_),
        known_scores=known,
        nearest=classifier.classes_[nearest].astype(np.str_),
        proba=np.column_stack([classes, unknown]),
        classes=class_names(classifier),
        unknown_label=str(classifier.unknown_label),
        id_name=id_name,
    )


# The sample to learn from ---------------------------------------------------------------------


def sample_size(n_classes: int, wanted: int = SAMPLE) -> int:
    """Return the largest number of targets to learn from."""
    return min(wanted, max(1024, SAMPLE_CELLS // n_classes))


def draw_sample(X: npt.NDArray[np.floating], size: int, team: Team = ALONE) -> IntArray:
    """Return which rows are the sample, in rising order.

    Those whose content has the smallest hashes; content that occurs several times gets its share.
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
    for start, chunk in row_chunks(X, team.rows(len(X)), CHUNK):
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
    for start, chunk in row_chunks(X, team.rows(len(X)), CHUNK):
        of_rows = content_keys(chunk)
        number = np.minimum(np.searchsorted(keys, of_rows), len(keys) - 1)
        rows = np.flatnonzero((keys[number] == of_rows) & (left[number] > 0))
        rows = rows[np.argsort(number[rows], kind="stable")]
        rows = rows[_first_of_each(number[rows], left)]
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
