"""What a run says of itself, and whether it is true: confidence, share of unknowns, audits.

    python benchmarks/trust.py            # measure what is missing, then show; an hour on one core
    python benchmarks/trust.py --show --write

The first --tasks of every suite, estimated openness, at most --rows rows of each domain. One row
per task: how well the confidence of `Committee` tells right labels from wrong ones (AUROC), keeps
its word (calibration error, wrong labels above 0.95), by `fit` and by `predict` on the same targets
(`later`), and that of `MovingMeans` (`alone`); the share, its interval, and HOS with it, with the
true one, with a constant 0.4, and with that of an audit of 30 targets; labels that `predict`
changes, labels that are not their most probable column; seconds. `sweep` is the mean error of the
share if the target has 10, 25, 50 and 75 % unknowns.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from opensetda import Committee, MovingMeans
from opensetda.context import FitContext
from opensetda.data.benchmarks.digits import load_digits_task
from opensetda.features.scaling import RANKS
from opensetda.methods.base import OpenSetClassifier
from opensetda.metrics.open_set import evaluate, expected_calibration_error
from opensetda.share.audit import AUDIT_SIZE, Audit, CheckedTargets
from opensetda.share.evidence import ShareEstimate
from published import fill, markdown
from shares import DIGITS
from suites import DATA, SUITES, find_suite

FIGURES = Path(__file__).parent / "figures" / "trust.csv"
PAGE = Path(__file__).parents[1] / "docs" / "label-free.md"
UNKNOWN, CONSTANT, SURE, WORSE = "unknown", 0.4, 0.95, 0.05
SWEEP = (0.1, 0.25, 0.5, 0.75)
AUDITS = 2
Array = npt.NDArray[Any]
Row = dict[str, Any]


class Task(NamedTuple):
    """Rows and labels of the source, rows of the target and their true labels."""

    X: Array
    y: Array
    target: Array
    truth: Array

    def fit(
        self,
        openness: float | str = "auto",
        checked: CheckedTargets | None = None,
        method: type[OpenSetClassifier] = Committee,
    ) -> Any:
        """Return a method, fitted."""
        classifier = method(openness, unknown_label=UNKNOWN)
        return classifier.fit(*self.domains(), context=FitContext(checked=checked))

    def domains(self) -> tuple[Array, Array, Array]:
        """Return the arguments of `fit`; targets have the first label, which is not read."""
        y = np.concatenate([self.y, np.repeat(self.y[:1], len(self.target))])
        domain = np.repeat([0, -1], [len(self.y), len(self.target)])
        return np.concatenate([self.X, self.target]), y, domain

    def with_share(self, share: float, rng: np.random.Generator) -> Task:
        """Leave targets out, so that the rest has this share of unknowns."""
        unknown, known = (rng.permutation(np.flatnonzero(m)) for m in self.kinds)
        size = min(len(known) / (1 - share), len(unknown) / share)
        n_unknown = round(size * share)
        rows = np.concatenate([unknown[:n_unknown], known[: int(size) - n_unknown]])
        return self._replace(target=self.target[rows], truth=self.truth[rows])

    @property
    def kinds(self) -> tuple[Array, Array]:
        """Which targets are unknown, and which known."""
        return self.truth == UNKNOWN, self.truth != UNKNOWN


def tasks_of(suite: str, data: Path, most: int) -> Iterator[tuple[str, Task]]:
    """Yield the tasks of a suite with at most so many rows of each domain."""
    found = None if suite == DIGITS else find_suite(suite, data)
    if found is None and suite != DIGITS:
        print(f"{suite}: not in {data}, left out; name its folder with --data")
        return
    for name in (DIGITS,) if found is None else found.tasks:
        task = load_digits_task() if found is None else found.read(name)
        rng = np.random.default_rng([0, *name.encode()])
        a, b = (
            rng.permutation(len(X))[:most] for X in (task.source_features, task.target_features)
        )
        truth = np.asarray(task.target_truth).astype(np.str_)
        truth = np.where(np.isin(truth, task.source_labels), truth, UNKNOWN)
        source = np.asarray(task.source_features)[a], np.asarray(task.source_labels)[a]
        yield name, Task(*source, np.asarray(task.target_features)[b], truth[b])


def measure(task: Task, rng: np.random.Generator) -> Row:
    """Return the figures of one task."""
    started = time.perf_counter()
    run = task.fit()
    seconds = time.perf_counter() - started
    right = run.transduction_ == task.truth
    row: Row = {"n": len(right), "classes": len(run.classes_), "right": right.mean()}
    row |= _confidence("fit", run.transduction_confidence_, right)
    alone = task.fit(method=MovingMeans)
    of_one = alone.transduction_ == task.truth
    row |= _confidence("alone", alone.transduction_confidence_, of_one)
    row |= {"seconds": seconds, "agreement": run.agreement_.mean(), "hos_alone": _hos(alone, task)}
    later = run.predict_proba(task.target)
    labels = run.predict(task.target)
    row |= _confidence("later", later.max(axis=1), labels == task.truth)
    row["differs"] = float((labels != run.transduction_).mean())
    names = np.array([*run.classes_.tolist(), UNKNOWN])
    both = np.concatenate([run.transduction_proba_, later])
    row["contradicts"] = float(
        (names[both.argmax(axis=1)] != np.concatenate([run.transduction_, labels])).mean()
    )
    report, true = run.openness_report_, float(task.kinds[0].mean())
    row |= {"true": true, "share": report.share, "holds": report.low <= true <= report.high}
    row["width"] = report.high - report.low
    told = task.fit(true)
    row |= {"hos_estimated": _hos(run, task), "hos_told": _hos(told, task)}
    row["hos_constant"] = _hos(task.fit(CONSTANT), task)
    audited = [_audited(task, run, told, rng) for _ in range(AUDITS)]
    row |= {name: fmean(one[name] for one in audited) for name in audited[0]}
    errors = []
    for share in SWEEP:
        some = task.with_share(share, rng)
        # One step: the share is estimated before.
        quick = MovingMeans(scaling=RANKS, steps=1)
        estimate = share
        if len(some.target) >= 40:
            estimate = quick.fit(*some.domains(), FitContext()).openness_report_.share
        errors.append(abs(estimate - some.kinds[0].mean()))
    return row | {"sweep": fmean(errors)}


def _confidence(name: str, confidence: Array, right: Array) -> Row:
    sure = confidence > SURE
    auroc = roc_auc_score(right, confidence) if 0 < right.mean() < 1 else np.nan
    return {
        f"{name}_auroc": auroc,
        f"{name}_error": expected_calibration_error(confidence, right),
        f"{name}_sure": sure.sum(),
        f"{name}_wrong": (sure & ~right).sum(),
        f"{name}_mean": confidence.mean(),
    }


def _audited(task: Task, run: Any, told: Any, rng: np.random.Generator) -> Row:
    """Mark 30 targets by the truth, fit with their share, and compare with the true share."""
    rows = rng.permutation(len(task.truth))[:AUDIT_SIZE]
    unknown = task.truth[rows] == UNKNOWN
    none, scores = np.zeros(len(rows), dtype=bool), run.transduction_scores_
    audit = Audit(rows, unknown, none, scores)
    counts = int((~unknown).sum()), int(unknown.sum())
    fitted = task.fit(checked=CheckedTargets(*counts, audit))
    estimate: ShareEstimate = fitted.openness_report_
    lost = [
        fmean(told.transduction_[own] == name) - fmean(fitted.transduction_[own] == name)
        for name in fitted.classes_
        if (own := task.truth == name).any()
    ]
    return {
        "hos_audited": _hos(fitted, task),
        "audit_error": abs(estimate.share - task.kinds[0].mean()),
        "audit_lost": float(max(lost) > WORSE),
    }


def _hos(classifier: OpenSetClassifier, task: Task) -> float:
    labels = classifier.transduction_
    return float(evaluate(task.truth, labels, classifier.classes_).hos)


def read(path: Path) -> list[Row]:
    """Return what was measured."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        words = ("suite", "task")
        return [
            {k: v if k in words else float(v) for k, v in row.items()}
            for row in csv.DictReader(file)
        ]


