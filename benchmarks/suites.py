"""Methods on suites of several fields: images, speech, sensors, text; an interrupted call goes on.

    python benchmarks/suites.py                                 # all methods of the table
    python benchmarks/suites.py --methods moving-means          # one method
    python benchmarks/suites.py --methods osbp --seeds 3 --suites office31-lite0
    python benchmarks/suites.py --show --write                  # measured figures into the docs

Every method gets the same help. With the true share of unknowns it is run with its columns as
given, standardised and as ranks; the scaling with the best mean over all suites is its own, for
both tables, and is printed. Methods that do not align the domains themselves (`UNALIGNED`) are also
run on rows that are aligned after the scaling. The estimated share is measured with the chosen
help. The members of the committee have scalings of their own.

One `osda benchmark` grid per suite, in --results/SUITE. Tables: mean HOS in % over the tasks (and
seeds) of each suite, the mean of all suites, and processor seconds per fit. Figures are kept in
figures/suites.csv, with the largest share of fitted targets of a task to which `predict` gives
another label (`differs`). Of a suite --tasks tasks are measured, and of each domain at most --rows
rows, both drawn once: a call with more tasks adds to those of one with fewer. The figures in the
file are of --tasks 3.
--data has office31-features/BACKBONE/DOMAIN.npz and suites/NAME/DOMAIN.npz (X, y, classes), the
latter with a tasks.json: pairs of domains, and the indices of the known classes.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from opensetda.benchmark.grid import AUTO, OK, TRUE, grid_cells, run_grid
from opensetda.benchmark.tasks import TaskSet, find_tasks, read_all
from opensetda.benchmark.variants import Variant, make_variants
from opensetda.data.benchmarks.protocols import ClassSplit, OpenSetTask, open_set_task
from opensetda.features.alignment import Alignment
from opensetda.features.scaling import NONE, Scaling
from opensetda.runs.registry import method_class
from opensetda.usecases.fit_rows import read_rows_of
from published import fill, markdown

FOLDER = Path(__file__).resolve().parent
DATA = FOLDER.parents[1] / "shared" / "data"
FIGURES = FOLDER / "figures" / "suites.csv"
PAGE, README = FOLDER.parent / "docs" / "results.md", FOLDER.parent / "README.md"
OFFICE31 = {"office31-lite0": "efficientnet-lite0", "office31-resnet50": "resnet50"}
SUITES = (*OFFICE31, "pacs", "fsdd", "gas", "news2")
OPENNESS = {TRUE: "oracle openness", AUTO: "estimated openness"}
# Quick ones first.
METHODS = (
    *("source-only", "class-means", "smoothed-means", "daod", "moving-means", "ati", "oslpp"),
    *("committee", "mmd", "dann", "ovanet", "sta", "osbp", "uniot", "pgl"),
)
UNALIGNED = ("source-only", "oslpp")
TASKS, ROWS = 3, 800
HELP = ("scaling", "aligned")
METRICS = ("hos", "os_star", "unk", "auroc", "cpu_seconds")
WHERE = ("suite", "openness", "method", *HELP)
COLUMNS = (*WHERE, "runs", *METRICS, "differs")
WORDS = {"none": "as given", "standard": "standardised", "ranks": "ranks"}
Row = dict[str, str]
Help = tuple[str, str]
"""A scaling, and "yes" if rows are aligned then."""


# The data -----------------------------------------------------------------------------------


def find_suite(
    suite: str, data: Path, n_tasks: int | None = None, most_rows: int | None = None
) -> TaskSet | None:
    """Return the tasks of a suite, by default all of them and all rows; None if not there."""
    if suite in OFFICE31:
        folder = data / "office31-features" / OFFICE31[suite]
        found = find_tasks("office31", folder) if folder.is_dir() else None
    else:
        found = _find_own(suite, data / "suites" / suite)
    if found is None or (n_tasks is None and most_rows is None):
        return found
    # The same order for any number, so that more tasks can be added later.
    order = np.random.default_rng(0).permutation(len(found.tasks))
    names = [found.tasks[place] for place in sorted(order[:n_tasks])]
    read = partial(read_fewer_rows, read=found.read, most=most_rows or sys.maxsize)
    return read_all(suite, names, read)


def _find_own(suite: str, folder: Path) -> TaskSet | None:
    if not folder.is_dir():
        return None
    listing = json.loads((folder / "tasks.json").read_text(encoding="utf-8"))
    pairs = {"-".join(pair): pair for pair in listing["tasks"]}
    read = partial(read_task, folder=folder, pairs=pairs, known=listing["known"])
    return read_all(suite, pairs, read)


def read_task(
    name: str,
    folder: Path,
    pairs: dict[str, Sequence[str]],
    known: Sequence[int],
    warnings: list[str] | None = None,
) -> OpenSetTask:
    """Read two domains: the source keeps the known classes, the target keeps all."""
    domains = []
    for domain in pairs[name]:
        with np.load(folder / f"{domain}.npz") as file:
            classes = file["classes"]
            domains.append((file["X"].astype(np.float32), classes[file["y"]]))
    names = [str(label) for label in classes]
    split = [names[index] for index in known]
    unknown = tuple(label for label in names if label not in split)
    return open_set_task(domains[0], domains[1], ClassSplit(tuple(split), unknown))


def read_fewer_rows(
    name: str,
    read: Callable[..., OpenSetTask],
    most: int,
    warnings: list[str] | None = None,
) -> OpenSetTask:
    """Read at most so many rows of either domain, always the same ones, in their order."""
    task = read(name)
    rng = np.random.default_rng(0)
    source = np.sort(rng.permutation(len(task.source_labels))[:most])
    target = np.sort(rng.permutation(len(task.target_truth))[:most])
    return replace(
        task,
        source_features=task.source_features[source],
        source_labels=task.source_labels[source],
        target_features=task.target_features[target],
        target_truth=task.target_truth[target],
    )


def aligned_task(
    name: str,
    read: Callable[..., OpenSetTask],
    scaling: str,
    warnings: list[str] | None = None,
) -> OpenSetTask:
    """Read a task, scale its rows and align its domains, without any label."""
    task = read(name)
    domains = read_rows_of(task.source_features, task.source_labels, task.target_features)
    _, scaled = Scaling.applied(scaling, domains)
    alignment = Alignment.fit(scaled.source, scaled.target)
    return replace(
        task,
        source_features=alignment.source(scaled.source),
        target_features=alignment.target(scaled.target),
    )


# Measuring ----------------------------------------------------------------------------------


class Suites:
    """The suites of a call, each read once."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self._found: dict[tuple[str, str], TaskSet | None] = {}

    def tasks(self, suite: str, aligned_after: str = "") -> TaskSet | None:
        """Return the tasks of a suite, perhaps aligned after a scaling; None if not there."""
        key = suite, aligned_after
        if key not in self._found:
            self._found[key] = self._read(suite, aligned_after)
        return self._found[key]

    def _read(self, suite: str, aligned_after: str) -> TaskSet | None:
        if not aligned_after:
            found = find_suite(suite, self.options.data, self.options.tasks, self.options.rows)
            if found is None:
                print(f"{suite}: not in {self.options.data}, left out; name its folder: --data")
            return found
        plain = self.tasks(suite)
        if plain is None:
            return None
        read = partial(aligned_task, read=plain.read, scaling=aligned_after)
        return read_all(f"{suite}-{aligned_after}-aligned", plain.tasks, read)

    def measure(self, method: str, how: Help, openness: str) -> list[Row]:
        """Run what is missing of a method, and return a line for each suite."""
        scaling, aligned = how
        lines = []
        for suite in self.options.suites:
            tasks = self.tasks(suite, scaling if aligned else "")
            if tasks is None:
                continue
            variant = make_variants([method])[0]
            variant = replace(variant, scaling=NONE if aligned else scaling)
            folder = f"{suite}-{scaling}-aligned" if aligned else suite
            rows = self._run(tasks, variant, openness, folder)
            if all(row["status"] == OK for row in rows):
                lines.append(_line((suite, openness, method, *how), rows))
        return lines

    def _run(
        self, tasks: TaskSet, variant: Variant, openness: str, folder: str
    ) -> list[dict[str, Any]]:
        cells = grid_cells([variant], tasks.tasks, [openness], range(self.options.seeds))
        out = self.options.results / folder
        return run_grid(tasks, cells, out, self.options.jobs, _tell)


