r"""Weights of the edge and of the adversarial loss (the paper's Figure 4b).

:math:`\mathcal{L}_n + \mu \mathcal{L}_e + \gamma \mathcal{L}_d`: one weight goes over (0, 2],
the other one stays as the preset has it.
"""

from __future__ import annotations

from opensetda.analyses.contract import AnalysisRequest, AnalysisResult
from opensetda.analyses.table import (
    METRICS,
    Column,
    ResultTable,
    failures,
    metric_columns,
    metric_series,
    summary,
)
from opensetda.benchmark.grid import grid_cells
from opensetda.errors import InputError
from opensetda.pgl.settings import PGLSettings
from opensetda.report.plots import LinePanel, draw_lines

VALUES = (0.05, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0)
WEIGHTS = {"mu": "losses.edge", "gamma": "losses.adversary"}
_HEADINGS = {"mu": "mu, of the edge loss", "gamma": "gamma, of the adversarial loss"}


def analyse(request: AnalysisRequest) -> AnalysisResult:
    """Run PGL with each value of each weight, on every task with every seed."""
    values = sorted(request.values or VALUES)
    for value in values:
        if not 0 <= value < float("inf"):
            raise InputError(f"--value {value:g}: the weight of a loss is 0 or more")
    settings = PGLSettings.preset(request.preset).with_changes(dict(request.changes))
    own = {"mu": settings.losses.edge, "gamma": settings.losses.adversary}
    variants = {
        (weight, value): request.variant(f"{weight} {value:g}", (setting, value))
        for weight, setting in WEIGHTS.items()
        for value in sorted({*values, own[weight]})
    }
    cells = grid_cells(
        list(variants.values()), request.tasks.tasks, [request.openness], request.seeds
    )
    results = request.run_cells(cells)
    table = ResultTable(
        f"Weights of the losses: PGL, {request.preset}, on {request.what()}",
        [Column("weight", "weight"), Column("value", "value"), *metric_columns()],
        notes=[
            "In %, mean over tasks; ± is the deviation over seeds. In bold: as the preset has it.",
            *_alone(settings),
            *failures(results.rows),
        ],
    )
    panels = []
    for weight in WEIGHTS:
        summaries = {}
        for (name, value), variant in variants.items():
            if name == weight:
                rows = [row for row in results.rows if row["method"] == variant.label]
                summaries[value] = summary(rows, METRICS)
                table.add(
                    marked=value == own[weight],
                    weight=weight,
                    value=f"{value:g}",
                    **summaries[value],
                )
        panels.append(
            LinePanel(
                "",
                _HEADINGS[weight],
                "%",
                metric_series(summaries),
                ticks=_ticks(list(summaries)),
                marked=[own[weight]],
                percent=True,
            )
        )
    title = f"Weights of the losses: {request.what()}"
    return AnalysisResult(table, draw_lines(panels, title), results)


def _alone(settings: PGLSettings) -> list[str]:
    """Say where a weight cannot matter: Adam divides a gradient by its own size."""
    if settings.losses.node or settings.losses.adversary:
        return []
    return [
        "The preset has the edge loss alone (losses.node=0, losses.adversary=0): Adam steps as far "
        "whatever its weight, so mu makes no difference."
    ]


def _ticks(values: list[float]) -> list[float]:
    """Leave out places whose names would run into each other."""
    kept: list[float] = []
    apart = (max(values) - min(values)) / 12
    for value in sorted(values, reverse=True):
        if not kept or kept[-1] - value >= apart:
            kept.append(value)
    return kept[::-1]
