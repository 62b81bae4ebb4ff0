"""Fits of methods whose training has no part for the share of unknowns: one for both tables.

The rows are those of a grid cell (`osda benchmark`), with the share given or estimated; every fit
is kept in a file, and is not done again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from opensetda import evaluate
from opensetda.benchmark.grid import AUTO, OK, TRUE, Cell, GridProgress, fit_task
from opensetda.benchmark.tasks import TaskSet
from opensetda.data.benchmarks.protocols import OpenSetTask
from opensetda.methods.base import OpenSetClassifier
from opensetda.runs.integrity import read_json
from opensetda.share.decision import rejection_cut
from opensetda.system.files import new_file, own_folder, plain, write_json

Row = dict[str, Any]


def run_once(tasks: TaskSet, cells: Sequence[Cell], out: Path, progress: GridProgress) -> list[Row]:
    """Return a row for each cell."""
    own_folder(out)
    rows = []
    for done, cell in enumerate(cells, start=1):
        path = out / f"{replace(cell, openness=AUTO).key(tasks)}.json"
        if not path.is_file():
            with threadpool_limits(limits=1), new_file(path) as aside:
                write_json(aside, plain(fit_once(tasks.read(cell.task), cell)))
        row = read_json(path)[cell.openness]
        rows.append(row)
        progress(done, len(cells), row)
    return rows


def fit_once(task: OpenSetTask, cell: Cell) -> dict[str, Row]:
    """Train once; return the rows with the share estimated, or the method's own, and given."""
    classifier = cell.variant.build(AUTO, cell.seed)
    started = time.process_time()
    fitted = fit_task(classifier, task, seed=cell.seed).classifier
    costs = {"cpu_seconds": time.process_time() - started}
    told = fitted.rejecting_at(rejection_cut(fitted.transduction_scores_, task.openness))
    labels = np.where(
        fitted.transduction_scores_ < told.decision_.threshold,
        fitted.unknown_label,
        fitted.transduction_nearest_,
    )
    common = {"task": cell.task, "method": cell.variant.label, "status": OK, "error": None} | costs
    common["scaling"] = fitted.scaler_.name
    return {
        AUTO: common | _scores(fitted, task, fitted.transduction_),
        TRUE: common | _scores(told, task, labels),
    }


def _scores(classifier: OpenSetClassifier, task: OpenSetTask, labels: Any) -> Row:
    """Return the metrics of labels, and how many of them `predict` gives another."""
    known = classifier.classes_.tolist()
    scores = classifier.transduction_scores_
    found = evaluate(task.target_truth, labels, known, known_score=scores)
    differs = float(np.mean(labels != classifier.predict(task.target_features)))
    names = ("hos", "os_star", "unk", "auroc")
    return {name: getattr(found, name) for name in names} | {"differs": differs}
