"""What an analysis gets, what it returns, and the files it leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from opensetda.analyses.table import ResultTable
from opensetda.benchmark.grid import AUTO, TRUE, GridProgress, Results, grid_cells, run_grid
from opensetda.benchmark.output import write_parquet
from opensetda.benchmark.tasks import TaskSet
from opensetda.benchmark.variants import Variant
from opensetda.benchmark.workers import LostWorkerError, run_all
from opensetda.data.benchmarks.protocols import OpenSetTask
from opensetda.pgl.settings import PGLSettings
from opensetda.runs.figure_style import figure_bytes
from opensetda.system.files import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Folder of finished runs, in the folder of the analysis.
RUNS = "runs"

Work = TypeVar("Work")


@dataclass(frozen=True)
class PGLRun:
    """One run of PGL, as it is sent to a worker."""

    tasks: TaskSet
    task: str
    seed: int
    openness: str
    preset: str
    changes: tuple[tuple[str, Any], ...]

    def openness_of(self, task: OpenSetTask) -> float | str:
        """Return the true share of unknowns, or "auto"."""
        return task.openness if self.openness == TRUE else AUTO


@dataclass(frozen=True)
class AnalysisRequest:
    """The data and the options of an analysis; each task is run with each seed.

    Attributes
    ----------
    out : Path
        Folder of the analysis; finished runs are kept in it.
    openness : {"true", "auto"}
        Whether methods get the true share of unknowns, or have to estimate it.
    preset, changes : str, tuple of (str, value)
        Settings of PGL to start from, and changes to them.
    methods : tuple of str
        For analyses that compare methods; by default their own choice.
    values : tuple of float
        For analyses that vary a number; by default the paper's values.
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

    def settings(self) -> PGLSettings:
        """Return the settings of PGL."""
        return PGLSettings.preset(self.preset).with_changes(dict(self.changes))

    def run_variants(
        self, variants: Sequence[Variant], target_openness: Sequence[float | None] = (None,)
    ) -> Results:
        """Run variants on every task with every seed, without the runs that are finished."""
        names, openness = self.tasks.tasks, [self.openness]
        cells = grid_cells(variants, names, openness, self.seeds, target_openness)
        return run_grid(self.tasks, cells, self.out / RUNS, self.jobs, self.progress)

    def run_each(self, function: Callable[[Work], Any], work: Sequence[Work]) -> list[Any]:
        """Call a function that can be pickled with each piece of work, `jobs` at once."""
        tell = self.progress or (lambda done, total, row: None)
        tell(0, len(work), None)
        results: dict[int, Any] = {}
        for place, result in run_all(function, work, self.jobs):
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
        """Return PGL with the requested settings and further changes."""
        return Variant(label, "pgl", self.preset, (*self.changes, *changes))

    def what(self) -> str:
        """Return benchmark, tasks, openness and seeds in words."""
        tasks = self.tasks.tasks
        which = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
        share = "true openness" if self.openness == TRUE else "estimated openness"
        seeds = f"{len(self.seeds)} seeds" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"
        return f"{self.tasks.name} ({which}, {share}, {seeds})"


@dataclass(frozen=True)
class AnalysisResult:
    """A table, a figure, and the single runs if they come from a grid."""

    table: ResultTable
    figure: Figure
    runs: Results | None = field(default=None)


def write_analysis(folder: Path, name: str, result: AnalysisResult, command: str) -> list[Path]:
    """Write or replace table, figure and, of a grid, the single runs; return the paths."""
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
        write_parquet(result.runs.rows, path)
        written.append(path)
    return written
