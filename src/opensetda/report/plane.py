"""The plane of the map: an embedding in two dimensions by t-SNE."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow

from opensetda.errors import InputError
from opensetda.runs.folder import MAP, RunFolder, parquet_bytes

Plane = npt.NDArray[np.float32]
CountingProgress = Callable[[int, int], None]

_PERPLEXITY = 30.0
# Iterations, with and without exaggeration, and how many pass between two reports of progress.
_EARLY = 200
_LATE = 300
_PART = 50
_AXES = ("x", "y")


def plane_of(run: RunFolder, progress: CountingProgress | None = None) -> Plane:
    """Return the positions of the samples of a run's view; cached in the run folder.

    They have shape (n, 2) and lie within [0, 1].
    """
    rows = run.view().embedding
    if MAP in run.manifest.files:
        # A damaged file is made again.
        with suppress(InputError, ValueError):
            table = run.table(MAP)
            if len(table) == len(rows):
                return np.column_stack([table.numbers(axis, 0, 1) for axis in _AXES])
    plane = lay_out(rows, progress)
    columns = dict(zip(_AXES, plane.T, strict=True))
    # Of a run that cannot be written to, they are computed again for the next report.
    with suppress(OSError):
        run.replace_files({MAP: parquet_bytes(pyarrow.table(columns))})
    return plane


def lay_out(rows: npt.NDArray[np.floating[Any]], progress: CountingProgress | None = None) -> Plane:
    """Lay out principal components by t-SNE, from the first two of them: (n, d) -> (n, 2)."""
    begin = np.zeros((len(rows), 2))
    begin[:, : min(2, rows.shape[1])] = rows[:, :2]
    # Too few for neighbours, or all at one place.
    if len(rows) >= 5 and np.ptp(begin[:, 0]):
        begin = _optimised(begin, np.ascontiguousarray(rows, dtype=np.float64), progress)
    low = begin.min(axis=0)
    high = begin.max(axis=0)
    side = float((high - low).max()) or 1.0
    return np.asarray((begin - (low + high) / 2) / side + 0.5, dtype=np.float32)


def _optimised(
    begin: npt.NDArray[np.float64], rows: npt.NDArray[np.float64], progress: CountingProgress | None
) -> npt.NDArray[np.float64]:
    from openTSNE import TSNEEmbedding, initialization
    from openTSNE.affinity import PerplexityBasedNN

    perplexity = min(_PERPLEXITY, (len(rows) - 1) / 3)
    near = PerplexityBasedNN(rows, perplexity=perplexity, method="exact", random_state=0)
    options: dict[str, Any] = {"negative_gradient_method": "bh"}
    if len(rows) >= 1000:
        # Twice as coarse as openTSNE's default, in a third of the time.
        grid = {"ints_in_interval": 2, "min_num_intervals": 20}
        options = {"negative_gradient_method": "fft", **grid}
    # One thread, for the same result every time.
    start = initialization.rescale(begin)
    plane: Any = TSNEEmbedding(start, near, n_jobs=1, random_state=0, **options)
    for done in range(0, _EARLY + _LATE, _PART):
        plane = plane.optimize(_PART, exaggeration=12.0 if done < _EARLY else None, momentum=0.8)
        if progress is not None:
            progress(min(done + _PART, _EARLY + _LATE), _EARLY + _LATE)
    return np.asarray(plane)
