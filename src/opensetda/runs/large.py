"""Targets beyond memory: learn from a random sample of them, then label all, part by part.

The sample is drawn by the content of the rows, so their order carries nothing. Every target is
then scored as later samples are, on its own, so that neither company nor the number of
processes changes an answer. The threshold is where the share of unknowns, found on the sample,
cuts the scores of all targets: an exact order statistic over the shards of all processes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from opensetda.base import SCORED_ROWS, OpenSetClassifier, Scores
from opensetda.rows import row_chunks
from opensetda.runs.folder import PREDICTIONS, PREDICTIONS_FOR_PEOPLE, STEP_PREFIX, STEPS
from opensetda.runs.order_statistics import shared_rejection_cut
from opensetda.runs.predictions import CLASS_PREFIX, PredictionTable, class_names, numbers_of
from opensetda.runs.shared_tables import Parts
from opensetda.system.files import new_array_file
from opensetda.system.team import ALONE, Team

# Rows that are read, scored and written at a time.
CHUNK, CHUNK_CELLS = 4096, 2**22
# Of more classes the table has the likeliest only: a column a class would be most of it.
MOST_COLUMNS, TOP_CLASSES = 100, 5


@dataclass(frozen=True)
class LabelledTargets:
    """All targets with their labels, in files.

    Attributes
    ----------
    parts : Parts
        Tables of predictions, one a process.
    counts : Counter
        How often each label was given.
    """

    parts: Parts
    counts: Counter[str]

    def write(self, folder: Path, step: int) -> None:
        """Write predictions and labels of the last step into a run's folder."""
        parts = self.parts
        parts.write(folder / PREDICTIONS)
        # A column a class would make a text of many gigabytes that nobody reads.
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
    """Score, rank and label all targets, and set the classifier's threshold by them.

    Parameters
    ----------
    classifier : OpenSetClassifier
        Fitted to the sample.
    X : array of shape (n, d)
        All targets; may be a memory map.
    ids : sequence of str, optional
        Their names; may be in a file, too.
    scratch : Path
        A folder that all processes see; who calls removes it.
    progress : callable, optional
        Told how many of this process's targets are done, and how many it has.
    """
    rows = team.rows(len(X))
    n_classes = len(classifier.classes_)
    top_k = None if n_classes <= MOST_COLUMNS else TOP_CLASSES
    stored = _Stored.make(scratch, team.rank, len(rows), n_classes, top_k)
    size = max(SCORED_ROWS, min(CHUNK, CHUNK_CELLS // n_classes))
    for start, chunk in row_chunks(X, rows, size):
        scores = classifier.open_set_scores(chunk)
        part = slice(start - rows.start, start - rows.start + len(chunk))
        stored.put(part, scores)
        stored.release()
        if progress is not None:
            progress(part.stop, len(rows))

    def shard() -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
        for first in range(0, len(rows), 2**20):
            yield rows.start + first, np.array(stored.known[first : first + 2**20])
            stored.release()

    if not classifier.openness_report_.own_boundary:
        cut = shared_rejection_cut(shard, classifier.openness_, team)
        classifier.rejection_threshold_ = cut
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
    return LabelledTargets(parts, together(counts, team))


def together(counts: Counter[str], team: Team) -> Counter[str]:
    """Add up everybody's counts."""
    total: Counter[str] = Counter()
    for part in team.gather_bytes(json.dumps(counts).encode()):
        total.update(json.loads(part))
    return total


@dataclass
class _Stored:
    """What one process found out about its targets, in files that are mapped into memory.

    Attributes
    ----------
    known, nearest : arrays of shape (n,)
    likely, places : arrays of shape (n, K)
        Probabilities of classes among the known ones, and which: all, or the likeliest.
    """

    known: Any
    nearest: Any
    likely: Any
    places: Any
    n_classes: int

    def put(self, part: slice, scores: Scores) -> None:
        """Keep some scores."""
        self.known[part], self.nearest[part] = scores.known, scores.nearest
        likely, kept = softmax(scores.classes, axis=1), self.likely.shape[1]
        if kept < self.n_classes:
            self.places[part] = np.argsort(-likely, axis=1, kind="stable")[:, :kept]
            likely = np.take_along_axis(likely, self.places[part], axis=1)
        self.likely[part] = likely

    def classes(self, part: slice) -> npt.NDArray[np.float64]:
        """Return the probabilities of all classes of some targets; of the unlikeliest, 0."""
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
        """Give the pages back: the files hold them."""
        import mmap

        for array in self._arrays():
            array._mmap.madvise(mmap.MADV_DONTNEED)

    def remove(self) -> None:
        """Remove the files."""
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
    """Return the predictions of some of this process's targets, `places` among all."""
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
