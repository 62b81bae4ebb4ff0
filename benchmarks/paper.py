"""The paper's settings, without each of their parts, and step by step towards the default.

    python benchmarks/paper.py                       # every run that is missing, then the tables
    python benchmarks/paper.py --parts path --tasks A-D --backbones resnet50        # some of them
    python benchmarks/paper.py --tables --write      # from the kept figures, into the pages

Office-31 features, oracle openness, one seed. *Ablations*: the preset `paper-office-home` without
each part (`PGLSettings.ablations`). *Path*: the same preset, which each row brings closer to the
default, on top of the rows above it; the last row is the default. The rows of the preset itself in
the table of all methods are those of `rivals.py --methods pgl-paper`; both share their runs.
Figures are kept in benchmarks/figures/paper.csv. Minutes per run on one core, and the larger
the target, the longer: an interrupted call is resumed.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from office31 import BACKBONES, DATA, TASKS
from opensetda.benchmark.grid import TRUE, Cell, n_finished, run_grid
from opensetda.benchmark.tasks import find_tasks
from opensetda.benchmark.variants import PAPER, Variant
from opensetda.pgl.settings import PGLSettings
from published import fill
from rivals import FIGURES, RESULTS, TITLES, Row

PAGE = Path(__file__).resolve().parent.parent / "docs" / "experiments.md"
OUT = FIGURES / "paper.csv"
LABEL, PRESET = next(iter(PAPER.items()))
METRICS = ("hos", "os_star", "unk", "auroc", "cpu_seconds")
COLUMNS = ("part", "variant", "backbone", "task", *METRICS)
# The settings that do nothing once an earlier row has changed others go with that row.
PATH: dict[str, dict[str, Any]] = {
    "rows of unit length, own centring, 64 half-whitened components": {
        "alignment.normalise": True,
        "alignment.centring": "own",
        "alignment.components": 64,
        "alignment.whitening": 0.5,
    },
    "cosine edges to 10 neighbours and class means": {
        "graph.form": "anchored",
        "graph.normalisation": "layer",
        "graph.neighbours": 10,
        "graph.node_width": 64,
        "graph.dropout": 0,
        "losses.edge_target": "affinity",
    },
    "ranked by the cosine, not the softmax": {"ranking.confidence": "similarity"},
    "all targets and 640 sources in one graph": {
        "ranking.graph_targets": 1024,
        "ranking.support_nodes": 640,
    },
    "training graphs of 160 nodes, queries with pseudo-labels": {
        "episodes.episodes": 8,
        "episodes.node_limit": 256,
        "episodes.classes": 100,
        "episodes.labelled_queries": True,
    },
    "no losses": {
        "losses.node": 0,
        "losses.edge": 0,
        "losses.adversary": 0,
        "optimiser.first_step_epochs": 0,
        "optimiser.epochs_per_step": 1,
        "optimiser.iterations_per_epoch": 30,
        "optimiser.decay": 1,
        "finetune.averaged": 4,
        "finetune.batch_norm": "frozen",
    },
    "10 steps": {"steps": 10},
    "class means move half way": {"episodes.mix_up_limit": 0.5},
    "classes balanced": {"ranking.class_balance": 0.5},
    "adapter by the spread within classes": {"graph.scatter_ridge": 0.3},
    "a stable step is kept": {"stopping.band": 0.1},
}
DEFAULT = "scaling of columns chosen: the default"


def variants(part: str) -> dict[str, Variant]:
    """Return the rows of a table: the paper's settings first, then what is changed in them."""
    rows = {LABEL: Variant(LABEL, "pgl", PRESET)}
    changes: dict[str, Any] = {}
    for name, change in (PATH if part == "path" else PGLSettings.ablations()).items():
        changes = changes | change if part == "path" else change
        rows[name] = Variant(name, "pgl", PRESET, tuple(sorted(changes.items())))
    if part == "path":
        rows[DEFAULT] = Variant(DEFAULT, "pgl")
    return rows


PARTS = ("ablations", "path")


