"""The analyses by name; nothing heavy is imported before one of them runs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opensetda.errors import InputError

if TYPE_CHECKING:
    from opensetda.analyses.contract import AnalysisRequest, AnalysisResult


@dataclass(frozen=True)
class Analysis:
    """An analysis, and what may be said to it.

    Attributes
    ----------
    summary : str
        What it shows, in a few words, and where it is in the paper.
    one_task : bool
        Whether it looks at one task only.
    one_seed : bool
        Whether it looks at one seed only.
    methods, values : bool
        Whether methods, or values of what is varied, may be chosen.
    keeps_runs : bool
        Whether finished runs are kept, so that an analysis that was cut can go on.
    """

    summary: str
    one_task: bool = False
    one_seed: bool = False
    methods: bool = False
    values: bool = False
    keeps_runs: bool = False


ANALYSES = {
    "ablation": Analysis("PGL without each of its parts (Table 4)", keeps_runs=True),
    "alpha": Analysis(
        "the enlarging factor alpha = 1 / steps (Table 5)", values=True, keeps_runs=True
    ),
    "openness": Analysis(
        "shares of unknowns, PGL beside rivals (Fig. 4a)",
        methods=True,
        values=True,
        keeps_runs=True,
    ),
    "losses": Analysis(
        "weights of edge and adversarial loss, mu and gamma (Fig. 4b)", values=True, keeps_runs=True
    ),
    "steps": Analysis("accuracy over the steps (Fig. 7)"),
    "embedding": Analysis(
        "t-SNE of features by method (Fig. 5)", one_task=True, one_seed=True, methods=True
    ),
    "edges": Analysis("learned edges beside the true ones (Fig. 6)", one_task=True, one_seed=True),
    "bound": Analysis("terms of the error bound over the steps (Theorems 1 and 2)"),
}


def find_analysis(name: str) -> Analysis:
    """Return what is known of an analysis, or raise an `InputError` that lists the names."""
    if name not in ANALYSES:
        raise InputError(f"analysis {name!r} does not exist; choose one of {', '.join(ANALYSES)}")
    return ANALYSES[name]


def run_analysis(name: str, request: AnalysisRequest) -> AnalysisResult:
    """Run an analysis; only its own module is imported."""
    find_analysis(name)
    module = importlib.import_module(f"opensetda.analyses.{name}")
    result: AnalysisResult = module.analyse(request)
    return result
