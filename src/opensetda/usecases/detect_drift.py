"""The use case drift: whether later samples still look like the target of a run."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.data.images.loading import iterate_entries
from opensetda.progress import RunListener
from opensetda.runs.folder import RunFolder
from opensetda.runs.kept import most_rows
from opensetda.runs.options import TableOptions
from opensetda.runs.predictions import PredictionTable
from opensetda.usecases.drift_of_samples import Drift, compared_with, kept_target
from opensetda.usecases.fit_rows import draw_sample
from opensetda.usecases.predict_samples import (
    Run,
    find_images,
    image_parts,
    with_run,
)
from opensetda.usecases.read_run import manifest_columns, read_rows


def drift(
    run: Run,
    samples: Any,
    *,
    tables: TableOptions | None = None,
    listener: RunListener | None = None,
) -> Drift:
    """Compare later samples with the target of a run; of many, 800 are drawn and labelled.

    Parameters
    ----------
    run : str, Path, RunFolder or FittedRun
        The run.
    samples : str, Path, sequence of paths, DataFrame, or array of shape (n, d)
        What `predict` takes.
    tables : TableOptions, optional
        Columns and arrays of a table or manifest; by default as in `fit`.
    listener : RunListener, optional
        Receives warnings and progress.
    """
    options = tables or TableOptions()

    def compare(folder: RunFolder) -> Drift:
        kept_target(folder)
        images = find_images(folder, samples, options)
        if images is None:
            rows, ids, count = _drawn_rows(folder, samples, options)
        else:
            rows, ids, count = _drawn_images(folder, images, options, listener or RunListener())
        decided = PredictionTable.of_samples(folder.model(), rows, ids)
        return compared_with(folder, rows, ids, decided.labels, count)

    return with_run(run, compare)


def _drawn_rows(folder: RunFolder, samples: Any, options: TableOptions) -> tuple[Any, Any, int]:
    """Return some rows of a table, their names, and how many rows it has."""
    table = read_rows(folder, samples, None, options)
    count = len(table.X)
    most = most_rows(table.X.shape[1])
    places = draw_sample(table.X, most) if count > most else np.arange(count)
    ids = places + 1 if table.ids is None else np.asarray(table.ids[places])
    return np.asarray(table.X[places], dtype=np.float32), ids.astype(np.str_), count


def _drawn_images(
    folder: RunFolder, images: list[Path], options: TableOptions, listener: RunListener
) -> tuple[Any, Any, int]:
    """Return features of some images, their names, and how many images there are."""
    columns = manifest_columns(folder, options)
    every = [entry.id for entry in iterate_entries(images, columns)]
    chosen = smallest_hashes(every, most_rows(folder.recipe().width))
    parts = list(image_parts(folder, images, columns, [], listener, chosen))
    rows = np.concatenate([features for features, _ in parts])
    return rows, np.concatenate([names for _, names in parts]), len(every)


def smallest_hashes(names: list[str], most: int) -> frozenset[int]:
    """Return the places of the names with the smallest hashes: a sample, whatever their order."""
    if len(names) <= most:
        return frozenset(range(len(names)))
    keys = [sha256(name.encode("utf-8", "surrogateescape")).digest() for name in names]
    return frozenset(sorted(range(len(names)), key=keys.__getitem__)[:most])
