"""What marks of a person are worth: HOS by number of marks, on every suite.

    python benchmarks/marks.py            # measure what is missing; the first fit of a task is kept
    python benchmarks/marks.py --show --write

Nothing told, at most --rows rows of each domain, six tasks a suite. The committee is fitted once
per task, and the marks are the true labels of targets. Who chooses them: `useful` is the queue of
`osda review`; `random` and `unsure` (the least confident) are spread by the same rule; `alone` are
the marks without the source: as many groups as marks, on the target's components (ranks on tables),
each with the label of its central sample; `wrong` is `useful` with 10 % of the marks wrong. Three
seeds where something is drawn. `predict` and `fitted` (--later) label samples of the target that
the first fit did not have: by a model with 30 marks, and as targets of a fit with them.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from opensetda import Committee
from opensetda.features.scaling import NONE, RANKS
from opensetda.methods.groups import TargetView, grouped
from opensetda.methods.marks import Spread, marked_share, most_useful
from opensetda.metrics.open_set import evaluate
from opensetda.rows import Domains, Marks, Rows
from opensetda.usecases.suggest_samples import expected_gain
from published import fill, markdown
from suites import DATA, OFFICE31, SUITES, find_suite

FOLDER = Path(__file__).resolve().parent
FIGURES = FOLDER / "figures" / "marks.csv"
PAGE = FOLDER.parent / "docs" / "review.md"
CHART = FOLDER.parent / "docs" / "images" / "marks.svg"
CACHE = Path("/tmp") / "opensetda-marks"
UNKNOWN = "unknown"
COUNTS = (10, 20, 30, 40, 50, 60)
SEEDS = 3
WRONG = 0.1
TASKS = 6  # of a suite
IMAGES = (*OFFICE31, "pacs")
COLUMNS = (
    *("suite", "task", "kind", "seed", "marks", "hos", "accuracy"),
    *("gain", "share", "low", "high", "true"),
)
Array = npt.NDArray[Any]
Row = dict[str, str]


class Task(NamedTuple):
    """A task with the votes of a committee that was fitted to it; truth is an index, C unknown."""

    source: Array
    y: Array
    target: Array
    truth: Array
    later: Array
    later_truth: Array
    classes: Array
    votes: Array

    @property
    def n_classes(self) -> int:
        """The number of known classes."""
        return len(self.classes)

    def hos(self, labels: Array, truth: Array | None = None) -> float:
        """Return HOS of labels, which are indices."""
        names = np.append(self.classes, UNKNOWN)
        true = self.truth if truth is None else truth
        return 100 * float(evaluate(names[true], names[labels], self.classes).hos)

    def fit(self, rows: Array, labels: Array, more: bool = False) -> Committee:
        """Fit a committee with marks of some targets, perhaps with the later samples as targets."""
        target = np.concatenate([self.target, self.later]) if more else self.target
        X = np.concatenate([self.source, target]).astype(np.float32)
        n_source = len(self.source)
        marks = Marks(n_source + rows, labels, self.classes) if len(rows) else None
        domains = Domains.of(
            source=Rows(X, np.arange(n_source)),
            y=self.y,
            target=Rows(X, np.arange(n_source, len(X))),
            classes=self.classes,
            marks=marks,
        )
        return Committee(unknown_label=UNKNOWN).fit_domains(domains)


def tasks_of(suite: str, data: Path, cache: Path, most: int) -> Iterator[tuple[str, Task]]:
    """Yield the tasks of a suite, fitted now or before."""
    found = find_suite(suite, data)
    if found is None:
        print(f"{suite}: not in {data}, left out; name its folder with --data")
        return
    for name in found.tasks[:TASKS]:
        path = cache / f"{suite}+{name}+{most}.npz"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            np.savez_compressed(path, **_fitted(found.read(name), name, most)._asdict())
        with np.load(path) as arrays:
            yield name, Task(**arrays)


def _fitted(task: Any, name: str, most: int) -> Task:
    rng = np.random.default_rng([0, *name.encode()])
    of_source = rng.permutation(len(task.source_features))[:most]
    of_target = rng.permutation(len(task.target_features))
    chosen = of_target[:most]
    later = of_target[most : 2 * most]
    classes = np.unique(np.asarray(task.source_labels).astype(np.str_))
    names = np.asarray(task.target_truth).astype(np.str_)
    place = np.minimum(np.searchsorted(classes, names), len(classes) - 1)
    truth = np.where(classes[place] == names, place, len(classes))
    features = np.asarray(task.target_features)
    y = np.searchsorted(classes, np.asarray(task.source_labels).astype(np.str_)[of_source])
    made = Task(
        source=np.asarray(task.source_features)[of_source],
        y=y,
        target=features[chosen],
        truth=truth[chosen],
        later=features[later],
        later_truth=truth[later],
        classes=classes,
        votes=np.zeros((0, 0)),
    )
    none = np.zeros(0, dtype=np.intp)
    return made._replace(votes=made.fit(none, none).transduction_proba_)


class Grouped(NamedTuple):
    """The groups of the targets, and their rows as marks alone see them."""

    cells: Array
    central: Array
    alone: Array


def groups_of(task: Task, suite: str) -> Grouped:
    """Group the targets as a review does, in canonical order."""
    rows = Rows(task.target.astype(np.float32), np.arange(len(task.target))).in_canonical_order()
    sample = np.concatenate([chunk for _, chunk in rows.chunks()])
    parts = {}
    for name in (NONE, RANKS):
        view = TargetView.fit(name, sample)
        with torch.no_grad():
            parts[name] = view(torch.from_numpy(sample)).numpy()
    found = grouped(list(parts.values()))
    cells = np.empty_like(found.cells)
    cells[rows.index] = found.cells
    own = parts[NONE if suite in IMAGES else RANKS]
    alone = np.empty_like(own)
    alone[rows.index] = own
    return Grouped(cells, np.sort(rows.index[found.central]), alone)


def measure(task: Task, suite: str) -> list[Row]:
    """Return a line for every kind of marks, seed and number of marks."""
    groups = groups_of(task, suite)
    labels = task.votes.argmax(axis=1)
    lines = [_line("none", 0, 0, task, labels)]
    lines += _asked(task, groups, "useful", 0)
    lines += _asked(task, groups, "unsure", 0)
    for seed in range(SEEDS):
        lines += _asked(task, groups, "random", seed)
        lines += _asked(task, groups, "wrong", seed)
    for count in (10, 30, 60):
        lines.append(_line("alone", 0, count, task, _alone(task, groups.alone, count)))
    return lines


def _asked(task: Task, groups: Grouped, kind: str, seed: int) -> list[Row]:
    """Mark one target after the other, as `kind` chooses them."""
    rng = np.random.default_rng([seed, len(task.truth)])
    n = len(task.truth)
    order = {
        "random": rng.permutation(n),
        "unsure": np.argsort(task.votes.max(axis=1), kind="stable"),
    }.get(kind)
    said = task.truth.copy()
    if kind == "wrong":
        other = (said + rng.integers(1, task.n_classes + 1, n)) % (task.n_classes + 1)
        said = np.where(rng.random(n) < WRONG, other, said)
    rows = np.zeros(0, dtype=np.intp)
    spread = Spread.fit(task.votes, groups.cells, rows, rows)
    lines = []
    for count in range(1, (30 if kind == "wrong" else max(COUNTS)) + 1):
        if order is None:
            given = spread, task.votes, groups.cells, groups.central, rows, 1
            rows = np.append(rows, most_useful(*given).rows)
        else:
            rows = order[:count]
        if order is not None and count not in COUNTS:
            continue
        spread = Spread.fit(task.votes, groups.cells, rows, said[rows])
        if count in COUNTS:
            found = spread.probabilities(task.votes, groups.cells).argmax(axis=1)
            found[rows] = said[rows]
            share = marked_share(spread, task.votes, groups.cells, rows, said[rows])
            given = spread, task.votes, groups.cells, groups.central, rows, 10
            gain = most_useful(*given).gain
            more = {
                "share": share.share,
                "low": share.low,
                "high": share.high,
                "gain": gain,
            }
            lines.append(_line(kind, seed, count, task, found, more))
    return lines


def _alone(task: Task, rows: Array, count: int) -> Array:
    """Label the targets by marks alone: each group gets the label of its central sample."""
    from sklearn.cluster import KMeans

    size = min(count, len(np.unique(rows, axis=0)))
    found = KMeans(size, n_init=5, random_state=0).fit(rows)
    apart = ((rows - found.cluster_centers_[found.labels_]) ** 2).sum(axis=1)
    central = [
        np.flatnonzero(found.labels_ == group)[apart[found.labels_ == group].argmin()]
        for group in range(size)
    ]
    return task.truth[central][found.labels_]


def _line(
    kind: str,
    seed: int,
    count: int,
    task: Task,
    labels: Array,
    more: dict[str, float] | None = None,
) -> Row:
    figures = {
        "hos": task.hos(labels),
        "accuracy": 100 * float((labels == task.truth).mean()),
        "true": float((task.truth == task.n_classes).mean()),
        **(more or {}),
    }
    texts = {name: f"{value:.4f}" for name, value in figures.items()}
    return {"kind": kind, "seed": str(seed), "marks": str(count), **texts}


def later(task: Task, suite: str) -> list[Row]:
    """Compare later samples by `predict` with the same samples in a fit, after 30 marks."""
    if len(task.later) < 100:
        return []
    groups = groups_of(task, suite)
    rows = np.zeros(0, dtype=np.intp)
    spread = Spread.fit(task.votes, groups.cells, rows, rows)
    for _ in range(3):
        given = spread, task.votes, groups.cells, groups.central, rows, 10
        rows = np.append(rows, most_useful(*given).rows)
        spread = Spread.fit(task.votes, groups.cells, rows, task.truth[rows])
    names = np.append(task.classes, UNKNOWN)
    place = {name: number for number, name in enumerate(names.tolist())}
    lines = []
    for kind, more in (("predict", False), ("fitted", True)):
        fitted = task.fit(rows, task.truth[rows], more)
        found = fitted.transduction_[len(task.target) :] if more else fitted.predict(task.later)
        labels = np.array([place[name] for name in found.tolist()])
        hos = task.hos(labels, task.later_truth)
        lines.append({"kind": kind, "seed": "0", "marks": "30", "hos": f"{hos:.4f}"})
    return lines


def read(path: Path) -> list[Row]:
    """Return what was measured."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def mean_hos(rows: Sequence[Row], suite: str, kind: str, count: int) -> float:
    """Return the mean HOS over the tasks and seeds of a suite."""
    own = [r for r in rows if (r["suite"], r["kind"], r["marks"]) == (suite, kind, str(count))]
    return fmean(float(row["hos"]) for row in own) if own else float("nan")