def main() -> None:
    """Run what is missing, keep the figures, show or write the tables."""
    options = _options()
    if not options.tables:
        if not options.data.is_dir():
            sys.exit(f"error: {options.data} does not exist; name the features' folder with --data")
        for backbone in options.backbones:
            for part in options.parts:
                for row in measure(part, backbone, options):
                    keep(row)
                    print(f"{backbone} {row['task']} {row['variant']}: {row['hos']}", flush=True)
    rows = read_figures()
    for name, table in tables(rows).items():
        print(f"{name}\n\n{table}")
    if options.write:
        PAGE.write_text(filled_page(rows), encoding="utf-8")


def measure(part: str, backbone: str, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the figures of every row and task, those that are finished from their files."""
    tasks = find_tasks("office31", options.data / backbone)
    out = options.results / f"rivals-{backbone}"
    for task in options.tasks:
        for name, variant in variants(part).items():
            cell = Cell(variant, "-".join(TASKS[task]), TRUE, 0)
            if options.finished and not n_finished(tasks, [cell], out):
                continue
            (found,) = run_grid(tasks, [cell], out).rows
            if found["error"] is not None:
                print(f"{backbone} {task} {name}: failed, {found['error']}")
                continue
            place = {"part": part, "variant": name, "backbone": backbone, "task": task}
            yield place | {metric: f"{found[metric]:.4f}" for metric in METRICS}


def keep(row: Row) -> None:
    """Write a row into the file, in the place of an earlier one."""
    place = COLUMNS[: -len(METRICS)]
    others = [old for old in read_figures() if any(old[name] != row[name] for name in place)]
    order = {part: list(variants(part)) for part in PARTS}
    rows = sorted(
        [*others, row],
        key=lambda r: (
            *(PARTS.index(r["part"]), BACKBONES.index(r["backbone"])),
            *(order[r["part"]].index(r["variant"]), list(TASKS).index(r["task"])),
        ),
    )
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_figures() -> list[Row]:
    """Read what was measured."""
    if not OUT.is_file():
        return []
    with OUT.open(newline="") as file:
        return list(csv.DictReader(file))


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Return the table of each part, by the name of its place in the page."""
    return {f"paper-{part}": _table([r for r in rows if r["part"] == part], part) for part in PARTS}


def _table(rows: Sequence[Row], part: str) -> str:
    """Return HOS of every task, and the means over tasks of all figures."""
    places = dict.fromkeys((row["backbone"], row["task"]) for row in rows)
    heads = [f"{TITLES[backbone]}, {task}" for backbone, task in places]
    lines = [["settings", *heads, "mean", "OS*", "UNK", "AUROC", "processor seconds"]]
    lines.append(["---"] * len(lines[0]))
    for name in variants(part):
        own = {(r["backbone"], r["task"]): r for r in rows if r["variant"] == name}
        if not own:
            continue
        cells = [f"{100 * float(own[p]['hos']):.1f}" if p in own else "-" for p in places]
        whole = len(own) == len(places)
        means = [
            f"{100 * fmean(float(r[metric]) for r in own.values()):.1f}" if whole else "-"
            for metric in METRICS[:-1]
        ]
        seconds = f"{fmean(float(r['cpu_seconds']) for r in own.values()):.0f}" if whole else "-"
        sign = "+ " if part == "path" and name != LABEL else ""
        lines.append([f"{sign}{name}", *cells, *means, seconds])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def filled_page(rows: Sequence[Row]) -> str:
    """Return the page with the tables between their markers."""
    filled: dict[str, str | None] = {**tables(rows)}
    return fill(PAGE.read_text(encoding="utf-8"), filled)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--tasks", nargs="+", default=["A-D", "W-D"], choices=TASKS)
    parser.add_argument("--backbones", nargs="+", default=BACKBONES[:1], choices=BACKBONES)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--finished", action="store_true", help="start no run, read finished ones")
    parser.add_argument("--tables", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="write the tables into the page")
    return parser.parse_args()


if __name__ == "__main__":
    main()
