"""What an audit brings: some targets drawn at random are called known or unknown by the truth.

`benchmarks/review.py --parts audit` runs it. Each task is fitted with the estimated share, with
the true one, and with those of several audits of the first run. All figures are of targets that
were not audited; classes of the audited targets are not told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from opensetda.context import FitContext
from opensetda.data.benchmarks.protocols import OpenSetTask
from opensetda.metrics import evaluate
from opensetda.openness.audit import AUDIT_SIZE, Audit, CheckedTargets
from opensetda.pgl.estimator import PGLClassifier
from opensetda.runs.corrections import Corrections
from opensetda.runs.fitting import fit_domains
from opensetda.runs.reviewed import ReviewedRun, warnings_after
from suites_data import is_there, read_task, task_names

SUITES = ("pacs", "gas", "fsdd")
# A known class that has lost more than this is worse.
WORSE = 0.03

Record = dict[str, Any]


def audit_suites(data: Path, suites: list[str], draws: int, size: int = AUDIT_SIZE) -> list[Record]:
    """Print a line for each task and the means of each suite, and return the records."""
    records: list[Record] = []
    for suite in suites:
        if not is_there(suite, data):
            print(f"{suite}: not in {data}; left out")
            continue
        for place, name in enumerate(task_names(suite, data)):
            # Tasks of a suite may have their targets in the same order.
            seeds = [(place, draw) for draw in range(draws)]
            found = audit_task(read_task(suite, name, data), seeds, size)
            records += [{"suite": suite, "task": name, **record} for record in found]
            print(_line(f"{suite} {name}", found), flush=True)
    for suite in sorted({record["suite"] for record in records}):
        print(_line(suite, [record for record in records if record["suite"] == suite]))
    if records:
        print(_line("all", records))
    return records


def audit_task(task: OpenSetTask, seeds: list[tuple[int, int]], size: int) -> list[Record]:
    """Return one record for each audit, drawn with one of the seeds."""
    is_unknown = ~np.isin(task.target_truth, task.source_labels)
    true = float(is_unknown.mean())
    first, told = _fitted(task), _fitted(task, openness=true)
    records = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        rows = np.sort(rng.choice(len(is_unknown), min(size, len(is_unknown)), replace=False))
        marks = is_unknown[rows]
        audit = Audit(rows, marks, np.zeros_like(marks), first.transduction_scores_)
        checked = CheckedTargets(int((~marks).sum()), int(marks.sum()), audit)
        fits = {"estimated": first, "told": told, "audited": _fitted(task, checked=checked)}
        others = np.setdiff1d(np.arange(len(is_unknown)), rows)
        record: Record = {"true": true, "plain": abs(float(marks.mean()) - true)}
        for name, fit in fits.items():
            found = evaluate(
                task.target_truth[others],
                fit.transduction_[others],
                fit.classes_,
                probabilities=fit.transduction_proba_[others],
            )
            record[name] = {
                "error": abs(fit.openness_ - true),
                "hos": found.hos,
                "calibration": found.unknown_ece,
                "classes": [row.accuracy for row in found.per_class[: len(fit.classes_)] if row.n],
            }
        report = fits["audited"].openness_report_
        record["holds"] = report.low <= true <= report.high
        record["warned"] = bool(_warnings(fits, audit))
        records.append(record)
    return records


def _fitted(
    task: OpenSetTask, openness: float | str = "auto", checked: CheckedTargets | None = None
) -> PGLClassifier:
    fit = PGLClassifier(openness=openness, random_state=0)
    domains = task.source_features, task.source_labels, task.target_features
    fit_domains(fit, *domains, context=FitContext(checked=checked))
    return fit


def _warnings(fits: dict[str, Any], audit: Audit) -> list[str]:
    first, last = fits["estimated"], fits["audited"]
    unknown = first.unknown_label
    rows = audit.rows[audit.unknown]
    said = Corrections(Path(), rows, np.repeat(unknown, len(rows)), unknown, (), audit)
    scores = first.transduction_scores_
    reviewed = ReviewedRun(Path("run"), first.transduction_, scores, unknown, first.openness_)
    return warnings_after(said, reviewed, last.transduction_, last.openness_report_, Path("run2"))


def _line(name: str, records: list[Record]) -> str:
    def mean(kind: str, figure: str) -> float:
        return float(np.mean([record[kind][figure] for record in records]))

    kinds = ("estimated", "audited", "told")
    hos = " ".join(f"{kind} {100 * mean(kind, 'hos'):5.1f}" for kind in kinds)
    ece = " ".join(f"{mean(kind, 'calibration'):.3f}" for kind in kinds)
    true, plain, holds = (
        np.mean([record[figure] for record in records]) for figure in ("true", "plain", "holds")
    )
    return (
        f"{name:<32} share {true:.2f}; error: estimated {mean('estimated', 'error'):.3f}, marks "
        f"alone {plain:.3f}, audited {mean('audited', 'error'):.3f}; interval holds {holds:4.0%}; "
        f"HOS {hos}; calibration error {ece}; {_changes(records, 'told')}; "
        f"{_changes(records, 'estimated')}, {_warned(records):4.0%} of them with a warning"
    )


def _changes(records: list[Record], kind: str) -> str:
    """Describe the changes of known classes, averaged over the audits of a task."""
    tasks: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        tasks.setdefault((record.get("suite"), record.get("task")), []).append(record)
    changes = np.concatenate(
        [np.mean([_change(record, kind) for record in found], axis=0) for found in tasks.values()]
    )
    return (
        f"classes against {kind}: mean {100 * changes.mean():+.1f}, worst "
        f"{100 * changes.min():+.1f}, {(changes < -WORSE).mean():.0%} of them worse"
    )


def _change(record: Record, kind: str) -> Any:
    return np.subtract(record["audited"]["classes"], record[kind]["classes"])


def _warned(records: list[Record]) -> float:
    """Return how many of the fits that made a class worse than the first run said so."""
    worse = [record for record in records if _change(record, "estimated").min() < -WORSE]
    return float(np.mean([record["warned"] for record in worse])) if worse else 1.0
