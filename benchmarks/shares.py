"""The weights of the evidence for the share of unknowns, and what they are worth on new data.

    python benchmarks/shares.py            # measure what is missing, fit, show
    python benchmarks/shares.py --show     # fit and show from the file

Measures the evidence (`opensetda.share.evidence`) on random tasks whose share is known:
known and unknown classes of every suite drawn at random, with a share of unknowns between 0 and
0.92, and generated shifts of features. Prints the constants of `share/evidence.py`, and
errors on each suite with weights that were fitted without it (leave one suite out).
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from feature_shifts import FEATURE_SHIFTS, feature_task
from opensetda.data.benchmarks.digits import load_digits_task
from opensetda.errors import InputError
from opensetda.features.alignment import aligned_samples
from opensetda.features.scaling import RANKS, Scaling
from opensetda.rows import Domains, FloatArray, Rows
from opensetda.share.evidence import (
    CONFIDENCE,
    USUAL_SHARES,
    Evidence,
    gather_evidence,
    many_classes,
    trust_in_hidden,
)
from suites import DATA, OFFICE31
from suites import SUITES as TABLES

FIGURES = Path(__file__).parent / "figures" / "shares.csv"
DIGITS, GENERATED = "digits", "generated"
SUITES = (*TABLES, DIGITS)
# Suites of the same images are left out together.
FIELD_OF = dict.fromkeys(OFFICE31, "office31")

TASKS_PER_SUITE = 130
MOST_SOURCE, MOST_TARGET, FEWEST_TARGET = 600, 800, 40
LARGEST = 0.92
# Weight of the penalty on the fitted weights, in tasks.
RIDGE = 10.0
Domain = tuple[FloatArray, npt.NDArray[Any]]
COLUMNS = ("suite", "share", "scaling", *Evidence._fields)


class RandomTask(NamedTuple):
    """Rows and class indices of the source, rows of the target, which of them are unknown."""

    source: FloatArray
    y: npt.NDArray[np.intp]
    target: FloatArray
    unknown: npt.NDArray[np.bool_]


def main() -> None:
    """Measure, fit, show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=FIGURES)
    parser.add_argument("--suites", nargs="+", default=[*SUITES, GENERATED])
    parser.add_argument("--tasks", type=int, default=TASKS_PER_SUITE)
    parser.add_argument("--show", action="store_true")
    arguments = parser.parse_args()
    if not arguments.show:
        for suite in arguments.suites:
            measure(suite, arguments.tasks, arguments.data, arguments.out)
    show(read(arguments.out))


def measure(suite: str, n_tasks: int, data: Path, out: Path) -> None:
    """Append the evidence on random tasks of a suite, unless the file has them."""
    if suite in TABLES and not folder_of(suite, data).is_dir():
        print(f"{suite}: {folder_of(suite, data)} is missing; left out")
        return
    there = out.exists() and any(row["suite"] == suite for row in read(out))
    if there:
        return
    rng = np.random.default_rng([3, *suite.encode()])
    tasks = generated_tasks(rng) if suite == GENERATED else random_tasks(suite, data, rng)
    rows = []
    for task, _ in zip(tasks, range(n_tasks), strict=False):
        domains = Domains.of(
            source=Rows(task.source, np.arange(len(task.source))),
            y=task.y,
            target=Rows(task.target, np.arange(len(task.target))),
            classes=np.unique(task.y),
        )
        scaling, scaled = Scaling.applied(RANKS, domains)
        evidence = gather_evidence(*aligned_samples(scaled))
        figures = [f"{figure:.4f}" for figure in (task.unknown.mean(), *evidence[:-1])]
        rows.append([suite, figures[0], scaling.name, *figures[1:], evidence.n_classes])
    is_new = not out.exists()
    with out.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(COLUMNS)
        writer.writerows(rows)
    print(f"{suite}: {len(rows)} tasks")


