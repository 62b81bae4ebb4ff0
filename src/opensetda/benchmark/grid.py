"""Method x task x openness x seed, with one small file per cell, so that a grid can be resumed.

``out/benchmark.json`` says which data the cells belong to, ``out/cells/KEY.json`` holds one
finished or failed cell. KEY is a hash of all that decides the result: data, method and its
settings, openness, seed, and the release of this package. Finished cells are read from their
files, failed ones are run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opensetda import __version__
from opensetda.benchmark.running import AUTO, OK, TRUE, Cell, failed_row, run_cell
from opensetda.benchmark.task_sets import TaskSet
from opensetda.benchmark.variants import Variant
from opensetda.benchmark.workers import LOKY, Backend, LostWorkerError, run_all
from opensetda.errors import InputError
from opensetda.system.files import check_writable, new_file, plain, read_json, write_json

CELLS = "cells"
IDENTITY = "benchmark.json"

GridProgress = Callable[[int, int, "dict[str, Any] | None"], None]
"""Called with the number of finished cells, of all cells, and the row of the last one."""


@dataclass
class Results:
    """One row per cell, in the order of the cells.

    A row says what was run, the metrics, the share of unknowns used and true, the step kept,
    seconds, memory, status and error.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The rows of the cells that failed."""
        return [row for row in self.rows if row["status"] != OK]


def grid_cells(
    variants: Sequence[Variant],
    tasks: Iterable[str],
    openness: Sequence[str] = (TRUE, AUTO),
    seeds: Sequence[int] = (0, 1, 2),
    target_openness: Sequence[float | None] = (None,),
) -> list[Cell]:
    """Return the cells of a grid; deterministic methods run for one seed only.

    Seed by seed and task by task, so that a worker reads the data of a task a few times only.
    """
    tasks = list(tasks)
    at_random = {variant: variant.draws_at_random for variant in variants}
    return [
        Cell(variant, task, share, seed, thinned)
        for seed in seeds
        for task in tasks
        for thinned in target_openness
        for share in openness
        for variant in variants
        # Where rows are dropped, the seed says which: then every method depends on it.
        if seed == seeds[0] or at_random[variant] or thinned is not None
    ]


def run_grid(
    tasks: TaskSet,
    cells: Sequence[Cell],
    out: str | Path,
    jobs: int | None = 1,
    progress: GridProgress | None = None,
    backend: Backend | None = None,
) -> Results:
    """Run the cells that are not finished yet, and return the rows of all.

    Parameters
    ----------
    tasks : TaskSet
        The data, from `find_tasks`.
    cells : sequence of Cell
        What to run.
    out : str or Path
        Folder of the finished cells; created if missing.
    jobs : int, optional
        Cells at once. Without a cluster, 1 works in this process. None: two, or the number of
        workers of a given cluster.
    progress : callable, optional
        Called once before the first cell, with None, and after each cell.
    backend : Backend, optional
        By default processes of this machine. Workers of a cluster read the data themselves: the
        paths in `tasks` have to be absolute, and valid there, too.

    Raises
    ------
    InputError
        If `out` belongs to another benchmark or to other data.
    """
    out = Path(out)
    check_folder(tasks, cells, out)
    keys = [cell.key(tasks) for cell in cells]
    found = {key: _finished(out, key) for key in dict.fromkeys(keys)}
    rows = {key: row for key, row in found.items() if row is not None}
    # By key: two variants may differ by their labels only.
    left = {key: cell for key, cell in zip(keys, cells, strict=True) if key not in rows}
    tell = progress or (lambda done, total, row: None)
    tell(0, len(left), None)
    for name in dict.fromkeys(cell.task for cell in left.values()):
        # Errors in the data are found before the first cell.
        tasks.load(name)
    _claim_folder(tasks, cells, out)
    order = list(left)
    on_cluster = backend is not None and backend.name != LOKY
    work = [(tasks, left[key], key if on_cluster else None) for key in order]
    # Closed, so that the workers end here even if Ctrl-C comes while a file is written.
    with closing(run_all(_run, work, jobs, backend)) as outcomes:
        for done, (place, outcome) in enumerate(outcomes, start=1):
            key = order[place]
            row = outcome
            if isinstance(outcome, LostWorkerError):
                row = failed_row(tasks.name, left[key], str(outcome))
            row = plain(row)
            with new_file(_cell_file(out, key)) as aside:
                write_json(aside, {"key": key, "release": __version__, "row": row})
            rows[key] = row
            tell(done, len(left), row)
    return Results(
        [{**rows[key], "method": cell.variant.label} for key, cell in zip(keys, cells, strict=True)]
    )


def _run(work: tuple[TaskSet, Cell, str | None]) -> dict[str, Any]:
    """Run a cell; if its key is given, only if the worker computes the same key."""
    tasks, cell, key = work
    try:
        found = key and cell.key(tasks)
    except Exception as error:
        return failed_row(tasks.name, cell, f"on its worker: {' '.join(str(error).split())}")
    if found != key:
        reason = "its worker sees other files, or has another release of this package"
        return failed_row(tasks.name, cell, reason)
    return run_cell((tasks, cell))


def n_finished(tasks: TaskSet, cells: Sequence[Cell], out: Path) -> int:
    """Return how many of the cells are finished."""
    return sum(_finished(out, cell.key(tasks)) is not None for cell in cells)


def check_folder(tasks: TaskSet, cells: Sequence[Cell], out: Path) -> dict[str, str]:
    """Return the fingerprint of each task that the folder has results of, without creating it.

    Raises
    ------
    InputError
        If it belongs to something else.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: a file is in the way; choose another --out")
    path = out / IDENTITY
    if not path.exists():
        if out.is_dir() and any(out.iterdir()):
            raise InputError(f"{out}: not empty, and not of a benchmark; choose another --out")
        check_writable(out)
        return {}
    identity = read_json(path)
    name, known = str(identity.get("benchmark")), dict(identity.get("tasks", {}))
    if name != tasks.name:
        raise InputError(
            f"{out}: holds results of {name}, not of {tasks.name}; choose another --out"
        )
    for task in dict.fromkeys(cell.task for cell in cells):
        fingerprint = tasks.task_fingerprint(task)
        if known.get(task, fingerprint) != fingerprint:
            raise InputError(
                f"{out}: holds results of other data for {task}; choose another --out, or "
                "give the same data and options as before"
            )
    return known


def _claim_folder(tasks: TaskSet, cells: Sequence[Cell], out: Path) -> None:
    """Create the folder, and record its data."""
    known = check_folder(tasks, cells, out)
    needed = {cell.task: tasks.task_fingerprint(cell.task) for cell in cells}
    (out / CELLS).mkdir(parents=True, exist_ok=True)
    if not known or known | needed != known:
        with new_file(out / IDENTITY) as aside:
            write_json(aside, {"benchmark": tasks.name, "tasks": known | needed})


def _cell_file(out: Path, key: str) -> Path:
    return out / CELLS / f"{key}.json"


def _finished(out: Path, key: str) -> dict[str, Any] | None:
    """Return the row of a successful cell; None if it is missing, failed or damaged."""
    try:
        record = read_json(_cell_file(out, key))
        row = dict(record["row"])
    except (InputError, KeyError, TypeError, ValueError):
        return None
    return row if row.get("status") == OK else None
