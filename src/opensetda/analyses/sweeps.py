r"""One setting is varied over a grid of runs.

* `analyse_ablation`: PGL without each of its parts (the paper's Table 4): progressive steps, focal
  loss, graph and mix-up, and for the default preset our own parts, too. If a preset does not have
  a part, the row has no numbers and says why.
* `analyse_alpha`: the enlarging factor :math:`\alpha = 1 / M`, with M the number of steps (the
  paper's Table 5). The paper finds that slower is better, and costs time.
* `analyse_losses`: the weights of the edge and of the adversarial loss,
  :math:`\mathcal{L}_n + \mu \mathcal{L}_e + \gamma \mathcal{L}_d` (Figure 4b). One weight goes over
  (0, 2], the other one stays as the preset has it.
* `analyse_openness`: the share of unknowns (Figure 4a). Target rows are dropped until the share is
  the one wanted; the known classes keep their proportions. The seed says which rows stay, and
  they are the same for every method.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opensetda.analyses.contract import (
    METRICS,
    SPREAD_NOTE,
    AnalysisRequest,
    AnalysisResult,
    Column,
    ResultTable,
    Spread,
    difference,
    failures,
    metric_columns,
    metric_series,
    rows_of,
    series,
    summary,
)
from opensetda.benchmark.grid import AUTO
from opensetda.benchmark.variants import Variant
from opensetda.errors import InputError
from opensetda.pgl.settings import PGLSettings
from opensetda.report.plots import DotRow, LinePanel, Series, draw_dots, draw_lines
from opensetda.runs.figure_style import BLACK, CYCLE, GREY, MARKERS
from opensetda.runs.methods import METHODS, split_rejector

# The paper's, and one that is faster than any of them.
ALPHAS = (0.05, 0.1, 0.2, 0.5)
WEIGHT_VALUES = (0.05, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0)
WEIGHTS = {"mu": "losses.edge", "gamma": "losses.adversary"}
SHARES = (0.25, 0.5, 0.75, 0.9)
# Beside the paper's ablations: what each part of ours brings to the default.
OUR_PARTS: dict[str, dict[str, Any]] = {
    "no progressive steps, no training": {"steps": 1},
    "no graph, trained by the node loss": {"graph.enabled": False, "losses.node": 1},
    "node loss 1": {"losses.node": 1},
    "node loss 1, NLL instead of focal": {"losses.node": 1, "losses.focusing": 0},
    "no whitening": {"alignment.whitening": 0},
    "source centring": {"alignment.centring": "source"},
    "no class balance": {"ranking.class_balance": 0},
    "ranked by the softmax": {"ranking.confidence": "softmax"},
    "no messages": {"graph.message": 0},
    "class means move all the way": {"episodes.mix_up_limit": 1},
    "train at the first step": {"optimiser.first_step_epochs": 1},
    "adversary 0.4": {"losses.adversary": 0.4},
}

_DRAWN = ("os_star", "unk", "hos")
_HEADINGS = {"mu": "mu, of the edge loss", "gamma": "gamma, of the adversarial loss"}
_RIVALS = ("pgl", "class-means", "source-only", "osbp", "oslpp")
_SHARE_PANELS = {"hos": "HOS", "os": "OS, the paper's measure"}


def analyse_ablation(request: AnalysisRequest) -> AnalysisResult:
    """Run the preset as it is and without each part, on every task with every seed."""
    settings = request.settings()
    parts = ablations_of(request.preset)
    missing = {name: why_not(settings, changes) for name, changes in parts.items()}
    base = request.variant(f"PGL, {request.preset}")
    variants = [base] + [
        request.variant(name, *changes.items())
        for name, changes in parts.items()
        if missing[name] is None
    ]
    results = request.run_variants(variants)
    table = ResultTable(
        f"PGL, {request.preset}, without each part, on {request.what()}",
        [
            Column("variant", "variant"),
            *metric_columns(),
            Column("difference", "HOS against all parts", "points"),
            Column("remark", "remark"),
        ],
        notes=[SPREAD_NOTE, *failures(results.rows)],
    )
    dots = []
    for label in [base.label, *parts]:
        reason = missing.get(label)
        if reason is not None:
            table.add(variant=label, remark=reason)
            dots.append(DotRow(label, remark=f"- {reason}"))
            continue
        rows = rows_of(results, label)
        values = summary(rows)
        own = None if label == base.label else difference(rows, rows_of(results, base.label))
        table.add(marked=label == base.label, variant=label, difference=own, remark="", **values)
        means = {name: 100 * values[name].mean for name in _DRAWN if values[name].n}
        deviations = {name: 100 * (values[name].deviation or 0.0) for name in _DRAWN}
        dots.append(DotRow(label, means, deviations, remark="- failed"))
    figure = draw_dots(dots, f"PGL without each part: {request.what()}", _DRAWN)
    return AnalysisResult(table, figure, results)


def ablations_of(preset: str) -> dict[str, dict[str, Any]]:
    """Return the ablations of a preset: the paper's, and for the default ours, too."""
    ours = OUR_PARTS if preset == "default" else {}
    return {**PGLSettings.ablations(), **ours}


def why_not(settings: PGLSettings, changes: Mapping[str, Any]) -> str | None:
    """Say why changes make no difference; None if they do."""
    if settings.losses.node == 0 and set(changes) == {"losses.focusing"}:
        return "losses.node=0: there is no focal loss to replace"
    if settings.with_changes(changes) == settings:
        same = ", ".join(f"{name}={value}" for name, value in changes.items())
        return f"has {same} already"
    return None


