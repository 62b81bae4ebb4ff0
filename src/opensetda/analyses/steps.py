"""How good PGL is after each of its steps (the paper's Figure 7).

The paper chooses its step from these curves, which needs target labels; here the step is chosen
without them, and the curves show how good that choice is. Figure 7 has ALL, OS and OS*; UNK
and HOS are added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from opensetda.analyses.contract import AnalysisRequest, AnalysisResult, PGLRun
from opensetda.analyses.table import Column, ResultTable, Spread
from opensetda.benchmark.grid import fit_task
from opensetda.metrics.open_set import evaluate
from opensetda.report.plots import LinePanel, Series, draw_lines
from opensetda.runs.figure_style import METRIC_STYLE
from opensetda.runs.methods import build_method

METRICS = ("all", "os", "os_star", "unk", "hos")


def analyse(request: AnalysisRequest) -> AnalysisResult:
    """Run PGL on every task and seed, and score the labels after every step."""
    runs = request.pgl_runs()
    curves = request.run_each(step_curve, runs)
    table = ResultTable(
        f"Accuracy over the steps: PGL, {request.preset}, on {request.what()}",
        [
            Column("task", "task"),
            Column("step", "step"),
            *(Column(name, METRIC_STYLE[name][0], "percent") for name in METRICS),
            Column("kept", "kept in"),
        ],
        notes=["In %. 'kept in': number of runs that kept the step, chosen without labels."],
    )
    panels = []
    for task in request.tasks.tasks:
        own = [curve for run, curve in zip(runs, curves, strict=True) if run.task == task]
        kept = Counter(curve["kept"] for curve in own)
        rows = _rows(own)
        for step, metrics in rows.items():
            said = f"{kept[step]} of {len(own)}" if kept[step] else ""
            mostly = kept[step] == max(kept.values())
            table.add(marked=mostly, task=task, step=step, kept=said, **metrics)
        panels.append(_panel(task, rows, kept))
    title = f"PGL over its steps: {request.what()}"
    return AnalysisResult(table, draw_lines(panels, title))


def step_curve(run: PGLRun) -> dict[str, Any]:
    """Fit PGL, then score the labels of each step; returns the step kept and one row per step."""
    task = run.tasks.load(run.task)
    classifier: Any = build_method(
        "pgl",
        openness=run.openness_of(task),
        preset=run.preset,
        changes=dict(run.changes),
        seed=run.seed,
    )
    fit_task(classifier, task)
    names = np.array([*classifier.classes_.tolist(), classifier.unknown_label], dtype=object)
    rows = []
    for labels in classifier.step_labels_:
        scores = evaluate(task.target_truth, names[labels], classifier.classes_)
        rows.append({name: getattr(scores, name) for name in METRICS})
    return {"kept": int(classifier.kept_step_.step), "steps": rows}


def _rows(curves: Sequence[dict[str, Any]]) -> dict[int, dict[str, Spread]]:
    """Mean and deviation over the runs of a task, by step and metric."""
    longest = max(len(curve["steps"]) for curve in curves)
    return {
        step: {
            name: Spread.of(
                curve["steps"][step - 1][name] for curve in curves if len(curve["steps"]) >= step
            )
            for name in METRICS
        }
        for step in range(1, longest + 1)
    }


def _panel(task: str, rows: dict[int, dict[str, Spread]], kept: Counter[int]) -> LinePanel:
    series = []
    for name in METRICS:
        heading, color, marker, width = METRIC_STYLE[name]
        spreads = {float(s): metrics[name] for s, metrics in rows.items() if metrics[name].n}
        series.append(
            Series(
                heading,
                {step: 100 * spread.mean for step, spread in spreads.items()},
                color,
                marker,
                width,
                {step: 100 * (spread.deviation or 0.0) for step, spread in spreads.items()},
            )
        )
    said = ", ".join(str(step) for step in sorted(kept))
    return LinePanel(task, f"step (kept: {said})", "%", series, marked=sorted(kept), percent=True)