def tables(rows: list[Row], later: bool = True) -> dict[str, str]:
    """Return the tables, a line per suite and their mean; perhaps without later samples."""
    suites = dict.fromkeys(row["suite"] for row in rows)

    def lines(columns: dict[str, Any]) -> str:
        values = [
            [f([r for r in rows if r["suite"] == s]) for f in columns.values()] for s in suites
        ]
        values.append([fmean(column) for column in zip(*values, strict=True)])
        cells = [
            [name, *(f"{value:.3f}" if value < 1.5 else f"{value:.1f}" for value in line)]
            for name, line in zip((*suites, "mean"), values, strict=True)
        ]
        return markdown(["suite", *columns], cells)

    def mean(name: str, scale: float = 1) -> Any:
        return lambda own: scale * float(np.nanmean([row[name] for row in own]))

    def wrong(kind: str) -> Any:
        def share(own: list[Row]) -> float:
            sure = sum(row[f"{kind}_sure"] for row in own)
            return float(sum(row[f"{kind}_wrong"] for row in own) / max(sure, 1))

        return share

    def error(own: list[Row]) -> float:
        return fmean(abs(row["share"] - row["true"]) for row in own)

    confidence: dict[str, Any] = {"right": mean("right"), "mean confidence": mean("fit_mean")}
    kinds = {"fit": "", "alone": ", moving-means"} | ({"later": ", later"} if later else {})
    for kind, words in kinds.items():
        confidence |= {
            f"AUROC{words}": mean(f"{kind}_auroc"),
            f"calibration error{words}": mean(f"{kind}_error"),
            f"wrong above .95{words}": wrong(kind),
        }
    shares = {
        "error": error,
        "error, sweep": mean("sweep"),
        "interval holds": mean("holds"),
        "width": mean("width"),
        "HOS oracle": mean("hos_told", 100),
        "estimated": mean("hos_estimated", 100),
        "constant 0.4": mean("hos_constant", 100),
        "audited": mean("hos_audited", 100),
        "audit's error": mean("audit_error"),
        "runs with a class 5 points worse": mean("audit_lost"),
    }
    members = {
        "seconds of fit": mean("seconds"),
        "members that give the label": mean("agreement"),
        "HOS of moving-means": mean("hos_alone", 100),
        "labels that predict changes": mean("differs"),
        "labels that are not their most probable column": mean("contradicts"),
    }
    return {"trust": lines(confidence), "share": lines(shares), "members": lines(members)}


