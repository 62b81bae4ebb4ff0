"""Targets that do not fit into memory: learn from a random sample, then label all in chunks.

The sample is drawn by the content of the rows, so their order has no effect. Every target is
then scored as later samples are, regardless of batch. The threshold is where the share of
unknowns, estimated on the sample, cuts the sorted scores of all targets.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.base import OpenSetClassifier
from opensetda.openness.mixtures import rejection_cut
from opensetda.rows import IntArray, content_keys, row_chunks
from opensetda.runs.folder import STEP_PREFIX, STEPS, predictions_name
from opensetda.runs.listening import CountingProgress
from opensetda.runs.predictions import PredictionTable, PredictionWriter, numbers_of
from opensetda.runs.request import SAMPLE

# Largest size of the table of probabilities of a sample: with many classes it is smaller.
SAMPLE_CELLS = 2**25
# Numbers of features, or of probabilities, that are in memory at a time; rows at most.
CHUNK_CELLS, CHUNK_ROWS = 2**22, 2**13
# With more classes than MOST_COLUMNS, the table has the most likely classes only.
MOST_COLUMNS, TOP_CLASSES = 100, 5


def sample_size(n_classes: int, wanted: int = SAMPLE) -> int:
    """Return the largest number of targets to learn from."""
    return min(wanted, max(1024, SAMPLE_CELLS // n_classes))


def draw_sample(X: npt.NDArray[Any], size: int) -> IntArray:
    """Return which rows are the sample, in rising order.

    Those whose content has the smallest hashes. Content that occurs several times gets its share,
    by largest remainders.
    """
    chunk = max(1, min(CHUNK_ROWS, CHUNK_CELLS // X.shape[1]))
    keys = np.concatenate([content_keys(rows) for _, rows in row_chunks(X, chunk)])
    rows = np.flatnonzero(keys <= np.unique(keys)[:size][-1])
    _, content, counts = np.unique(keys[rows], return_inverse=True, return_counts=True)
    exact = counts * (min(size, len(rows)) / len(rows))
    wanted = np.minimum(np.floor(exact).astype(np.intp), counts)
    left = min(size, len(rows)) - int(wanted.sum())
    wanted[np.argsort(wanted - exact, kind="stable")[:left]] += 1
    by_content = np.argsort(content, kind="stable")
    earlier_twins = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(rows[by_content[earlier_twins < np.repeat(wanted, counts)]])


def label_targets(
    classifier: OpenSetClassifier,
    X: npt.NDArray[Any],
    ids: Any | None,
    id_name: str,
    folder: Path,
    progress: CountingProgress = lambda done, total: None,
) -> Counter[str]:
    """Write the predictions of all targets to a folder, and return how many got each label.

    X and `ids` may be in files. Each target is scored twice: for the threshold, which is set in
    the classifier of the sample, and for its label; after the first time it is half done.
    """
    n_classes = len(classifier.classes_)
    size = max(1, min(CHUNK_ROWS, CHUNK_CELLS // max(X.shape[1], n_classes)))
    passes = 1 if classifier.openness_report_.own_boundary else 2
    if passes == 2:
        known = np.empty(len(X))
        for start, chunk in row_chunks(X, size):
            known[start : start + len(chunk)] = classifier.open_set_scores(chunk).known
            progress((start + len(chunk)) // 2, len(X))
        classifier.rejection_threshold_ = rejection_cut(known, classifier.openness_)
    counts: Counter[str] = Counter()
    step = f"{STEP_PREFIX}{max(len(classifier.history_), 1)}"
    top_k = None if n_classes <= MOST_COLUMNS else TOP_CLASSES
    with ExitStack() as stack:
        names = predictions_name(len(X)), STEPS
        full, steps = (stack.enter_context(PredictionWriter(folder / name)) for name in names)
        for start, chunk in row_chunks(X, size):
            part = slice(start, start + len(chunk))
            own = numbers_of(part) if ids is None else np.asarray(ids[part])
            table = PredictionTable.of_samples(classifier, chunk, own, id_name)
            counts.update(table.labels.tolist())
            rows = table.to_arrow(top_k)
            full.write_rows(rows)
            steps.write_rows(rows.select([id_name, "label"]).rename_columns(["id", step]))
            progress(len(X) - (len(X) - part.stop) // passes, len(X))
    return counts
