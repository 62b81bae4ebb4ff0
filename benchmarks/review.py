"""What a review brings: a person looks at some targets, and `fit` learns from what was said.

    python benchmarks/review.py                          # both parts
    python benchmarks/review.py --parts review --backbones resnet50 --each 4 --border 0
    python benchmarks/review.py --parts audit --suites gas --draws 5 --size 100

Review: six tasks of Office-31, two backbones. Audit: see review_audit.py.

The person is played by the true labels: of each group of unknowns the most typical members are
named, and the targets nearest to the threshold are corrected. Accuracy is that of the targets
that nobody looked at, over all classes, those that were named among them. Nothing else
sees a true label; the share of unknowns is estimated. Wants the data of
benchmarks/suites_data.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from office31 import BACKBONES, TASKS, load_task
from opensetda.context import FitContext
from opensetda.data.benchmarks.protocols import OpenSetTask
from opensetda.pgl.estimator import PGLClassifier
from opensetda.runs.fitting import fit_domains
from opensetda.runs.groups import group_rows
from review_audit import AUDIT_SIZE, SUITES, audit_suites
from suites_data import DATA

Labels = npt.NDArray[Any]


def main() -> None:
    """Print a line for each task and the means, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--backbones", nargs="*", default=list(BACKBONES))
    parser.add_argument("--each", type=int, default=8, help="members named of each group")
    parser.add_argument("--border", type=int, default=20, help="targets at the threshold")
    parser.add_argument("--parts", nargs="*", default=["review", "audit"])
    parser.add_argument("--suites", nargs="*", default=list(SUITES), help="of the audit")
    parser.add_argument("--draws", type=int, default=3, help="audits of each task")
    parser.add_argument("--size", type=int, default=AUDIT_SIZE, help="targets of an audit")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        sys.exit(f"error: {arguments.data} does not exist; name the data folder with --data")
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    if "review" in arguments.parts:
        (results / "review.json").write_text(json.dumps(review_tasks(arguments), indent=1) + "\n")
    if "audit" in arguments.parts:
        choice = arguments.suites, arguments.draws, arguments.size
        records = audit_suites(arguments.data, *choice)
        (results / "audit.json").write_text(json.dumps(records, indent=1) + "\n")


def review_tasks(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Review the tasks of Office-31, and return a record for each, then the means."""
    records = []
    for backbone in arguments.backbones:
        for name, domains in TASKS.items():
            task = load_task(arguments.data / "office31-features" / backbone, *domains)
            record = review(task, arguments.each, arguments.border)
            records.append({"backbone": backbone, "task": name, **record})
            print(_line(f"{backbone} {name}", record), flush=True)
    mean = {key: float(np.mean([r[key] for r in records])) for key in record}
    print(_line("mean", mean))
    return [*records, {"mean": mean}]


def review(task: OpenSetTask, each: int, border: int) -> dict[str, float]:
    """Fit, name groups and borders, fit again; accuracy of the others before and after."""
    first = PGLClassifier(random_state=0)
    domains = task.source_features, task.source_labels, task.target_features
    fit_domains(first, *domains, context=FitContext(view=True))
    view, step = first.view_, first.kept_step_.step - 1
    embedded = np.empty((len(task.target_truth), view.steps[step].shape[1]))
    embedded[view.target] = view.steps[step][len(view.source) :]
    unknown = np.flatnonzero(first.transduction_ == first.unknown_label)
    groups = [unknown[members] for members in group_rows(embedded[unknown].astype(np.float64))]
    cut = first.transduction_scores_[unknown].max() if len(unknown) else 0.0
    near = np.argsort(np.abs(first.transduction_scores_ - cut), kind="stable")[:border]
    told = np.unique(np.concatenate([near, *(rows[:each] for rows in groups)]))
    labels = np.concatenate([task.source_labels, task.target_truth[told]])
    rows = np.concatenate([task.source_features, task.target_features[told]])
    second = PGLClassifier(random_state=0)
    fit_domains(second, rows, labels, task.target_features)
    others = np.setdiff1d(np.arange(len(task.target_truth)), told)
    named = set(labels.tolist())
    return {
        "targets": len(task.target_truth),
        "groups": len(groups),
        "told": len(told),
        "new_classes": len(named - set(task.source_labels.tolist())),
        "before": _accuracy(first, task.target_truth, others, named),
        "after": _accuracy(second, task.target_truth, others, named),
    }


def _accuracy(classifier: Any, truth: Labels, rows: Labels, named: set[str]) -> float:
    """Share of the rows with their class, or unknown where nobody has named it."""
    wanted = [label if label in named else classifier.unknown_label for label in truth.tolist()]
    return float((classifier.transduction_[rows] == np.array(wanted)[rows]).mean())


def _line(name: str, record: dict[str, float]) -> str:
    return (
        f"{name:<24} {record['told']:>5.0f} of {record['targets']:>5.0f} targets told, "
        f"{record['groups']:>4.1f} groups, {record['new_classes']:>4.1f} new classes: "
        f"accuracy of the others {100 * record['before']:5.1f} -> {100 * record['after']:5.1f} %"
    )


if __name__ == "__main__":
    main()
