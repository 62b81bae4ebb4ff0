"""The terms of the error bound, step by step (Theorems 1 and 2).

What is measured, and how, is in `opensetda.analyses.bound_terms`; features are the node
embeddings of the step, the classifier is the one that labels the targets.
"""

from __future__ import annotations

from collections.abc import Sequence

from opensetda.analyses.bound_terms import BoundTerms, bound_terms
from opensetda.analyses.contract import AnalysisRequest, AnalysisResult, PGLRun
from opensetda.analyses.observed import ObservedTraining
from opensetda.analyses.table import Column, ResultTable, Spread
from opensetda.report.lines import LinePanel, Series, draw_lines
from opensetda.runs.figure_style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY

TERMS = {
    "labelled": "pseudo-labelled",
    "target_error": "error",
    "source_risk": "source risk",
    "a_distance": "A-distance",
    "a_distance_of_accepted": "A-distance, accepted",
    "discrepancy": "discrepancy",
    "shared_error": "shared error",
    "open_set_risk": "open-set risk",
    "progressive_open_set_risk": "progressive",
    "bound": "Theorem 1",
    "progressive_bound": "Theorem 2",
}
_DETAILS = ("labelled", "a_distance", "a_distance_of_accepted")
_NOTES = (
    "With π the true share of unknowns and p the share of targets that have a pseudo-label "
    "(pseudo-labelled): error = R_t / (1 - π), the left side of both theorems. "
    "Theorem 1 = source risk + discrepancy + shared error + open-set risk. "
    "Theorem 2 = (1 - p) (source risk + discrepancy) + shared error, its source part times "
    "1 - p, + progressive open-set risk; its constant, which the paper does not give, is left out, "
    "so the error may lie above it.",
    "Risks are shares of wrong labels (0-1 loss). The discrepancy is half the proxy A-distance "
    "2 (1 - 2 e) of the source and the true known targets, e the error of a logistic regression "
    "that tells the domains apart by the step's node embeddings; 'accepted' has the targets "
    "that the step calls known instead, which needs no label. The shared error is that of one "
    "logistic regression for both domains, with true labels.",
)


def analyse(request: AnalysisRequest) -> AnalysisResult:
    """Run PGL on every task and seed, and measure the terms after every step."""
    runs = request.pgl_runs()
    measured = request.run_each(terms_of_run, runs)
    table = ResultTable(
        f"Terms of the error bound over the steps: PGL, {request.preset}, on {request.what()}",
        [
            Column("task", "task"),
            Column("step", "step"),
            *(Column(name, TERMS[name], "number", name in _DETAILS) for name in TERMS),
            Column("kept", "kept in"),
        ],
        notes=list(_NOTES),
    )
    for task in request.tasks.tasks:
        own = [found for run, found in zip(runs, measured, strict=True) if run.task == task]
        for step, values in _rows([terms for _, terms in own]).items():
            kept = sum(number == step for number, _ in own)
            said = f"{kept} of {len(own)}" if kept else ""
            table.add(marked=kept > 0, task=task, step=step, kept=said, **values)
    everywhere = _rows([terms for _, terms in measured])
    title = f"The error bound over the steps: {request.what()}"
    return AnalysisResult(table, draw_lines(_panels(everywhere), title, columns=2))


def terms_of_run(run: PGLRun) -> tuple[int, list[BoundTerms]]:
    """Train, and measure all steps; returns the step kept and the terms of each."""
    task = run.tasks.load(run.task)
    training = ObservedTraining(task, run.told(task), run.preset, dict(run.changes), run.seed)
    return training.kept_step, measure_steps(training)


def measure_steps(training: ObservedTraining) -> list[BoundTerms]:
    """Measure the terms after each step of a training."""
    measured = []
    for step in training.steps():
        embedded = training.embed(step)
        measured.append(
            bound_terms(
                embedded.source,
                training.source_labels,
                embedded.source_classes,
                embedded.target,
                training.target_truth,
                step.labels,
                step.pseudo_labels,
                training.n_classes,
            )
        )
    return measured


def _rows(runs: Sequence[Sequence[BoundTerms]]) -> dict[int, dict[str, Spread]]:
    longest = max(len(steps) for steps in runs)
    return {
        number: {
            name: Spread.of(
                getattr(steps[number - 1], name) for steps in runs if len(steps) >= number
            )
            for name in TERMS
        }
        for number in range(1, longest + 1)
    }


def _panels(rows: dict[int, dict[str, Spread]]) -> list[LinePanel]:
    def line(term: str, color: str, marker: str, name: str = "", width: float = 1.6) -> Series:
        spreads = {float(step): values[term] for step, values in rows.items() if values[term].n}
        means = {step: spread.mean for step, spread in spreads.items()}
        return Series(name or TERMS[term], means, color, marker, width)

    terms = [
        line("source_risk", BLUE, "o"),
        line("discrepancy", PURPLE, "D"),
        line("shared_error", GREEN, "s"),
        line("open_set_risk", ORANGE, "^"),
        line("progressive_open_set_risk", SKY, "v", width=2.4),
    ]
    sides = [
        line("bound", ORANGE, "^"),
        line("progressive_bound", SKY, "v"),
        line("target_error", BLACK, "o", width=2.4),
    ]
    return [
        LinePanel("The terms", "step", "share", terms),
        LinePanel("Both sides: the error and its bounds", "step", "share", sides),
    ]