def _tell(done: int, total: int, row: dict[str, Any] | None) -> None:
    if row is not None:
        what = row["error"] or f"{row['scaling']}, HOS {100 * row['hos']:.1f}"
        print(f"{done}/{total}: {row['method']} {row['task']} {what}", flush=True)


def _line(where: tuple[str, ...], rows: Sequence[dict[str, Any]]) -> Row:
    """Return means over the tasks."""
    line = dict(zip(WHERE, where, strict=True)) | {"runs": str(len(rows))}
    line |= {name: f"{fmean(row[name] for row in rows):.4f}" for name in METRICS}
    line["differs"] = f"{max(row['differs'] for row in rows):.4f}"
    return line


def helps(method: str) -> list[Help]:
    """Return what a method may be given: scalings, and the alignment if it has none."""
    scalings = method_class(method).scalings
    aligned = ("", "yes") if method in UNALIGNED else ("",)
    return [(scaling, own) for own in aligned for scaling in scalings]


def chosen_help(lines: Sequence[Row], method: str) -> Help | None:
    """Return the help with the best mean over all suites, by the true share of unknowns."""
    means = {}
    for how in helps(method):
        values = [
            float(row["hos"])
            for row in lines
            if (row["openness"], row["method"], row["scaling"], row["aligned"])
            == (TRUE, method, *how)
        ]
        if len(values) == len(SUITES):
            means[how] = fmean(values)
    # Not before all have been measured.
    return max(means, key=lambda how: means[how]) if len(means) == len(helps(method)) else None


