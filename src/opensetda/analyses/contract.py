"""What an analysis gets, what it returns, and the files it leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from opensetda.analyses.table import ResultTable
from opensetda.benchmark.grid import AUTO, TRUE, Cell, GridProgress, Results, Variant, run_grid
from opensetda.benchmark.running import one_thread
from opensetda.benchmark.tasks import TaskSet
from opensetda.benchmark.workers import LostWorkerError, run_all
from opensetda.data.benchmarks.protocols import OpenSetTask
from opensetda.runs.figure_style import figure_bytes
from opensetda.system.files import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS = "runs"
"""Folder of finished runs, in the folder of the analysis."""

Work = TypeVar("Work")


@dataclass(frozen=True)
class PGLRun:
    """One run of PGL: what a worker needs to know of it."""

    tasks: TaskSet
    task: str
    seed: int
    openness: str
    preset: str
    changes: tuple[tuple[str, Any], ...]

    def told(self, task: OpenSetTask) -> float | str:
        """Return the share of unknowns that the method is told, or "auto"."""
        return task.openness if self.openness == TRUE else AUTO


@dataclass(frozen=True)
class AnalysisRequest:
    """What is to be analysed.

    Attributes
    ----------
    tasks : TaskSet
        The data.
    out : Path
        Folder of the analysis; finished runs are kept in it.
    seeds : tuple of int
        Each task is run with each of them.
    openness : {"true", "auto"}
        Whether methods are told the true share of unknowns, or have to find it out.
    preset : str
        Settings of PGL to start from.
    changes : tuple of (str, value)
        Changes to the preset.
    methods : tuple of str
        For the analyses that compare methods; empty takes their own choice.
    values : tuple of float
        For the analyses that vary a number; empty takes the paper's.
    jobs : int
        Runs at once.
    progress : callable, optional
        Called with how many runs are done, how many there are, and the last one's row.
    """

    tasks: TaskSet
    out: Path
    seeds: tuple[int, ...] = (0, 1, 2)
    openness: str = TRUE
    preset: str = "default"
    changes: tuple[tuple[str, Any], ...] = ()
    methods: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    jobs: int = 1
    progress: GridProgress | None = None

    def run_cells(self, cells: Sequence[Cell]) -> Results:
        """Run the cells that are not finished yet."""
        return run_grid(self.tasks, cells, self.out / RUNS, self.jobs, self.progress)

    def run_each(self, function: Callable[[Work], Any], work: Sequence[Work]) -> list[Any]:
        """Call a function that can be pickled with each piece of work, `jobs` at once.

        Each on one thread, as in a grid: a result does not depend on what runs beside it.
        """
        tell = self.progress or (lambda done, total, row: None)
        tell(0, len(work), None)
        results: dict[int, Any] = {}
        for place, result in run_all(partial(_on_one_thread, function), work, self.jobs):
            if isinstance(result, LostWorkerError):
                raise RuntimeError(str(result))
            results[place] = result
            tell(len(results), len(work), None)
        return [results[place] for place in range(len(work))]

    def pgl_runs(self) -> list[PGLRun]:
        """Return PGL on every task with every seed."""
        return [
            PGLRun(self.tasks, task, seed, self.openness, self.preset, self.changes)
            for task in self.tasks.tasks
            for seed in self.seeds
        ]

    def variant(self, label: str, *changes: tuple[str, Any]) -> Variant:
        """Return PGL as it is asked for, with further changes."""
        return Variant(label, "pgl", self.preset, (*self.changes, *changes))

    def what(self) -> str:
        """Say on what: benchmark, tasks, openness and seeds."""
        tasks = self.tasks.tasks
        which = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
        share = "true openness" if self.openness == TRUE else "estimated openness"
        seeds = f"{len(self.seeds)} seeds" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"
        return f"{self.tasks.name} ({which}, {share}, {seeds})"


@dataclass(frozen=True)
class AnalysisResult:
    """A table, a figure, and the single runs where there is a grid behind them."""

    table: ResultTable
    figure: Figure
    runs: Results | None = field(default=None)


def _on_one_thread(function: Callable[[Work], Any], piece: Work) -> Any:
    with one_thread():
        return function(piece)


def write_analysis(folder: Path, name: str, result: AnalysisResult, command: str) -> list[Path]:
    """Write table and figure, and the single runs if there is a grid; earlier ones are replaced.

    Parameters
    ----------
    folder : Path
        Is made if need be.
    name : str
        The analysis: the files are called so.
    command : str
        What makes them again; the Markdown file says so.

    Returns
    -------
    list of Path
        What was written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = result.table
    page = f"{table.to_markdown()}\n![{table.title}]({name}.png)\n\nMade by `{command}`.\n"
    contents = {
        ".csv": table.to_csv().encode(),
        ".md": page.encode(),
        ".png": figure_bytes(result.figure, "png"),
        ".pdf": figure_bytes(result.figure, "pdf"),
    }
    written = []
    for ending, content in contents.items():
        path = folder / f"{name}{ending}"
        with new_file(path) as aside:
            aside.write_bytes(content)
        written.append(path)
    if result.runs is not None:
        path = folder / f"{name}.parquet"
        result.runs.write_parquet(path)
        written.append(path)
    return written
