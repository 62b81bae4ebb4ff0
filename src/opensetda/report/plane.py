"""Embeddings in a plane by t-SNE; each step starts from the positions of its neighbour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow

from opensetda.errors import InputError
from opensetda.runs.checked import CheckedTable
from opensetda.runs.folder import MAP, RunFolder, parquet_bytes

Plane = npt.NDArray[np.float32]
CountingProgress = Callable[[int, int], None]
Embedding = npt.NDArray[np.floating[Any]]

_PERPLEXITY = 30.0
# Iterations: of the kept step, early and late, and of each further step.
_EARLY, _LATE, _NEXT = 200, 300, 50
_EXAGGERATION = 12.0
_X, _Y = "x", "y"
MOST_STEPS = 12


def planes_of(run: RunFolder, progress: CountingProgress | None = None) -> dict[int, Plane]:
    """Return the positions of the samples of a run's view by step; cached in the run folder.

    Every plane has shape (n, 2) and lies within [0, 1]. Of many steps some are left out; a method
    without steps has one plane.
    """
    view = run.view()
    steps, kept = view.steps, run.kept_place(view)
    numbers = _chosen(len(steps), kept)
    if run.manifest.has(MAP):
        # A damaged file is made again.
        with suppress(InputError, ValueError):
            planes = _read(run.table(MAP))
            if sorted(planes) == numbers and len(planes[numbers[0]]) == len(steps[0]):
                return planes
    chosen = [steps[number - 1] for number in numbers]
    found = lay_out(chosen, numbers.index(kept + 1), progress)
    planes = dict(zip(numbers, found, strict=True))
    columns = {f"{x}{n}": planes[n][:, place] for n in numbers for place, x in enumerate((_X, _Y))}
    run.manifest.replace({MAP: parquet_bytes(pyarrow.table(columns))})
    return planes


def _chosen(n_steps: int, kept: int) -> list[int]:
    """Choose the steps to show, from 1: all, or evenly spaced ones with the kept one."""
    places = np.linspace(0, n_steps - 1, min(n_steps, MOST_STEPS)).round().astype(int)
    if kept not in places:
        places[np.abs(places - kept).argmin()] = kept
    return sorted({int(place) + 1 for place in places})


def lay_out(
    steps: Sequence[Embedding], start: int, progress: CountingProgress | None = None
) -> list[Plane]:
    """Lay out the embeddings of each step, beginning with step `start` (from 0).

    Every other step starts from its neighbour's positions and is optimised a little: what moves
    is what the training moved. Shapes: each (n, d) -> each (n, 2).
    """
    order = [start, *range(start - 1, -1, -1), *range(start + 1, len(steps))]
    total = _EARLY + _LATE + _NEXT * (len(steps) - 1)
    raw: dict[int, npt.NDArray[np.float64]] = {}
    done = 0

    def tell(iterations: int) -> None:
        nonlocal done
        done = min(done + iterations, total)
        if progress is not None:
            progress(done, total)

    for number in order:
        if number == start:
            raw[number] = _first(steps[number], tell)
        else:
            before = raw[number + 1 if number < start else number - 1]
            raw[number] = _next(steps[number], before, tell)
    return _scaled([raw[number] for number in range(len(steps))])


def _first(rows: Embedding, tell: Callable[[int], None]) -> npt.NDArray[np.float64]:
    from openTSNE import initialization

    # Rows are principal components; starting from two of them is deterministic.
    begin = np.zeros((len(rows), 2))
    begin[:, : min(2, rows.shape[1])] = rows[:, :2]
    if len(rows) < 5 or not np.ptp(begin[:, 0]):
        # Too few for neighbours, or all at one place.
        return begin
    plane = _embedding(initialization.rescale(begin), rows)
    plane = _improved(plane, _EARLY, tell, exaggeration=_EXAGGERATION)
    return np.asarray(_improved(plane, _LATE, tell))


def _next(
    rows: Embedding, before: npt.NDArray[np.float64], tell: Callable[[int], None]
) -> npt.NDArray[np.float64]:
    if len(rows) < 5:
        return before
    return np.asarray(_improved(_embedding(before.copy(), rows), _NEXT, tell))


def _improved(
    plane: Any, iterations: int, tell: Callable[[int], None], exaggeration: float | None = None
) -> Any:
    part = 50
    for begun in range(0, iterations, part):
        count = min(part, iterations - begun)
        plane = plane.optimize(count, exaggeration=exaggeration, momentum=0.8)
        tell(count)
    return plane


def _embedding(begin: npt.NDArray[np.float64], rows: Embedding) -> Any:
    from openTSNE import TSNEEmbedding
    from openTSNE.affinity import PerplexityBasedNN

    perplexity = min(_PERPLEXITY, (len(rows) - 1) / 3)
    data = np.ascontiguousarray(rows, dtype=np.float64)
    near = PerplexityBasedNN(data, perplexity=perplexity, method="exact", random_state=0)
    options: dict[str, Any] = {"negative_gradient_method": "bh"}
    if len(rows) >= 1000:
        # Twice as coarse as openTSNE's default, in a third of the time.
        grid = {"ints_in_interval": 2, "min_num_intervals": 20}
        options = {"negative_gradient_method": "fft", **grid}
    # One thread, for the same result every time.
    return TSNEEmbedding(begin, near, n_jobs=1, random_state=0, **options)


def _scaled(planes: list[npt.NDArray[np.float64]]) -> list[Plane]:
    """Scale all steps to the same width, into one square: t-SNE spreads with more iterations."""
    centred = [plane - plane.mean(axis=0) for plane in planes]
    alike = [plane / (float(np.sqrt((plane**2).mean())) or 1.0) for plane in centred]
    everything = np.concatenate(alike)
    low, high = everything.min(axis=0), everything.max(axis=0)
    side = float((high - low).max()) or 1.0
    middle = (low + high) / 2
    return [np.asarray((plane - middle) / side + 0.5, dtype=np.float32) for plane in alike]


def _read(table: CheckedTable) -> dict[int, Plane]:
    numbers = [int(name[1:]) for name in table.names if name.startswith(_X)]
    return {
        n: np.column_stack([table.numbers(f"{axis}{n}", 0, 1) for axis in (_X, _Y)])
        for n in numbers
    }
