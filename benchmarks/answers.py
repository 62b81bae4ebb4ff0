"""What a committee says of its own labels, on the suites and on hard splits of them.

    python benchmarks/answers.py                # measure what is missing; an hour on one core
    python benchmarks/answers.py --show         # bars, and constants of share/confidence.py
    python benchmarks/answers.py --show --write # the table of docs/label-free.md

Up to six tasks of each suite, at most --rows rows of each domain, nothing told. *own*: the classes
of the suite. *hard*: at most three known classes at random, the unknown ones are those whose means
are most similar to theirs, and 10 or 75 % of the targets are unknown. One line per task in
figures/answers.csv, one per known class in figures/alarms.csv. Constants are chosen on all suites
but one field, and judged on that; the shipped ones are fitted on all.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from opensetda import Committee, InputError
from opensetda.context import FitContext
from opensetda.metrics.open_set import evaluate, expected_calibration_error
from opensetda.share.confidence import MOST_CLASSES, right_range
from published import fill, markdown
from shares import DIGITS, FIELD_OF, pairs_of
from suites import DATA, SUITES
from trust import Task, tasks_of

FIGURES = Path(__file__).parent / "figures" / "answers.csv"
PAGE = Path(__file__).parents[1] / "docs" / "label-free.md"
OWN, HARD, SURE, UNKNOWN = "own", "hard", 0.95, "unknown"
MOST_TASKS, MOST_KNOWN, FEWEST_TARGETS = 6, 3, 40
HARD_SHARES = (0.1, 0.75)
OWN_WEIGHT = 4.0  # of a task of a suite's own classes, beside a hard one
BAD, HALF = 1 / 3, 1 / 2  # of the labels of a class that are right
Row = dict[str, Any]
Array = npt.NDArray[Any]


class Named(NamedTuple):
    """A task of a kind."""

    kind: str
    suite: str
    name: str
    task: Task


def tasks(data: Path, suites: Sequence[str], most: int) -> Iterator[Named]:
    """Yield the own and the hard tasks of the suites."""
    for suite in suites:
        own = list(tasks_of(suite, data, most))
        for place in np.unique(np.linspace(0, len(own) - 1, MOST_TASKS).round().astype(int)):
            yield Named(OWN, suite, own[place][0], own[place][1])
    for suite in suites:
        try:
            pairs = pairs_of(suite, data) if suite != DIGITS else []
        except FileNotFoundError:
            pairs = []
        for place in np.unique(np.linspace(0, len(pairs) - 1, MOST_TASKS).round().astype(int)):
            rng = np.random.default_rng([41, *suite.encode(), int(place)])
            for share in HARD_SHARES if pairs else ():
                task = hard_task(*pairs[place], share, most, rng)
                if task is not None:
                    yield Named(HARD, suite, f"{place}-{share}", task)


def hard_task(
    source: tuple[Array, Array],
    target: tuple[Array, Array],
    share: float,
    most: int,
    rng: np.random.Generator,
) -> Task | None:
    """Draw known classes; those whose means in the target are most like theirs are unknown."""
    classes = np.unique(target[1])
    known = rng.permutation(np.intersect1d(np.unique(source[1]), classes))
    known = np.sort(known[: min(MOST_KNOWN, len(classes) // 2)])
    ranks = target[0].argsort(axis=0).argsort(axis=0) / len(target[0])
    means = np.stack([ranks[target[1] == name].mean(axis=0) for name in classes])
    means -= means.mean(axis=0)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    alike = means @ means.T
    alike[:, np.isin(classes, known)] = -1
    unknown = np.unique(classes[alike[np.isin(classes, known)].argmax(axis=1)])
    rows = rng.permutation(np.flatnonzero(np.isin(source[1], known)))[:most]
    of_known = rng.permutation(np.flatnonzero(np.isin(target[1], known)))
    of_unknown = rng.permutation(np.flatnonzero(np.isin(target[1], unknown)))
    size = min(most, len(of_known) / (1 - share), len(of_unknown) / share)
    n_unknown = round(size * share)
    chosen = np.concatenate([of_unknown[:n_unknown], of_known[: int(size) - n_unknown]])
    if size < FEWEST_TARGETS or len(np.unique(source[1][rows])) < len(known):
        return None
    truth = np.where(np.isin(target[1][chosen], known), target[1][chosen], UNKNOWN)
    return Task(source[0][rows], source[1][rows], target[0][chosen], truth.astype(np.str_))


def measure(named: Named) -> tuple[Row, list[Row]]:
    """Return the figures of one task, and of each of its known classes."""
    task = named.task
    committee = Committee(unknown_label=UNKNOWN)
    run = committee.fit(*task.domains(), context=FitContext())
    right = run.transduction_ == task.truth
    confidence = run.transduction_confidence_
    doubt = float(run.scorer_.doubt)
    # Votes before any doubt.
    votes = (run.transduction_proba_ - doubt / (len(run.classes_) + 1)) / max(1 - doubt, 1e-9)
    columns = [*run.classes_.tolist(), UNKNOWN]
    chosen = [columns.index(label) for label in run.transduction_.tolist()]
    of_label = votes[np.arange(len(chosen)), chosen]
    sure = confidence > SURE
    report, true = run.openness_report_, float((task.truth == UNKNOWN).mean())
    low, high = right_range(confidence)
    told = Committee(min(true, 0.97), unknown_label=UNKNOWN)
    told.fit(*task.domains(), context=FitContext())
    where = {"kind": named.kind, "suite": named.suite, "task": named.name}
    row: Row = where | {
        "n": len(right),
        "classes": len(run.classes_),
        "agreement": run.agreement_.mean(),
        "right": right.mean(),
        "votes": of_label.mean(),
        "confidence": confidence.mean(),
        "auroc": roc_auc_score(right, confidence) if 0 < right.mean() < 1 else np.nan,
        "error": expected_calibration_error(confidence, right),
        "sure": sure.sum(),
        "wrong": (sure & ~right).sum(),
        "low": low,
        "high": high,
        "true": true,
        "share": report.share,
        "share_low": report.low,
        "share_high": report.high,
        "hos": evaluate(task.truth, run.transduction_, run.classes_).hos,
        "hos_told": evaluate(task.truth, told.transduction_, told.classes_).hos,
        "right_told": (told.transduction_ == task.truth).mean(),
    }
    alarmed = {alarm["name"] for alarm in run.alarms_}
    classes = []
    for place, name in enumerate(columns[:-1]):
        given, own = run.transduction_ == name, task.truth == name
        both = float((given & own).sum())
        parts = [both / count for count in (given.sum(), own.sum()) if count]
        mass = float((votes[given, place].sum() + 0.5) / (votes[:, place].sum() + 1))
        mean = float(votes[given, place].mean()) if given.any() else 0.0
        if parts:
            found = {"confidence": mean, "mass": mass, "right": min(parts)}
            classes.append(where | {"class": name} | found | {"named": float(name in alarmed)})
    return row, classes


def append(rows: Sequence[Row], path: Path) -> None:
    """Add lines to a CSV file."""
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        if is_new:
            writer.writeheader()
        for row in rows:
            values = {k: v if isinstance(v, str) else f"{float(v):.4f}" for k, v in row.items()}
            writer.writerow(values)


def read(path: Path) -> list[Row]:
    """Return what was measured."""
    if not path.exists():
        return []
    words = ("kind", "suite", "task", "class")
    with path.open(newline="", encoding="utf-8") as file:
        lines = csv.DictReader(file)
        return [{k: v if k in words else float(v) for k, v in row.items()} for row in lines]


def alarms_file(figures: Path) -> Path:
    """Return the file of the classes beside that of the tasks."""
    return figures.with_name("alarms.csv")


# Constants ------------------------------------------------------------------------------------


def weight(row: Row) -> float:
    """Return how much a task counts."""
    return OWN_WEIGHT if row["kind"] == OWN else 1.0


def fit_doubt(rows: Sequence[Row]) -> Array:
    """Fit the doubt so that the mean confidence of a task is the part of its labels that is right.

    Logit: constant, for the logarithm of the number of classes.
    """
    classes = np.array([row["classes"] for row in rows])
    known = np.log(np.minimum(classes, MOST_CLASSES))
    votes, right = (np.array([row[name] for row in rows]) for name in ("votes", "right"))
    importance = np.array([weight(row) for row in rows])

    def loss(constants: Array) -> float:
        doubt = 1 / (1 + np.exp(-constants[0] - constants[1] * known))
        error = (1 - doubt) * votes + doubt / (classes + 1) - right
        return float((importance * error**2).sum() + 1e-3 * (constants**2).sum())

    return np.asarray(minimize(loss, np.array([0.0, -1.0]), method="Nelder-Mead").x)


def fit_alarm(rows: Sequence[Row]) -> LogisticRegression:
    """Fit when to name a class: fewer than 40 % of it are right."""
    X = [[row["confidence"], row["mass"]] for row in rows]
    bad = [row["right"] < (BAD + HALF) / 2 for row in rows]
    return LogisticRegression(C=100).fit(X, bad, sample_weight=[weight(row) for row in rows])


def field(row: Row) -> str:
    """Return what a suite is left out with."""
    return FIELD_OF.get(row["suite"], row["suite"])


def named_without(rows: Sequence[Row]) -> list[bool]:
    """Return which classes would be named by constants that were fitted without their field."""
    models = {
        name: fit_alarm([row for row in rows if field(row) != name]) for name in map(field, rows)
    }
    pairs = [[row["confidence"], row["mass"]] for row in rows]
    return [
        bool(models[field(row)].predict([pair])[0]) for row, pair in zip(rows, pairs, strict=True)
    ]


# Bars -----------------------------------------------------------------------------------------


def table(rows: Sequence[Row], classes: Sequence[Row]) -> str:
    """Return the bars by kind, in Markdown."""
    unseen = named_without(classes)
    lines = []
    for kind in (OWN, HARD):
        own = [row for row in rows if row["kind"] == kind]
        if not own:
            continue
        of = {name: np.array([row[name] for row in own]) for name in own[0] if name != "suite"}
        off = np.abs(of["share"] - of["true"])
        holds = (of["low"] <= of["right"]) & (of["right"] <= of["high"])
        inside = (of["share_low"] <= of["true"]) & (of["true"] <= of["share_high"])
        worst = max(_wrong([row for row in own if row["suite"] == s]) for s in {*_suites(own)})
        given = [row for row in classes if row["kind"] == kind]
        missed = [n for row, n in zip(classes, unseen, strict=True) if row["kind"] == kind]
        figures = {
            "tasks": f"{len(own)}",
            "AUROC": f"{np.nanmean(of['auroc']):.3f}",
            "calibration error": f"{of['error'].mean():.3f}",
            "wrong above .95": f"{_wrong(own):.3f}",
            "in the worst suite": f"{worst:.3f}",
            "range holds": f"{holds.mean():.2f}",
            "its width": f"{(of['high'] - of['low']).mean():.2f}",
            "share off by": f"{off.mean():.3f}",
            "a constant .4": f"{np.abs(of['true'] - 0.4).mean():.3f}",
            "interval holds": f"{inside.mean():.2f}",
            "its width ": f"{(of['share_high'] - of['share_low']).mean():.2f}",
            "true share costs 2 points of HOS": f"{(of['hos_told'] < of['hos'] - 0.02).mean():.2f}",
            "of accuracy": f"{(of['right_told'] < of['right'] - 0.02).mean():.2f}",
            "bad classes named": _found(given, [row["named"] > 0 for row in given]),
            "unseen": _found(given, missed),
            "named, below a half": _precise(given, [row["named"] > 0 for row in given]),
            "unseen ": _precise(given, missed),
        }
        lines.append([kind, *figures.values()])
    columns = zip(["", *figures], *lines, strict=True)
    head, *body = [list(column) for column in columns]
    return markdown(head, body)


def _suites(rows: Sequence[Row]) -> list[str]:
    return [row["suite"] for row in rows]


def _wrong(rows: Sequence[Row]) -> float:
    return float(sum(row["wrong"] for row in rows) / max(sum(row["sure"] for row in rows), 1))


def _found(rows: Sequence[Row], named: Sequence[bool]) -> str:
    bad = [name for row, name in zip(rows, named, strict=True) if row["right"] < BAD]
    return f"{sum(bad)} of {len(bad)}"


def _precise(rows: Sequence[Row], named: Sequence[bool]) -> str:
    right = [row["right"] for row, name in zip(rows, named, strict=True) if name]
    return f"{sum(part < HALF for part in right)} of {len(right)}"


def main() -> None:
    """Measure what is missing, and print bars and constants."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--suites", nargs="+", default=[*SUITES, DIGITS])
    parser.add_argument("--rows", type=int, default=500, help="of each domain, at most")
    parser.add_argument("--figures", type=Path, default=FIGURES)
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="write the table into the docs")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    done = {(row["kind"], row["suite"], row["task"]) for row in read(given.figures)}
    for named in () if given.show else tasks(given.data, given.suites, given.rows):
        if (named.kind, named.suite, named.name) in done:
            continue
        try:
            row, classes = measure(named)
        except InputError as error:
            print(named[:3], error)
            continue
        append(classes, alarms_file(given.figures))
        append([row], given.figures)
        print(*named[:3], f"right {row['right']:.2f}, {row['low']:.2f} to {row['high']:.2f}")
    rows, of_classes = read(given.figures), read(alarms_file(given.figures))
    print("\nDOUBT =", np.round(fit_doubt(rows), 2).tolist())
    alarm = fit_alarm(of_classes)
    print("ALARM =", np.round([*alarm.intercept_, *alarm.coef_[0]], 2).tolist())
    text = table(rows, of_classes)
    print(f"\n{text}")
    if given.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(fill(page, {"answers": text}), encoding="utf-8")


if __name__ == "__main__":
    main()
