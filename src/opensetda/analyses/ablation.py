"""PGL without each of its parts (the paper's Table 4).

The paper's ablations take away the progressive steps, the focal loss, the graph and the mix-up.
If a preset does not have a part, the row has no numbers and says why. For the default preset,
our own parts are taken away, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opensetda.analyses.contract import AnalysisRequest, AnalysisResult
from opensetda.analyses.table import (
    METRICS,
    SPREAD_NOTE,
    Column,
    ResultTable,
    Spread,
    difference,
    failures,
    metric_columns,
    summary,
)
from opensetda.pgl.settings import PGLSettings
from opensetda.report.plots import DotRow, draw_dots

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


def analyse(request: AnalysisRequest) -> AnalysisResult:
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
    rows_of = {
        variant.label: [row for row in results.rows if row["method"] == variant.label]
        for variant in variants
    }
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
        values = summary(rows_of[label], METRICS)
        own = None if label == base.label else difference(rows_of[label], rows_of[base.label])
        table.add(marked=label == base.label, variant=label, difference=own, remark="", **values)
        dots.append(_dots(label, values))
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


def _dots(label: str, values: Mapping[str, Spread]) -> DotRow:
    return DotRow(
        label,
        {name: 100 * values[name].mean for name in _DRAWN if values[name].n},
        {name: 100 * (values[name].deviation or 0.0) for name in _DRAWN},
        remark="- failed",
    )
