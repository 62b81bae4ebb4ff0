"""How good PGL is after each of its steps (the paper's Figure 7).

The paper chooses its step from these curves, which needs target labels; here the step is chosen
without them, and the curves show how good that choice is. Figure 7 has ALL, OS and OS*; UNK
and HOS are added.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from opensetda.analyses.contract import (
    AnalysisRequest,
    AnalysisResult,
    Column,
    PGLRun,
    ResultTable,
    metric_columns,
    metric_series,
    spreads_by_step,
)
from opensetda.benchmark.grid import fit_task
from opensetda.metrics.open_set import evaluate
from opensetda.report.plots import LinePanel, draw_lines
from opensetda.runs.methods import build_method

METRICS = ("all", "os", "os_star", "unk", "hos")


def analyse(request: AnalysisRequest) -> AnalysisResult:
    """Run PGL on every task and seed, and score the labels after every step."""
    runs = request.pgl_runs()
    curves = request.run_each(step_curve, runs)
    columns = [Column("task", "task"), Column("step", "step"), *metric_columns(METRICS)]
    table = ResultTable(
        f"Accuracy over the steps: PGL, {request.preset}, on {request.what()}",
        [*columns, Column("kept", "kept in")],
        notes=["In %. 'kept in': number of runs that kept the step, chosen without labels."],
    )
    panels = []
    for task in request.tasks.tasks:
        own = [curve for run, curve in zip(runs, curves, strict=True) if run.task == task]
        kept = Counter(step for step, _ in own)
        rows = spreads_by_step([scores for _, scores in own], METRICS)
        for step, metrics in rows.items():
            said = f"{kept[step]} of {len(own)}" if kept[step] else ""
            mostly = kept[step] == max(kept.values())
            table.add(marked=mostly, task=task, step=step, kept=said, **metrics)
        chosen, lines = sorted(kept), metric_series(rows)
        heading = f"step (kept: {', '.join(map(str, chosen))})"
        panels.append(LinePanel(task, heading, "%", lines, marked=chosen, percent=True))
    return AnalysisResult(table, draw_lines(panels, f"PGL over its steps: {request.what()}"))


def step_curve(run: PGLRun) -> tuple[int, list[dict[str, float]]]:
    """Fit PGL, then score the labels of each step; returns the step kept and the scores."""
    task = run.tasks.load(run.task)
    openness, changes, seed = run.openness_of(task), dict(run.changes), run.seed
    classifier: Any = build_method(
        "pgl", openness=openness, preset=run.preset, changes=changes, seed=seed
    )
    fit_task(classifier, task)
    names = np.array([*classifier.classes_.tolist(), classifier.unknown_label], dtype=object)
    rows = []
    for labels in classifier.step_labels_:
        scores = evaluate(task.target_truth, names[labels], classifier.classes_)
        rows.append({name: getattr(scores, name) for name in METRICS})
    return int(classifier.kept_step_.step), rows
