"""Methods on suites of several fields: images, speech, sensors, text; an interrupted call goes on.

    python benchmarks/suites.py                                 # all methods of the table
    python benchmarks/suites.py --methods moving-means          # one method
    python benchmarks/suites.py --tasks 6 --rows 5000 --seeds 3
    python benchmarks/suites.py --show --write                  # measured figures into the docs

Every method gets the same help. With the true share of unknowns it is run with its columns as
given, standardised and as ranks; the scaling with the best mean over all suites is its own, for
both tables, and is printed. Methods that do not align the domains themselves (`UNALIGNED`) are also
run on rows that are aligned after the scaling; they, networks and PGL, which take longest, choose
on the first task of each suite. The members of the committee have scalings of their own. Networks
are trained once for both tables, as the share of unknowns has no part in their training.

Of a suite --tasks tasks are measured, and of each domain at most --rows rows, both drawn once: a
call with more tasks adds to those of one with fewer. Every fit is kept in --results. Tables: mean
HOS in % over the tasks (and seeds) of each suite, the mean of all suites, and processor seconds per
fit. figures/suites.csv has the figures: lines for "choice", one for each help, and for "table"; and
the largest share of fitted targets of a task to which `predict` gives another label (`differs`).
--data has office31-features/BACKBONE/DOMAIN.npz and suites/NAME/DOMAIN.npz (X, y, classes), the
latter with a tasks.json: pairs of domains, and the indices of the known classes.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from opensetda.benchmark.grid import AUTO, OK, TRUE, Cell, grid_cells, run_grid
from opensetda.benchmark.tasks import TaskSet, read_all
from opensetda.benchmark.variants import make_variants
from opensetda.features.scaling import NONE
from opensetda.methods.network import NetworkRival
from opensetda.runs.registry import method_class
from published import fill, markdown
from suite_data import DATA, OFFICE31, SUITES, aligned_task, find_suite
from trained_once import run_once

FOLDER = Path(__file__).resolve().parent
FIGURES = FOLDER / "figures" / "suites.csv"
PAGE, README = FOLDER.parent / "docs" / "results.md", FOLDER.parent / "README.md"
OPENNESS = {TRUE: "oracle openness", AUTO: "estimated openness"}
# Quick ones first.
METHODS = (
    *("source-only", "class-means", "smoothed-means", "daod", "moving-means", "ati", "oslpp"),
    *("committee", "mmd", "dann", "ovanet", "sta", "osbp", "uniot", "pgl"),
)
UNALIGNED = ("source-only", "oslpp")
LONG = (*UNALIGNED, "pgl")
CHOICE, TABLE = "choice", "table"
TASKS, ROWS = 3, 800
METRICS = ("hos", "os_star", "unk", "auroc", "cpu_seconds")
WHERE = ("suite", "openness", "method", "scaling", "aligned", "purpose")
COLUMNS = (*WHERE, "runs", *METRICS, "differs")
WORDS = {"none": "as given", "standard": "standardised", "ranks": "ranks"}
Row = dict[str, str]
Help = tuple[str, str]
"""A scaling, and "yes" if rows are aligned then."""


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

    def measure(self, method: str, how: Help, openness: str, purpose: str) -> list[Row]:
        """Run what is missing of a method, and return a line for each suite."""
        scaling, aligned = how
        lines = []
        for suite in self.options.suites:
            tasks = self.tasks(suite, scaling if aligned else "")
            if tasks is None:
                continue
            names = tasks.tasks
            if purpose == CHOICE and (is_network(method) or method in LONG):
                names = names[:1]
            variant = make_variants([method])[0]
            variant = replace(variant, scaling=NONE if aligned else scaling)
            cells = grid_cells([variant], names, [openness], range(self.options.seeds))
            folder = f"{suite}-{scaling}-aligned" if aligned else suite
            rows = self._run(tasks, cells, self.options.results / folder)
            if all(row["status"] == OK for row in rows):
                lines.append(_line((suite, openness, method, *how, purpose), rows))
        return lines

    def _run(self, tasks: TaskSet, cells: list[Cell], out: Path) -> list[dict[str, Any]]:
        if is_network(cells[0].variant.method):
            return run_once(tasks, cells, out / "once", _tell)
        return run_grid(tasks, cells, out, self.options.jobs, _tell)


def is_network(method: str) -> bool:
    """Return whether the share of unknowns has no part in the training, which takes long."""
    return issubclass(method_class(method), NetworkRival)


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
    aligned = ("", "yes") if method in UNALIGNED else ("",)
    return [(scaling, own) for own in aligned for scaling in method_class(method).scalings]


def means_of(lines: Sequence[Row], method: str) -> dict[Help, float]:
    """Return the mean HOS of each help by the true share, if it was measured on all suites."""
    found: dict[Help, list[float]] = {}
    for row in lines:
        if (row["method"], row["purpose"]) == (method, CHOICE):
            found.setdefault((row["scaling"], row["aligned"]), []).append(float(row["hos"]))
    return {how: fmean(values) for how, values in found.items() if len(values) == len(SUITES)}


def chosen_help(lines: Sequence[Row], method: str) -> Help | None:
    """Return the help with the best mean; None before all have been measured."""
    means = means_of(lines, method)
    return max(means, key=lambda how: means[how]) if {*means} == {*helps(method)} else None


def measure_method(suites: Suites, method: str, path: Path) -> None:
    """Measure a method with every help, then for both tables with the best."""
    for how in helps(method):
        keep(suites.measure(method, how, TRUE, CHOICE), path)
    if best := chosen_help(read_figures(path), method):
        for openness in OPENNESS:
            keep(suites.measure(method, best, openness, TABLE), path)


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


def of_tables(lines: Sequence[Row]) -> dict[str, tuple[Help, list[Row]]]:
    """Return the chosen help of each method that was measured on all suites, and its lines."""
    found = {}
    for method in METHODS:
        how = chosen_help(lines, method)
        own = [
            row
            for row in lines
            if (row["method"], row["purpose"]) == (method, TABLE)
            and (row["scaling"], row["aligned"]) == how
        ]
        if how and len(own) == len(OPENNESS) * len(SUITES):
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
    for method, (how, own) in of_tables(lines).items():
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
    for method, (chosen, _) in of_tables(lines).items():
        means = means_of(lines, method)
        cells = [method]
        for how in every:
            text = f"{100 * means[how]:.1f}" if how in means else ""
            cells.append(f"**{text}**" if how == chosen else text)
        texts.append(cells)
    header = ["method", *(in_words("", how) for how in every)]
    return markdown(header, texts) + not_measured(lines)


def short_table(lines: Sequence[Row]) -> str:
    """Return HOS on Office-31, and the mean of all suites, of every method."""
    columns = {
        f"{name}, {OPENNESS[share]}": (share, (name,)) for name in OFFICE31 for share in OPENNESS
    }
    columns |= {f"six suites, {OPENNESS[share]}": (share, SUITES) for share in OPENNESS}
    texts = []
    for method, (how, own) in of_tables(lines).items():
        found = {(row["openness"], row["suite"]): 100 * float(row["hos"]) for row in own}
        means = [fmean(found[share, name] for name in names) for share, names in columns.values()]
        texts.append([method, in_words(method, how), *(f"{mean:.1f}" for mean in means)])
    texts.sort(key=lambda cells: -float(cells[-2]))
    return markdown(["method", "columns", *columns], texts) + not_measured(lines)


def not_measured(lines: Sequence[Row]) -> str:
    """Return a sentence that names the methods that the tables lack; nothing if they lack none."""
    there = of_tables(lines)
    missing = [f"`{method}`" for method in METHODS if method not in there]
    return f"\nNot measured in this way yet: {', '.join(missing)}.\n" if missing else ""


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