def analyse_alpha(request: AnalysisRequest) -> AnalysisResult:
    """Run PGL with each number of steps, on every task with every seed."""
    steps = {value: steps_of(value) for value in sorted(request.values or ALPHAS)}
    labels = {value: f"alpha {value:g}" for value in steps}
    results = request.run_variants(
        [request.variant(labels[value], ("steps", count)) for value, count in steps.items()]
    )
    columns = [Column("alpha", "alpha"), Column("steps", "steps"), *metric_columns()]
    table = ResultTable(
        f"Enlarging factor alpha: PGL, {request.preset}, on {request.what()}",
        [*columns, Column("seconds", "seconds", "number")],
        notes=[SPREAD_NOTE, *failures(results.rows)],
    )
    summaries = {}
    own = request.settings().steps
    for value, count in steps.items():
        found = summary(rows_of(results, labels[value]), (*METRICS, "seconds"))
        summaries[value] = found
        table.add(marked=count == own, alpha=f"{value:g}", steps=count, **found)
    own_values = [value for value, count in steps.items() if count == own]
    lines, heading = metric_series(summaries), "alpha (slower to the left)"
    panel = LinePanel("", heading, "%", lines, list(steps), own_values, True, logarithmic=True)
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


def analyse_losses(request: AnalysisRequest) -> AnalysisResult:
    """Run PGL with each value of each weight, on every task with every seed."""
    values = sorted(request.values or WEIGHT_VALUES)
    for value in values:
        if not 0 <= value < float("inf"):
            raise InputError(f"--value {value:g}: the weight of a loss is 0 or more")
    settings = request.settings()
    own = {"mu": settings.losses.edge, "gamma": settings.losses.adversary}
    variants = {
        (weight, value): request.variant(f"{weight} {value:g}", (setting, value))
        for weight, setting in WEIGHTS.items()
        for value in sorted({*values, own[weight]})
    }
    results = request.run_variants(list(variants.values()))
    table = ResultTable(
        f"Weights of the losses: PGL, {request.preset}, on {request.what()}",
        [Column("weight", "weight"), Column("value", "value"), *metric_columns()],
        notes=[f"{SPREAD_NOTE} In bold: the preset's own value."],
    )
    if not settings.losses.node and not settings.losses.adversary:
        # Adam divides a gradient by its own size.
        table.notes.append(
            "The preset has the edge loss only (losses.node=0, losses.adversary=0): the steps of "
            "Adam do not depend on its weight, so mu makes no difference."
        )
    table.notes += failures(results.rows)
    summaries: dict[str, dict[float, dict[str, Spread]]] = {weight: {} for weight in WEIGHTS}
    for (weight, value), variant in variants.items():
        found = summary(rows_of(results, variant.label))
        summaries[weight][value] = found
        table.add(marked=value == own[weight], weight=weight, value=f"{value:g}", **found)
    panels = []
    for weight, by_value in summaries.items():
        lines, ticks = metric_series(by_value), _ticks(list(by_value))
        panels.append(LinePanel("", _HEADINGS[weight], "%", lines, ticks, [own[weight]], True))
    title = f"Weights of the losses: {request.what()}"
    return AnalysisResult(table, draw_lines(panels, title), results)


def _ticks(values: list[float]) -> list[float]:
    """Leave out labels that would overlap."""
    kept: list[float] = []
    apart = (max(values) - min(values)) / 12
    for value in sorted(values, reverse=True):
        if not kept or kept[-1] - value >= apart:
            kept.append(value)
    return kept[::-1]


def analyse_openness(request: AnalysisRequest) -> AnalysisResult:
    """Run each method at each share of unknowns, on every task with every seed."""
    values = sorted(request.values or SHARES)
    for value in values:
        if not 0 < value < 1:
            raise InputError(f"--value {value:g}: a share of unknowns lies between 0 and 1")
    names = request.methods or tuple(name for name in _RIVALS if name in METHODS)
    variants = [
        request.variant(name) if split_rejector(name)[0] == "pgl" else Variant(name, name)
        for name in dict.fromkeys(names)
    ]
    results = request.run_variants(variants, values)
    columns = [Column("openness", "openness"), Column("method", "method"), *metric_columns()]
    table = ResultTable(
        f"Shares of unknowns: {request.what()}",
        [*columns, Column("share", "called unknown", "percent")],
        notes=[SPREAD_NOTE, *failures(results.rows)],
    )
    found: dict[str, dict[float, dict[str, Spread]]] = {v.label: {} for v in variants}
    for value in values:
        for label, by_value in found.items():
            rows = [row for row in rows_of(results, label) if row["target_openness"] == value]
            by_value[value] = summary(rows, (*METRICS, "share"))
        at_best = [by_value[value]["hos"].mean for by_value in found.values()]
        for label, by_value in found.items():
            hos = by_value[value]["hos"]
            best = hos.n > 0 and hos.mean == max(mean for mean in at_best if mean == mean)
            table.add(marked=best, openness=f"{value:g}", method=label, **by_value[value])
    title = f"Shares of unknowns: {request.what()}"
    return AnalysisResult(table, draw_lines(_share_panels(request, found, values), title), results)


def _share_panels(
    request: AnalysisRequest,
    found: Mapping[str, Mapping[float, Mapping[str, Spread]]],
    values: list[float],
) -> list[LinePanel]:
    looks = {"pgl": (BLACK, "o", 2.4)}
    for place, label in enumerate(label for label in found if label != "pgl"):
        color = CYCLE[place] if place < 4 else GREY
        looks[label] = color, MARKERS[1:][place % (len(MARKERS) - 1)], 1.6
    shown = dict(_SHARE_PANELS)
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
        panel = LinePanel(heading, "share of unknowns", "%", lines, ticks=values, percent=True)
        panels.append(panel)
    return panels
