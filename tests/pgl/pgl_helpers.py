"""A small training of PGL, for its tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from opensetda.context import FitContext, Record
from opensetda.methods.inputs import FixedRows
from opensetda.methods.rankers import usual_ranker
from opensetda.pgl.settings import PGLSettings
from opensetda.pgl.taught import Teacher
from opensetda.pgl.training import ProgressiveTraining
from opensetda.rows import Domains, Rows

SMALL: dict[str, Any] = {
    "steps": 4,
    "stop_step": 3,
    "episodes": 2,
    "edge_width": 8,
    "node_width": 8,
    "graph_rate": 1e-3,
    "backbone_rate": 1e-3,
    "epochs": 2,
    "epochs_per_step": 0,
    "decay_every": 1,
    "slower_decay": False,
    "draws": 2,
}
"""Settings that keep every part of the method and take a tenth of a second."""


class Store:
    """A `CheckpointStore` in memory; `kept` has all records that were written."""

    def __init__(self, latest: Record | None = None) -> None:
        self.kept: list[Record] = []
        self.latest = latest

    def write(self, record: Record) -> None:
        arrays = {name: array.copy() for name, array in record.arrays.items()}
        self.latest = Record({**record.values, "history": list(record.values["history"])}, arrays)
        self.kept.append(self.latest)

    def read(self) -> Record | None:
        return self.latest


def training(task: Any, seed: int = 0, context: FitContext | None = None, **changes: Any) -> Any:
    """A training on the rows of a task, in their order."""
    source, target = np.flatnonzero(task.domain > 0), np.flatnonzero(task.domain < 0)
    classes, labels = np.unique(task.y[source], return_inverse=True)
    domains = Domains(Rows(task.X, source), labels, Rows(task.X, target), classes)
    settings = PGLSettings(**{**SMALL, **changes})
    teacher = None
    if settings.ranking != "softmax":
        ranker = usual_ranker()
        teacher = Teacher(ranker, share=task.openness, y=labels, n_classes=len(classes))
    return ProgressiveTraining(
        inputs=FixedRows(domains, None),
        source_labels=labels,
        n_classes=len(classes),
        share=task.openness,
        settings=settings,
        seed=seed,
        context=context or FitContext(),
        teacher=teacher,
    )


def run(task: Any, **parameters: Any) -> Any:
    trained = training(task, **parameters)
    trained.run()
    return trained
