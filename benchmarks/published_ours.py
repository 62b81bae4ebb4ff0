"""Our own figures beside the published ones, also on the classes that others chose.

    python benchmarks/published_ours.py                             # PGL, both shares, 3 seeds
    python benchmarks/published_ours.py --methods pgl class-means --seeds 0

On Office-31 papers agree on the images, not on the classes: the 10 known ones are the first of
the alphabet or those that Caltech-256 has, too, and some have 20 known or 21 unknown classes.
This runs methods on each choice (frozen features, true share of unknowns and estimated one) and
writes --results/published-classes.csv, from which published.py fills docs/published.md.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from office31 import DATA, TASKS, fit_and_evaluate
from opensetda.data.benchmarks.protocols import ClassSplit, OpenSetTask, open_set_task
from opensetda.runs.methods import build_method
from published_figures import (
    OFFICE_31_TASKS,
    Figure,
    cell,
    markdown,
    methods_of,
    of,
    read_rows,
)

RESULTS = Path(__file__).resolve().parent / "figures"
METRICS = ("hos", "os_star", "unk")
COLUMNS = ("backbone", "openness", "method", "task", *METRICS)
CALTECH = (
    *("back_pack", "bike", "calculator", "headphones", "keyboard"),
    *("laptop_computer", "monitor", "mouse", "mug", "projector"),
)
"""The classes of Office-31 that Caltech-256 has, too."""
CHOICES = {
    "first 10 / last 11": ("oslpp",),
    "first 20 / last 11": ("tllib",),
    "Caltech's 10 / last 11": ("glc",),
    "Caltech's 10 / other 21": ("uniood",),
}
"""Known and unknown classes, and who has chosen them."""


def choose_classes(choice: str, classes: Iterable[str]) -> ClassSplit:
    """Return the known and unknown classes of a choice; "last" is the alphabet's end."""
    names = sorted(set(classes))
    known_words, unknown_words = choice.split(" / ")
    n_known, n_unknown = int(known_words.split()[-1]), int(unknown_words.split()[-1])
    known = CALTECH if known_words.startswith("Caltech") else names[:n_known]
    others = [name for name in names if name not in known]
    return ClassSplit(known=tuple(known), unknown=tuple(others[len(others) - n_unknown :]))


def load_task(folder: Path, choice: str, source: str, target: str) -> OpenSetTask:
    """Read two domains of Office-31 features and apply a choice of classes."""
    domains = []
    for name in (source, target):
        with np.load(folder / f"{name}.npz") as file:
            domains.append((file["X"].astype(np.float32), file["classes"][file["y"]]))
            classes = file["classes"].tolist()
    return open_set_task(domains[0], domains[1], choose_classes(choice, classes))


