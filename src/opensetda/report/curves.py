"""The curves of a run over its steps: one panel per question, one line per quantity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

from opensetda.metrics.open_set import OpenSetMetrics
from opensetda.report.content import LinePanel, Series
from opensetda.runs import figure_style as style


def curve_panels(
    history: Sequence[Mapping[str, Any]],
    step_metrics: Mapping[int, OpenSetMetrics],
    trained: bool,
) -> list[LinePanel]:
    """Return the panels that a run has data for; none if it has fewer than two steps.

    `history` has one entry per step; `step_metrics`, by step number, are there if the truth is
    known. Of a method that trains nothing: how far its pseudo-labels are, and how settled.
    """
    if len(history) < 2:
        return []
    entries = dict(enumerate(history, start=1))

    def line(name: str, quantity: str, color: str, marker: str, factor: float = 1) -> Series:
        values = {step: entry.get(quantity) for step, entry in entries.items()}
        return Series(name, _curve(values, factor), color, marker)

    far = [line("known", "n_known", style.BLUE, "o")]
    far.append(line("unknown", "n_unknown", style.ORANGE, "s"))
    changed = line("changed", "changed", style.BLUE, "o", 100)
    panels = [
        *_panel("How far: pseudo-labels", "targets", far),
        *_panel("How settled: labels that changed", "% of targets", [changed], percent=True),
    ]
    if not trained:
        return panels
    good = []
    for metric, (heading, color, marker, width) in style.METRIC_STYLE.items():
        values = {step: getattr(found, metric) for step, found in step_metrics.items()}
        good.append(Series(heading, _curve(values, 100), color, marker, width))
    losses: dict[str, dict[int, Any]] = {}
    for step, entry in entries.items():
        for name, value in (entry.get("loss") or {}).items():
            losses.setdefault(name, {})[step] = value
    looks = zip(cycle(style.CYCLE), cycle(style.MARKERS), strict=True)
    return [
        *_panel("How good: against the true labels", "%", good, percent=True),
        *panels,
        *_panel("How sure: known score", "score", [line("mean", "mean_score", style.GREEN, "o")]),
        *_panel(
            "What it learns: training losses",
            "mean over the step",
            [Series(name, _curve(losses[name]), *next(looks)) for name in losses],
        ),
    ]


def _panel(
    title: str, unit: str, lines: Iterable[Series], percent: bool = False
) -> list[LinePanel]:
    """Return the panel, or nothing without data."""
    drawn = [line for line in lines if line.points]
    return [LinePanel(title, "step", unit, drawn, percent)] if drawn else []


def _curve(values: Mapping[int, Any], factor: float = 1) -> dict[float, float]:
    """Leave out steps where the quantity is undefined."""
    return {
        step: float(value) * factor
        for step, value in values.items()
        if value is not None and math.isfinite(value)
    }
