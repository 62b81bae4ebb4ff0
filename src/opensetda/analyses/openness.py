"""How methods bear other shares of unknowns (the paper's Figure 4a).

Target rows are dropped until the share of unknowns is the one wanted; the known classes keep
their proportions. The seed says which rows stay, and every method gets the same ones.
"""

from __future__ import annotations

from opensetda.analyses.contract import AnalysisRequest, AnalysisResult
from opensetda.analyses.grid_summary import METRICS, failures, metric_columns, series, summary
from opensetda.analyses.table import Column, ResultTable, Spread
from opensetda.benchmark.grid import AUTO, Variant, grid_cells
from opensetda.errors import InputError
from opensetda.report.lines import LinePanel, Series, draw_lines
from opensetda.runs.figure_style import BLACK, CYCLE, GREY, MARKERS
from opensetda.runs.methods import METHODS, split_rejector

VALUES = (0.25, 0.5, 0.75, 0.9)
# Those of these that are there.
_RIVALS = ("pgl", "class-means", "source-only", "osbp", "oslpp")

_PANELS = {"hos": "HOS", "os": "OS, the paper's measure"}


def analyse(request: AnalysisRequest) -> AnalysisResult:
    """Run each method at each share of unknowns, on every task with every seed."""
    values = sorted(request.values or VALUES)
    for value in values:
        if not 0 < value < 1:
            raise InputError(f"--value {value:g}: a share of unknowns lies between 0 and 1")
    variants = variants_of(request)
    cells = grid_cells(
        variants, request.tasks.tasks, [request.openness], request.seeds, target_openness=values
    )
    results = request.run_cells(cells)
    table = ResultTable(
        f"Shares of unknowns: {request.what()}",
        [
            Column("openness", "openness"),
            Column("method", "method"),
            *metric_columns(),
            Column("share", "called unknown", "percent"),
        ],
        notes=["In %, mean over tasks; ± is the deviation over seeds.", *failures(results.rows)],
    )
    found: dict[str, dict[float, dict[str, Spread]]] = {v.label: {} for v in variants}
    for value in values:
        for variant in variants:
            rows = [
                row
                for row in results.rows
                if row["method"] == variant.label and row["target_openness"] == value
            ]
            found[variant.label][value] = summary(rows, (*METRICS, "share"))
        at_best = [found[v.label][value]["hos"].mean for v in variants]
        for variant in variants:
            own = found[variant.label][value]
            best = own["hos"].n > 0 and own["hos"].mean == max(m for m in at_best if m == m)
            table.add(marked=best, openness=f"{value:g}", method=variant.label, **own)
    return AnalysisResult(
        table, draw_lines(_panels(request, found, values), _title(request)), results
    )


def variants_of(request: AnalysisRequest) -> list[Variant]:
    """Return the methods asked for; preset and changes are PGL's."""
    names = request.methods or tuple(name for name in _RIVALS if name in METHODS)
    variants = []
    for name in dict.fromkeys(names):
        method, _ = split_rejector(name)
        variants.append(request.variant(name) if method == "pgl" else Variant(name, name))
    return variants


def _title(request: AnalysisRequest) -> str:
    return f"Shares of unknowns: {request.what()}"


def _panels(
    request: AnalysisRequest, found: dict[str, dict[float, dict[str, Spread]]], values: list[float]
) -> list[LinePanel]:
    looks = {}
    others = 0
    for label in found:
        looks[label] = (
            (BLACK, "o", 2.4)
            if label == "pgl"
            else (
                CYCLE[:4][others % 4] if others < 4 else GREY,
                MARKERS[1:][others % (len(MARKERS) - 1)],
                1.6,
            )
        )
        others += label != "pgl"
    shown = dict(_PANELS)
    if request.openness == AUTO:
        shown["share"] = "Targets called unknown"
    panels = []
    for metric, heading in shown.items():
        lines = [
            series(label, {v: by_value[v][metric] for v in values}, looks[label])
            for label, by_value in found.items()
        ]
        if metric == "share":
            lines.append(Series("true", {v: 100 * v for v in values}, GREY, "", 1.0))
        panels.append(
            LinePanel(heading, "share of unknowns", "%", lines, ticks=values, percent=True)
        )
    return panels