# Measuring ---------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every method on every choice of classes and write one row per task, and the mean."""
    options = _options(arguments)
    if not options.data.is_dir():
        sys.exit(f"error: {options.data} does not exist; name the features' folder with --data")
    options.results.mkdir(parents=True, exist_ok=True)
    with (options.results / "published-classes.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ("classes", *COLUMNS), lineterminator="\n")
        writer.writeheader()
        for choice in CHOICES:
            for method in options.methods:
                for openness in options.openness:
                    rows = list(_measure(options, choice, method, openness))
                    mean = {name: fmean(row[name] for row in rows) for name in METRICS}
                    writer.writerows([*rows, {**rows[0], "task": "mean", **mean}])
                    file.flush()
                    print(
                        f"{choice:<26}{method:<20}{openness:<6}{100 * mean['hos']:6.1f}", flush=True
                    )


def _measure(
    options: argparse.Namespace, choice: str, method: str, openness: str
) -> Iterable[dict[str, object]]:
    for name in options.tasks:
        task = load_task(options.data / options.backbone, choice, *TASKS[name])
        share = task.openness if openness == "true" else "auto"
        runs = [
            fit_and_evaluate(
                build_method(method, openness=share, preset="default", changes={}, seed=seed), task
            )
            for seed in options.seeds
        ]
        figures = {metric: fmean(getattr(run, metric) for run in runs) for metric in METRICS}
        place = dict(zip(COLUMNS, (options.backbone, openness, method, name), strict=False))
        yield {"classes": choice, **place, **figures}


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--methods", nargs="+", default=["pgl"])
    parser.add_argument("--openness", nargs="+", default=["true", "auto"], choices=["true", "auto"])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args(arguments)


# Tables ------------------------------------------------------------------------------------


def read_ours(path: Path, columns: Sequence[str] = COLUMNS) -> list[dict[str, str]]:
    """Read our figures, made percent if the file has fractions; tasks become "A-D"."""
    rows = read_rows(path, columns)
    scale = 100 if all(float(row[name]) <= 1 for row in rows for name in METRICS) else 1
    short = {"-".join(domains): name for name, domains in TASKS.items()}
    return [
        {
            **row,
            "task": short.get(row["task"], row["task"]),
            **{name: str(scale * float(row[name])) for name in METRICS},
        }
        for row in rows
    ]


def ours_office_31(results: Path, figures: Sequence[Figure]) -> str | None:
    """Return our methods beside those published on the same classes; None if not measured."""
    rows = [row for path in sorted(results.glob("rivals-*.csv")) for row in read_ours(path)]
    if not rows:
        return None
    lines = []
    for (_, method), own in methods_of(of(figures, "office-31", "oslpp")).items():
        by_task = {f.task: f.hos for f in own}
        mean = own[-1]
        values = [*(by_task[task] for task in OFFICE_31_TASKS), mean.hos, mean.os_star, mean.unk]
        lines.append(["ResNet-50", f"{method}, published", *map(cell, values), "-"])
    backbones = dict.fromkeys(row["backbone"] for row in rows)
    for backbone in backbones:
        lines += _ours_of(backbone, [row for row in rows if row["backbone"] == backbone])
    header = ["features", "method", *OFFICE_31_TASKS, "mean", "OS*", "UNK", "estimated openness"]
    return markdown(header, lines)


def _ours_of(backbone: str, rows: Sequence[dict[str, str]]) -> list[list[str]]:
    found: dict[str, dict[tuple[str, str], dict[str, str]]] = {}
    for row in rows:
        found.setdefault(row["method"], {})[row["openness"], row["task"]] = row

    def value(method: str, openness: str, task: str, metric: str = "hos") -> float | None:
        row = found[method].get((openness, task))
        return None if row is None else float(row[metric])

    def rank(method: str) -> float:
        return value(method, "true", "mean") or value(method, "auto", "mean") or 0.0

    best = {
        openness: max((value(method, openness, "mean") or 0.0 for method in found), default=0.0)
        for openness in ("true", "auto")
    }
    lines = []
    for method in sorted(found, key=rank, reverse=True):
        oracle = value(method, "true", "mean")
        guessed = value(method, "auto", "mean")
        lines.append(
            [
                backbone,
                method,
                *(cell(value(method, "true", task)) for task in OFFICE_31_TASKS),
                _bold(oracle, best["true"]),
                cell(value(method, "true", "mean", "os_star")),
                cell(value(method, "true", "mean", "unk")),
                _bold(guessed, best["auto"]),
            ]
        )
    return lines


def _bold(value: float | None, best: float) -> str:
    return f"**{cell(value)}**" if value is not None and value == best else cell(value)


def ours_other_classes(results: Path, figures: Sequence[Figure]) -> str | None:
    """Return our methods on the classes of others, and what those have published."""
    path = results / "published-classes.csv"
    if not path.is_file():
        return None
    lines = []
    rows = [r for r in read_ours(path, ("classes", *COLUMNS)) if r["task"] == "mean"]
    for choice, who in CHOICES.items():
        published = [
            f"{f.method} {cell(f.hos)}"
            for source in who
            for f in of(figures, "office-31", source)
            if f.task == "mean"
        ]
        own = {
            (r["method"], r["openness"]): float(r["hos"]) for r in rows if r["classes"] == choice
        }
        for method in dict.fromkeys(method for method, _ in own):
            values = [cell(own.get((method, openness))) for openness in ("true", "auto")]
            lines.append([choice, ", ".join(published), method, *values])
    header = ["known / unknown classes", "published HOS", "ours"]
    return markdown([*header, "oracle openness", "estimated openness"], lines)


if __name__ == "__main__":
    main()