def read(path: Path) -> list[dict[str, Any]]:
    """Read what was measured."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {k: v if k in ("suite", "scaling") else float(v) for k, v in row.items()}
            for row in csv.DictReader(file)
        ]


def folder_of(suite: str, data: Path) -> Path:
    """Return the folder of a suite, which may be missing."""
    if suite in OFFICE31:
        return data / "office31-features" / OFFICE31[suite]
    return data / "suites" / suite


def pairs_of(suite: str, data: Path) -> list[tuple[Domain, Domain]]:
    """Return the pairs of domains of a suite, with all their classes."""
    if suite == DIGITS:
        task = load_digits_task()
        source = task.source_features, task.source_labels
        return [(source, (task.target_features, task.target_truth))]
    domains: dict[str, Domain] = {}
    for path in sorted(folder_of(suite, data).glob("*.npz")):
        with np.load(path) as file:
            domains[path.stem] = file["X"].astype(np.float32), file["classes"][file["y"]]
    pairs = list(permutations(domains, 2))
    if suite not in OFFICE31:
        pairs = json.loads((folder_of(suite, data) / "tasks.json").read_text())["tasks"]
    return [(domains[source], domains[target]) for source, target in pairs]


def random_tasks(suite: str, data: Path, rng: np.random.Generator) -> Iterator[RandomTask]:
    """Draw pairs of domains, known and unknown classes, and a share; without end."""
    pairs = pairs_of(suite, data)
    while True:
        source, target = pairs[rng.integers(len(pairs))]
        can_be_known, everything = np.unique(source[1]), np.unique(target[1])
        n_known = int(rng.integers(2, max(len(everything) * 2 // 3, 3) + 1))
        known = rng.permutation(can_be_known)[:n_known]
        others = rng.permutation(np.setdiff1d(everything, known))
        unknown = others[: int(rng.integers(1, len(others) + 1))]
        task = draw_task(source, target, known, unknown, random_share(rng), rng)
        if task is not None:
            yield task


def random_share(rng: np.random.Generator) -> float:
    """Return a share of unknowns; one in ten tasks has none."""
    return float(rng.uniform(0, LARGEST)) if rng.random() > 0.1 else 0.0


def draw_task(
    source: Domain,
    target: Domain,
    known: npt.NDArray[Any],
    unknown: npt.NDArray[Any],
    share: float,
    rng: np.random.Generator,
) -> RandomTask | None:
    """Draw rows so that the target has this share of unknowns; None if there are too few."""
    known = np.sort(known)
    rows = rng.permutation(np.flatnonzero(np.isin(source[1], known)))[:MOST_SOURCE]
    y = np.searchsorted(known, source[1][rows])
    of_known = rng.permutation(np.flatnonzero(np.isin(target[1], known)))
    of_unknown = rng.permutation(np.flatnonzero(np.isin(target[1], unknown)))
    few = len(of_known) < FEWEST_TARGET * 3 // 4 or len(of_unknown) < 15
    if few or np.bincount(y, minlength=len(known)).min() < 5:
        return None
    size = min(MOST_TARGET, len(of_known) / (1 - share), len(of_unknown) / max(share, 1e-9))
    n_unknown = round(size * share)
    chosen = np.concatenate([of_known[: int(size) - n_unknown], of_unknown[:n_unknown]])
    if len(chosen) < FEWEST_TARGET:
        return None
    is_unknown = np.isin(target[1][chosen], unknown)
    return RandomTask(source[0][rows], y, target[0][chosen], is_unknown)


def generated_tasks(rng: np.random.Generator) -> Iterator[RandomTask]:
    """Draw generated features under random shifts; without end."""
    while True:
        n_known, n_unknown = int(rng.integers(3, 21)), int(rng.integers(2, 15))
        width, shift = int(rng.choice([32, 64, 128, 256])), str(rng.choice(list(FEATURE_SHIFTS)))
        seed, size = int(rng.integers(10**6)), int(rng.integers(15, 50))
        try:
            sizes = n_known, n_unknown, width
            task = feature_task(*sizes, shift, random_share(rng), seed, per_class=size)
        except InputError:  # Too few rows for that share.
            continue
        _, y = np.unique(task.source_labels, return_inverse=True)
        unknown = np.isin(task.target_truth, task.split.unknown)
        if len(unknown) >= FEWEST_TARGET:
            yield RandomTask(task.source_features, y, task.target_features, unknown)


class Fit(NamedTuple):
    """The constants of `share/evidence.py`."""

    weights: npt.NDArray[np.float64]
    half_width: npt.NDArray[np.float64]

    def shares(self, rows: list[dict[str, Any]]) -> npt.NDArray[np.float64]:
        """Return the estimated shares."""
        trust, hidden = trusted(rows)
        weighed = np.clip(design(rows) @ self.weights.ravel(), *USUAL_SHARES)
        return (1 - trust) * weighed + trust * hidden

    def half_widths(self, rows: list[dict[str, Any]]) -> npt.NDArray[np.float64]:
        """Return half the widths of the intervals."""
        return self.half_width[0] + trusted(rows)[0] * self.half_width[1]


def many_of(rows: list[dict[str, Any]]) -> npt.NDArray[np.float64]:
    """Return 1 and how far from two classes to many: (n, 2)."""
    return np.array([[1.0, many_classes(row["n_classes"])] for row in rows])


def trusted(rows: list[dict[str, Any]]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return how far hidden classes alone decide, and what they say: (n,), (n,)."""
    trust = [trust_in_hidden(row["n_classes"]) for row in rows]
    seen = [Evidence(*(row[name] for name in Evidence._fields)) for row in rows]
    return np.array(trust), np.array([evidence.by_hidden for evidence in seen])