def tables(rows: list[Row]) -> dict[str, str]:
    """Return the tables of the page."""
    suites = [suite for suite in SUITES if any(row["suite"] == suite for row in rows)]
    asked = {
        "no marks": ("none", 0),
        **{f"useful, {count}": ("useful", count) for count in (10, 30, 60)},
        **{f"random, {count}": ("random", count) for count in (10, 30, 60)},
        **{f"least confident, {count}": ("unsure", count) for count in (10, 30, 60)},
        **{f"without the source, {count}": ("alone", count) for count in (10, 30, 60)},
        "useful, 30, three of them wrong": ("wrong", 30),
    }
    cells = []
    for name, (kind, count) in asked.items():
        values = [mean_hos(rows, suite, kind, count) for suite in suites]
        cells.append([name, *(f"{value:.1f}" for value in values), f"{fmean(values):.1f}"])
    return {"marks": markdown(["marks", *suites, "mean"], cells)}


def bars(rows: list[Row]) -> None:
    """Print the figures that the review has to reach."""
    before = {(r["suite"], r["task"]): float(r["hos"]) for r in rows if r["kind"] == "none"}
    useful = [r for r in rows if r["kind"] == "useful"]
    chosen = [r for r in useful if r["marks"] in ("10", "30", "60")]
    worse = [r for r in chosen if float(r["hos"]) < before[r["suite"], r["task"]] - 1]
    print(f"\nworse by more than 1: {len(worse)} of {len(chosen)}")
    for row in worse:
        print("  ", row["suite"], row["task"], row["marks"], row["hos"])
    for count in ("10", "30", "60"):
        own = [r for r in useful if r["marks"] == count]
        error = fmean(abs(float(r["share"]) - float(r["true"])) for r in own)
        holds = fmean(float(r["low"]) <= float(r["true"]) <= float(r["high"]) for r in own)
        widths = [float(r["high"]) - float(r["low"]) for r in own]
        print(
            f"share after {count}: error {error:.3f}, interval holds {holds:.2f}, width "
            f"{fmean(widths):.2f}, at most {max(widths):.2f}"
        )
    by_place = {(r["suite"], r["task"], int(r["marks"])): r for r in useful}
    for count in COUNTS[:-1]:
        pairs = [
            (
                expected_gain(float(row["gain"])),
                float(by_place[suite, task, count + 10]["accuracy"]),
            )
            for (suite, task, at), row in by_place.items()
            if at == count
        ]
        now = [float(r["accuracy"]) for r in useful if r["marks"] == str(count)]
        real = fmean(after for _, after in pairs) - fmean(now)
        print(f"gain after {count}: expected {100 * fmean(g for g, _ in pairs):.1f}, {real:.1f}")
    for kind in ("predict", "fitted"):
        own = [float(r["hos"]) for r in rows if r["kind"] == kind]
        if own:
            print(f"later samples, {kind}: {fmean(own):.1f} ({len(own)} tasks)")


