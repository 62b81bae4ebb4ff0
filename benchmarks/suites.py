"""Methods on suites of several fields: images, speech, sensors, text; an interrupted call goes on.

    python benchmarks/suites.py --openness true --methods moving-means   # the bars of MovingMeans
    python benchmarks/suites.py --openness true --methods pgl osbp --suites office31-lite0
    python benchmarks/suites.py                                   # all methods of the table
    python benchmarks/suites.py --show --write                    # measured figures into the docs

One `osda benchmark` grid per suite, in --results/SUITE. Tables: mean HOS in % over the tasks (and
seeds) of each suite, the mean of all suites, the largest share of fitted targets of a task to which
`predict` gives another label, and seconds per fit. Figures are kept in figures/suites.csv.
--data has office31-features/BACKBONE/DOMAIN.npz and suites/NAME/DOMAIN.npz (X, y, classes), the
latter with a tasks.json: pairs of domains, and the indices of the known classes.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from opensetda.benchmark.grid import OK, grid_cells, run_grid
from opensetda.benchmark.tasks import TaskSet, find_tasks, read_all
from opensetda.benchmark.variants import COMPARED, make_variants
from opensetda.data.benchmarks.protocols import ClassSplit, OpenSetTask, open_set_task
from published import fill, markdown

FOLDER = Path(__file__).resolve().parent
DATA = FOLDER.parents[1] / "shared" / "data"
FIGURES = FOLDER / "figures" / "suites.csv"
PAGE, README = FOLDER.parent / "docs" / "results.md", FOLDER.parent / "README.md"
OFFICE31 = {"office31-lite0": "efficientnet-lite0", "office31-resnet50": "resnet50"}
SUITES = (*OFFICE31, "pacs", "fsdd", "gas", "news2")
OPENNESS = {"true": "oracle openness", "auto": "estimated openness"}
METRICS = ("hos", "os_star", "unk", "auroc", "seconds")
COLUMNS = ("suite", "openness", "method", "runs", *METRICS, "differs")
Row = dict[str, str]


def find_suite(suite: str, data: Path) -> TaskSet | None:
    """Return the tasks of a suite; None if it is not there."""
    if suite in OFFICE31:
        folder = data / "office31-features" / OFFICE31[suite]
        return find_tasks("office31", folder) if folder.is_dir() else None
    folder = data / "suites" / suite
    if not folder.is_dir():
        return None
    listing = json.loads((folder / "tasks.json").read_text(encoding="utf-8"))
    pairs = {"-".join(pair): pair for pair in listing["tasks"]}
    return read_all(
        suite, pairs, partial(read_task, folder=folder, pairs=pairs, known=listing["known"])
    )


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


def measure(suite: str, options: argparse.Namespace) -> list[Row]:
    """Run what is missing of a suite, and return a line for each method and openness."""
    tasks = find_suite(suite, options.data)
    if tasks is None:
        print(f"{suite}: not in {options.data}, left out; name its folder with --data")
        return []
    variants = make_variants(options.methods)
    cells = grid_cells(variants, tasks.tasks, options.openness, range(options.seeds))
    rows = run_grid(tasks, cells, options.results / suite, options.jobs, _tell)
    lines = []
    for share in options.openness:
        for variant in variants:
            own = [r for r in rows if (r["method"], r["openness"]) == (variant.label, share)]
            lines += _line(suite, share, variant.label, own)
    return lines


def _tell(done: int, total: int, row: dict[str, Any] | None) -> None:
    if row is not None:
        what = row["error"] or f"HOS {100 * row['hos']:.1f}"
        print(f"{done}/{total}: {row['method']} {row['task']} {what}", flush=True)


def _line(suite: str, openness: str, method: str, rows: Sequence[dict[str, Any]]) -> list[Row]:
    """Return means over the tasks; nothing if a run failed: the rest would not compare."""
    if any(row["status"] != OK for row in rows):
        return []
    means = {name: f"{fmean(row[name] for row in rows):.4f}" for name in METRICS}
    where = {"suite": suite, "openness": openness, "method": method, "runs": str(len(rows))}
    return [where | means | {"differs": f"{max(row['differs'] for row in rows):.4f}"}]


def read_figures(path: Path = FIGURES) -> list[Row]:
    """Return the lines that were measured."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def keep(lines: Sequence[Row], path: Path) -> list[Row]:
    """Replace or add lines, and return all."""
    where = COLUMNS[:3]
    kept = {tuple(row[name] for name in where): row for row in [*read_figures(path), *lines]}
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept.values())
    return list(kept.values())


def table(lines: Sequence[Row], openness: str, name: str = "hos", scale: float = 100) -> str:
    """Return a figure of each method by suite, and the mean of all suites, in Markdown."""
    own = [row for row in lines if row["openness"] == openness]
    found = {(row["method"], row["suite"]): scale * float(row[name]) for row in own}
    texts = []
    for method in dict.fromkeys(row["method"] for row in own):
        values = [found.get((method, suite)) for suite in SUITES]
        there = [value for value in values if value is not None]
        mean = f"{fmean(there):.1f}" if len(there) == len(SUITES) else "-"
        texts.append([method, *("-" if v is None else f"{v:.1f}" for v in values), mean])
    texts.sort(key=lambda cells: -float(cells[-1].replace("-", "0")))
    return markdown(["method", *SUITES, "mean"], texts)


def short_table(lines: Sequence[Row]) -> str:
    """Return HOS on Office-31, and the mean of all suites, of the methods of the README."""
    found = {(r["method"], r["openness"], r["suite"]): 100 * float(r["hos"]) for r in lines}
    columns = {
        f"{name}, {OPENNESS[share]}": (share, (name,)) for name in OFFICE31 for share in OPENNESS
    }
    columns |= {f"six suites, {OPENNESS[share]}": (share, SUITES) for share in OPENNESS}
    texts = []
    for method in COMPARED:
        values = [
            [found.get((method, share, s)) for s in names] for share, names in columns.values()
        ]
        means = ["-" if None in own else f"{fmean(own):.1f}" for own in values]
        texts.append([method, *means])
    return markdown(["method", *columns], [cells for cells in texts if {*cells[1:]} != {"-"}])


def pages(lines: Sequence[Row]) -> dict[Path, dict[str, str]]:
    """Return the tables of each page by their names."""
    made = {f"suites-{share}": table(lines, share) for share in OPENNESS}
    made["suites-seconds"] = table(lines, "true", "seconds", 1)
    return {PAGE: made, README: {"suites-short": short_table(lines)}}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=DATA)
    add("--suites", nargs="+", default=list(SUITES), choices=SUITES)
    add("--methods", nargs="+", default=list(COMPARED))
    add("--openness", nargs="+", default=list(OPENNESS), choices=OPENNESS)
    add("--seeds", type=int, default=1, help="for methods that draw at random")
    add("--jobs", type=int, default=1)
    add("--results", type=Path, default=FOLDER / "results" / "suites")
    add("--figures", type=Path, default=FIGURES)
    add("--show", action="store_true", help="measure nothing")
    add("--write", action="store_true", help="write the tables into README and docs")
    options = parser.parse_args(arguments)
    lines = read_figures(options.figures)
    for suite in () if options.show else options.suites:
        lines = keep(measure(suite, options), options.figures)
    for page, made in pages(lines).items():
        for name, text in made.items():
            print(f"\n{name}\n\n{text}")
        if options.write:
            page.write_text(fill(page.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