def design(rows: list[dict[str, Any]]) -> npt.NDArray[np.float64]:
    """Return the evidence, and the evidence times how many classes there are: (n, 10)."""
    figures = Evidence._fields[:-1]
    values = np.array([[1.0, *(row[figure] for figure in figures)] for row in rows])
    return np.einsum("nm,nv->nmv", many_of(rows), values).reshape(len(rows), -1)


def fit(rows: list[dict[str, Any]]) -> Fit:
    """Fit the weights by least squares with a penalty, every suite with the same weight."""
    suites = [row["suite"] for row in rows]
    per_suite = np.array([len(rows) / len(set(suites)) / suites.count(name) for name in suites])
    X, shares, (trust, hidden) = design(rows), np.array([r["share"] for r in rows]), trusted(rows)
    # What is left for the weighted sum, and how much an error of it matters.
    wanted = (shares - trust * hidden) / (1 - trust)
    importance = per_suite * prior(shares) * (1 - trust) ** 2
    mean, spread = np.average(X, axis=0, weights=importance), X.std(axis=0)
    spread[0] = 1.0
    centred = (X - mean) / spread
    centre = float(np.average(wanted, weights=importance))
    weighted = centred * importance[:, None]
    system = weighted.T @ centred + RIDGE * np.eye(X.shape[1])
    slopes = np.linalg.solve(system, weighted.T @ (wanted - centre)) / spread
    slopes[0] = centre - mean[1:] @ slopes[1:]
    weights = slopes.reshape(2, -1)
    errors = np.abs(Fit(weights, np.zeros(2)).shares(rows) - shares)
    return Fit(weights, _quantile_line(trust, errors, per_suite * prior(shares)))


def prior(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return how often shares occur: most between a few and 70 %, the others rarely."""
    return np.asarray(beta(3, 4).pdf(shares) + 0.05)


def _quantile_line(
    trust: npt.NDArray[np.float64], errors: npt.NDArray[np.float64], importance: Any
) -> npt.NDArray[np.float64]:
    """Fit the line below which `CONFIDENCE` of the errors lie, by linear programming."""
    from sklearn.linear_model import QuantileRegressor

    line = QuantileRegressor(quantile=CONFIDENCE, alpha=0.0)
    line.fit(trust[:, None], errors, sample_weight=importance)
    return np.array([line.intercept_, *line.coef_])


def fit_without(suite: str, rows: list[dict[str, Any]]) -> Fit:
    """Fit the constants without a suite, and without others of the same images."""
    field = FIELD_OF.get(suite, suite)
    return fit([row for row in rows if FIELD_OF.get(row["suite"], row["suite"]) != field])


def show(rows: list[dict[str, Any]]) -> None:
    """Print the constants, and the errors on each suite with weights fitted without it."""
    shipped = fit(rows)
    print("\nWEIGHTS =", np.array2string(shipped.weights, precision=3, separator=", "))
    print("HALF_WIDTH =", np.array2string(shipped.half_width, precision=3, separator=", "))
    print("\n| suite left out | error | a constant 0.4 | 90 % interval holds | its width |")
    print("| --- | --- | --- | --- | --- |")
    for suite in dict.fromkeys(row["suite"] for row in rows):
        own = [row for row in rows if row["suite"] == suite]
        fitted, truth = fit_without(suite, rows), np.array([row["share"] for row in own])
        errors, half = np.abs(fitted.shares(own) - truth), fitted.half_widths(own)
        figures = errors, np.abs(truth - 0.4), errors <= half
        means = [np.average(values, weights=prior(truth)) for values in figures]
        error, constant, holds = means
        print(f"| {suite} | {error:.3f} | {constant:.3f} | {holds:.0%} | {2 * half.mean():.2f} |")


if __name__ == "__main__":
    main()