def measure_method(suites: Suites, method: str, path: Path) -> None:
    """Measure a method with every help by the true share, then by an estimate with the best."""
    for how in helps(method):
        keep(suites.measure(method, how, TRUE), path)
    if best := chosen_help(read_figures(path), method):
        keep(suites.measure(method, best, AUTO), path)


# Figures and tables -------------------------------------------------------------------------


def read_figures(path: Path = FIGURES) -> list[Row]:
    """Return the lines that were measured."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def keep(lines: Sequence[Row], path: Path) -> list[Row]:
    """Replace or add lines, and return all."""
    kept = {tuple(row[name] for name in WHERE): row for row in [*read_figures(path), *lines]}
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept.values())
    return list(kept.values())


def of_chosen(lines: Sequence[Row]) -> dict[str, tuple[Help, list[Row]]]:
    """Return the chosen help of each method that was measured on all suites, and its lines."""
    found = {}
    for method in METHODS:
        if how := chosen_help(lines, method):
            own = [
                row
                for row in lines
                if row["method"] == method and (row["scaling"], row["aligned"]) == how
            ]
            if len(own) == len(OPENNESS) * len(SUITES):
                found[method] = how, own
    return found


def in_words(method: str, how: Help) -> str:
    """Return a help as the tables have it."""
    scaling, aligned = how
    if method == "committee":
        return "its members'"
    return WORDS[scaling] + (", aligned" if aligned else "")


def table(lines: Sequence[Row], openness: str, name: str = "hos", scale: float = 100) -> str:
    """Return a figure of each method by suite, and the mean of all suites, in Markdown."""
    texts = []
    for method, (how, own) in of_chosen(lines).items():
        found = {
            row["suite"]: scale * float(row[name]) for row in own if row["openness"] == openness
        }
        values = [found[suite] for suite in SUITES]
        numbers = [f"{value:.1f}" for value in (*values, fmean(values))]
        texts.append([method, in_words(method, how), *numbers])
    texts.sort(key=lambda cells: -float(cells[-1]))
    return markdown(["method", "columns", *SUITES, "mean"], texts)


def scaling_table(lines: Sequence[Row]) -> str:
    """Return the mean HOS over all suites of each method with every help, by the true share."""
    every: list[Help] = [(scaling, own) for own in ("", "yes") for scaling in WORDS]
    texts = []
    for method in of_chosen(lines):
        cells = [method]
        for how in every:
            values = [
                100 * float(row["hos"])
                for row in lines
                if (row["openness"], row["method"], row["scaling"], row["aligned"])
                == (TRUE, method, *how)
            ]
            text = f"{fmean(values):.1f}" if values else ""
            cells.append(f"**{text}**" if how == chosen_help(lines, method) else text)
        texts.append(cells)
    return markdown(["method", *(in_words("", how) for how in every)], texts)


def short_table(lines: Sequence[Row]) -> str:
    """Return HOS on Office-31, and the mean of all suites, of every method."""
    columns = {
        f"{name}, {OPENNESS[share]}": (share, (name,)) for name in OFFICE31 for share in OPENNESS
    }
    columns |= {f"six suites, {OPENNESS[share]}": (share, SUITES) for share in OPENNESS}
    texts = []
    for method, (how, own) in of_chosen(lines).items():
        found = {(row["openness"], row["suite"]): 100 * float(row["hos"]) for row in own}
        means = [fmean(found[share, name] for name in names) for share, names in columns.values()]
        texts.append([method, in_words(method, how), *(f"{mean:.1f}" for mean in means)])
    texts.sort(key=lambda cells: -float(cells[-2]))
    return markdown(["method", "columns", *columns], texts)


def pages(lines: Sequence[Row]) -> dict[Path, dict[str, str]]:
    """Return the tables of each page by their names."""
    made = {f"suites-{share}": table(lines, share) for share in OPENNESS}
    made["suites-scalings"] = scaling_table(lines)
    made["suites-seconds"] = table(lines, TRUE, "cpu_seconds", 1)
    return {PAGE: made, README: {"suites-short": short_table(lines)}}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=DATA)
    add("--suites", nargs="+", default=list(SUITES), choices=SUITES)
    add("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    add("--tasks", type=int, default=TASKS, help="of each suite")
    add("--rows", type=int, default=ROWS, help="of each domain, at most")
    add("--seeds", type=int, default=1, help="for methods that draw at random")
    add("--jobs", type=int, default=1)
    add("--results", type=Path, default=FOLDER / "results" / "suites")
    add("--figures", type=Path, default=FIGURES)
    add("--show", action="store_true", help="measure nothing")
    add("--write", action="store_true", help="write the tables into README and docs")
    options = parser.parse_args(arguments)
    suites = Suites(options)
    for method in () if options.show else options.methods:
        measure_method(suites, method, options.figures)
    for page, made in pages(read_figures(options.figures)).items():
        for name, text in made.items():
            print(f"\n{name}\n\n{text}")
        if options.write:
            page.write_text(fill(page.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