def draw(rows: list[Row], path: Path) -> None:
    """Draw the mean HOS by number of marks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "marks"
    suites = [suite for suite in SUITES if any(row["suite"] == suite for row in rows)]
    names = {"useful": "most useful", "random": "random", "unsure": "least confident"}
    figure, axes = plt.subplots(2, 3, figsize=(9, 5), sharex=True, sharey=True)
    for axis, suite in zip(axes.flat, suites, strict=False):
        first = mean_hos(rows, suite, "none", 0)
        for kind, label in names.items():
            values = [first, *(mean_hos(rows, suite, kind, count) for count in COUNTS)]
            axis.plot([0, *COUNTS], values, marker="o", markersize=3, label=label)
        values = [mean_hos(rows, suite, "alone", count) for count in (10, 30, 60)]
        axis.plot((10, 30, 60), values, "k:", marker=".", label="marks alone, no source")
        axis.set_title(suite, fontsize=10)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=7, loc="lower right")
    figure.supxlabel("marks")
    figure.supylabel("HOS, %")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure what is missing, print the tables and the bars."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--suites", nargs="+", default=list(SUITES), choices=SUITES)
    parser.add_argument("--rows", type=int, default=800, help="of each domain, at most")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where fits are kept")
    parser.add_argument("--figures", type=Path, default=FIGURES)
    parser.add_argument("--later", action="store_true", help="also later samples: fits again")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="write table and chart into the docs")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for suite in () if given.show else given.suites:
        for name, task in tasks_of(suite, given.data, given.cache, given.rows):
            kept = read(given.figures)
            done = {row["kind"] for row in kept if (row["suite"], row["task"]) == (suite, name)}
            lines = [] if "useful" in done else measure(task, suite)
            if given.later and "predict" not in done:
                lines += later(task, suite)
            is_new = not given.figures.exists()
            with given.figures.open("a", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                if is_new:
                    writer.writeheader()
                writer.writerows({"suite": suite, "task": name, **line} for line in lines)
            print(suite, name, len(lines), flush=True)
    rows = read(given.figures)
    made = tables(rows)
    for table_name, text in made.items():
        print(f"\n{table_name}\n\n{text}")
    bars(rows)
    if given.write:
        PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
        draw(rows, CHART)


if __name__ == "__main__":
    main()
