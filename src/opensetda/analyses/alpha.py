r"""How fast the pseudo-labelled set grows: the enlarging factor (the paper's Table 5).

:math:`\alpha = 1 / M`, with M the number of steps. The paper finds that slower is better, and
costs time.
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

# The paper's, and one that is faster than any of them.
VALUES = (0.05, 0.1, 0.2, 0.5)


def analyse(request: AnalysisRequest) -> AnalysisResult:
    """Run PGL with each number of steps, on every task with every seed."""
    steps = {value: steps_of(value) for value in sorted(request.values or VALUES)}
    variants = {
        value: request.variant(f"alpha {value:g}", ("steps", count))
        for value, count in steps.items()
    }
    cells = grid_cells(
        list(variants.values()), request.tasks.tasks, [request.openness], request.seeds
    )
    results = request.run_cells(cells)
    table = ResultTable(
        f"Enlarging factor alpha: PGL, {request.preset}, on {request.what()}",
        [
            Column("alpha", "alpha"),
            Column("steps", "steps"),
            *metric_columns(),
            Column("seconds", "seconds", "number"),
        ],
        notes=["In %, mean over tasks; ± is the deviation over seeds.", *failures(results.rows)],
    )
    summaries = {}
    own = PGLSettings.preset(request.preset).with_changes(dict(request.changes)).steps
    for value, variant in variants.items():
        rows = [row for row in results.rows if row["method"] == variant.label]
        values = summary(rows, (*METRICS, "seconds"))
        table.add(marked=steps[value] == own, alpha=f"{value:g}", steps=steps[value], **values)
        summaries[value] = values
    panel = LinePanel(
        "",
        "alpha (slower to the left)",
        "%",
        metric_series(summaries),
        ticks=list(variants),
        marked=[value for value, count in steps.items() if count == own],
        percent=True,
        logarithmic=True,
    )
    title = f"Enlarging factor alpha: {request.what()}"
    return AnalysisResult(table, draw_lines([panel], title), results)


def steps_of(alpha: float) -> int:
    """Return M = 1 / alpha, or raise an `InputError` if that is no whole number."""
    if not 0 < alpha <= 1:
        raise InputError(f"--value {alpha:g}: alpha is 1 / steps; give a number in (0, 1]")
    steps = round(1 / alpha)
    if abs(1 / steps - alpha) > 0.005 * alpha:
        raise InputError(
            f"--value {alpha:g}: alpha is 1 / steps; {1 / steps:.4g} would be {steps} steps"
        )
    return steps