def main() -> None:
    """Measure what is missing, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--suites", nargs="+", default=[*SUITES, DIGITS])
    parser.add_argument("--rows", type=int, default=800, help="of each domain, at most")
    parser.add_argument("--tasks", type=int, default=6, help="of each suite, at most")
    parser.add_argument("--figures", type=Path, default=FIGURES)
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="write the tables into the docs")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    done = {(row["suite"], row["task"]) for row in read(given.figures)}
    for suite in () if given.show else given.suites:
        for name, task in islice(tasks_of(suite, given.data, given.rows), given.tasks):
            if (suite, name) in done:
                continue
            found = measure(task, np.random.default_rng([1, *name.encode()]))
            row = {"suite": suite, "task": name}
            row |= {key: f"{float(value):.4f}" for key, value in found.items()}
            is_new = not given.figures.exists()
            with given.figures.open("a", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, row, lineterminator="\n")
                if is_new:
                    writer.writeheader()
                writer.writerow(row)
            print(
                suite,
                name,
                {key: row[key] for key in ("right", "fit_mean", "hos_estimated", "hos_told")},
                flush=True,
            )
    made = tables(read(given.figures))
    for table_name, text in made.items():
        print(f"\n{table_name}\n\n{text}")
    if given.write:
        made = tables(read(given.figures), later=False)
        shown = {name: made[name] for name in ("trust", "share")}
        PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), shown), encoding="utf-8")


if __name__ == "__main__":
    main()
