"""What the tests of the analyses share: a small benchmark of two tasks, and quick settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from feature_shifts import feature_task
from opensetda.analyses.contract import AnalysisRequest
from opensetda.benchmark.tasks import TaskSet

QUICK = (
    ("steps", 2),
    ("optimiser.iterations_per_epoch", 2),
    ("ranking.draws", 1),
)


@dataclass(frozen=True)
class SmallTasks(TaskSet):
    """Clusters with three known and two unknown classes; the name of a task is its seed."""

    tasks: tuple[str, ...] = ("0", "1")
    name: str = "small"

    def load(self, task):
        return feature_task(3, 2, 32, "translation", 0.4, int(task), per_class=12)

    def task_fingerprint(self, task):
        return f"small {task}"


def a_request(out: Path, **more) -> AnalysisRequest:
    given = {"tasks": SmallTasks(), "out": out, "seeds": (0,), "changes": QUICK, **more}
    return AnalysisRequest(**given)
