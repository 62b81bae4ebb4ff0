"""The analyses by name; the module of an analysis is imported only when it runs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opensetda.errors import InputError, choice

if TYPE_CHECKING:
    from opensetda.analyses.contract import AnalysisRequest, AnalysisResult


@dataclass(frozen=True)
class Analysis:
    """An analysis: what it shows, the module and function `where` it is, and its options.

    `methods`, or `values` of the quantity that is varied, may be chosen; `one_run` is of one task
    with one seed; an analysis that `keeps_runs` can be continued.
    """

    summary: str
    where: str
    one_run: bool = False
    methods: bool = False
    values: bool = False
    keeps_runs: bool = False


_VARIED = {"values": True, "keeps_runs": True}


ANALYSES = {
    "ablation": Analysis(
        "PGL without each of its parts (Table 4)", "sweeps.analyse_ablation", keeps_runs=True
    ),
    "alpha": Analysis(
        "the enlarging factor alpha = 1 / steps (Table 5)", "sweeps.analyse_alpha", **_VARIED
    ),
    "openness": Analysis(
        "shares of unknowns, PGL beside rivals (Fig. 4a)",
        "sweeps.analyse_openness",
        methods=True,
        **_VARIED,
    ),
    "losses": Analysis(
        "weights of edge and adversarial loss, mu and gamma (Fig. 4b)",
        "sweeps.analyse_losses",
        **_VARIED,
    ),
    "steps": Analysis("accuracy over the steps (Fig. 7)", "steps.analyse"),
    "embedding": Analysis(
        "t-SNE of features by method (Fig. 5)", "embedding.analyse", one_run=True, methods=True
    ),
    "edges": Analysis("learned edges beside the true ones (Fig. 6)", "edges.analyse", one_run=True),
    "bound": Analysis(
        "terms of the error bound over the steps (Theorems 1 and 2)", "bound.analyse"
    ),
}


def find_analysis(name: str) -> Analysis:
    """Return an analysis, or raise an `InputError` that lists the names."""
    if name not in ANALYSES:
        raise InputError(f"analysis {name!r} does not exist; {choice(name, ANALYSES)}")
    return ANALYSES[name]


def run_analysis(name: str, request: AnalysisRequest) -> AnalysisResult:
    """Run an analysis."""
    module, _, function = find_analysis(name).where.partition(".")
    analyse = getattr(importlib.import_module(f"opensetda.analyses.{module}"), function)
    result: AnalysisResult = analyse(request)
    return result
