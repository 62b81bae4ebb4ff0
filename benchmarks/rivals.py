"""Every method in one table: Office-31 features, two backbones, oracle and estimated openness.

    python benchmarks/rivals.py             # both grids and the bars; about an hour on 2 cores
    python benchmarks/rivals.py --backbones resnet50 --methods pgl oslpp      # a part of it
    python benchmarks/rivals.py --methods pgl-paper --seeds 1 --jobs 1        # hours: only if named
    python benchmarks/rivals.py --write     # also write the tables of README.md, docs/rivals.md

Each grid is one `osda benchmark office31 --data FEATURES/BACKBONE`, as a user would type it; an
interrupted one is resumed. The figures are kept in benchmarks/figures/rivals-*.csv, where a part
replaces its own lines only; a method has a mean if it has all six tasks. `--tables` makes the
tables from these files, without measuring.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from office31 import BACKBONES, DATA, TASKS
from published import fill

FOLDER = Path(__file__).resolve().parent
FIGURES = FOLDER / "figures"
RESULTS = FOLDER / "results"
README = FOLDER.parent / "README.md"
PAGE = FOLDER.parent / "docs" / "rivals.md"
METRICS = ("hos", "os", "os_star", "unk", "all", "auroc", "seconds", "memory_mb")
COLUMNS = ("backbone", "openness", "method", "task", *METRICS, "deviation")
TITLES = {"efficientnet-lite0": "EfficientNet-Lite0", "resnet50": "ResNet-50"}
_SHOWN = ("os", "os_star", "unk", "all", "auroc")
OPENNESS = {"true": "oracle openness", "auto": "estimated openness"}
# The rows of README.md: PGL, three well-known open-set methods, and no adaptation at all.
IN_SHORT = ("pgl", "daod", "uniot", "osbp", "source-only")
Row = dict[str, str]


def main() -> None:
    """Run the grids, write their figures, show the bars."""
    options = _options()
    if not options.tables:
        if not options.data.is_dir():
            sys.exit(f"error: {options.data} does not exist; name the features' folder with --data")
        for backbone in options.backbones:
            _run(backbone, options)
    rows = [row for backbone in BACKBONES for row in read_figures(backbone)]
    if not rows:
        sys.exit(f"error: no rivals-*.csv in {FIGURES}; measure first, without --tables")
    for line in bars(rows):
        print(line)
    if options.write:
        for page, text in filled_pages(rows).items():
            page.write_text(text, encoding="utf-8")


def _run(backbone: str, options: argparse.Namespace) -> None:
    out = options.results / f"rivals-{backbone}"
    command = [
        *(sys.executable, "-m", "opensetda", "benchmark", "office31"),
        *("--data", str(options.data / backbone), "--seeds", str(options.seeds)),
        *("--jobs", str(options.jobs), "--out", str(out)),
    ]
    command += [part for name in options.methods for part in ("--method", name)]
    command += [part for share in options.openness for part in ("--openness", share)]
    command += [part for task in options.tasks for part in ("--task", "-".join(TASKS[task]))]
    started = time.perf_counter()
    subprocess.run(command, check=True)
    minutes = (time.perf_counter() - started) / 60
    print(f"{backbone}: {minutes:.1f} minutes for the runs that were missing", flush=True)
    _keep_figures(backbone, out)


def _keep_figures(backbone: str, out: Path) -> None:
    """Write mean figures of each method, openness and task, and their means over tasks.

    Lines of earlier runs stay, unless this one has measured them again.
    """
    from pyarrow import parquet

    rows = parquet.read_table(out / "results.parquet").to_pylist()
    failed = [row for row in rows if row["status"] != "ok"]
    if failed:
        print(f"{backbone}: {len(failed)} runs failed, the first: {failed[0]['error']}")
    earlier = read_figures(backbone)
    FIGURES.mkdir(exist_ok=True)
    with (FIGURES / f"rivals-{backbone}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for openness in OPENNESS:
            for method in dict.fromkeys(row["method"] for row in [*earlier, *rows]):
                group = method, openness
                new = [
                    r for r in rows if (r["method"], r["openness"], r["status"]) == (*group, "ok")
                ]
                old = {r["task"]: r for r in earlier if (r["method"], r["openness"]) == group}
                place = {"backbone": backbone, "openness": openness, "method": method}
                writer.writerows({**place, **line} for line in _lines(new, old))


def _lines(rows: Sequence[dict[str, Any]], earlier: dict[str, Row]) -> list[dict[str, Any]]:
    """Return the lines of a method: of the tasks in `rows`, else the earlier ones, and the mean."""
    if not rows:
        return list(earlier.values())
    lines: list[dict[str, Any]] = []
    for name, domains in TASKS.items():
        own = [row for row in rows if row["task"] == "-".join(domains)]
        if own:
            lines.append({"task": name, **_means(own), "deviation": _deviation(own)})
        elif name in earlier:
            lines.append(dict(earlier[name]))
    if len(lines) < len(TASKS):
        # Tasks differ in difficulty: the mean of some would not compare.
        return lines
    mean = {metric: f"{fmean(float(line[metric]) for line in lines):.4f}" for metric in METRICS}
    # The mean over tasks of each seed; a seed that lacks a task would differ for that alone.
    by_seed = {seed: [r for r in rows if r["seed"] == seed] for seed in {r["seed"] for r in rows}}
    whole = [{"hos": fmean(r["hos"] for r in own)} for own in by_seed.values() if len(own) == 6]
    return [*lines, {"task": "mean", **mean, "deviation": _deviation(whole)}]


def _means(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {metric: f"{fmean(row[metric] for row in rows):.4f}" for metric in METRICS}


def _deviation(rows: Sequence[dict[str, Any]]) -> str:
    return f"{stdev(row['hos'] for row in rows):.4f}" if len(rows) > 1 else ""


def read_figures(backbone: str) -> list[Row]:
    """Read what was measured on a backbone; nothing if it was not."""
    path = FIGURES / f"rivals-{backbone}.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# What comes out ----------------------------------------------------------------------------


def hos(rows: Sequence[Row], backbone: str, openness: str, task: str = "mean") -> dict[str, float]:
    """Return HOS in % of each method."""
    return {
        row["method"]: 100 * float(row["hos"])
        for row in rows
        if (row["backbone"], row["openness"], row["task"]) == (backbone, openness, task)
    }


def bars(rows: Sequence[Row]) -> list[str]:
    """Return a line for each bar of the issue: what was asked, and what was measured."""
    lines = []
    for backbone in dict.fromkeys(row["backbone"] for row in rows):
        for openness, words in OPENNESS.items():
            mean = hos(rows, backbone, openness)
            if "pgl" not in mean or len(mean) < 2:
                continue
            best = max((name for name in mean if name != "pgl"), key=mean.__getitem__)
            lines.append(
                f"{backbone}, {words}: PGL {mean['pgl']:.1f}, best rival {best} {mean[best]:.1f}, "
                f"ahead by {mean['pgl'] - mean[best]:+.1f} (at least 1)"
            )
            for name in ("osbp", "uniot"):
                if name in mean and "source-only" in mean:
                    lines.append(
                        f"{backbone}, {words}: {name} {mean[name]:.1f}, "
                        f"source-only {mean['source-only']:.1f} (above)"
                    )
    oracle = hos(rows, "resnet50", "true")
    if "oslpp" in oracle:
        lines.append(
            f"resnet50, oracle openness: OSLPP {oracle['oslpp']:.1f} (at least 86; published 87.5)"
        )
    return lines


def filled_pages(rows: Sequence[Row]) -> dict[Path, str]:
    """Return the pages with the tables between their markers."""
    in_short: dict[str, str | None] = {"rivals-short": overview(rows, IN_SHORT)}
    whole: dict[str, str | None] = {"rivals": overview(rows)}
    of_tasks = {
        f"{backbone}-{openness}": task_table(rows, backbone, openness)
        for backbone in BACKBONES
        for openness in OPENNESS
    }
    return {
        README: fill(README.read_text(encoding="utf-8"), in_short),
        PAGE: fill(PAGE.read_text(encoding="utf-8"), {**whole, **of_tasks}),
    }


def overview(rows: Sequence[Row], names: Sequence[str] = ()) -> str:
    """Return the mean HOS of the named methods, or of all, by backbone and openness."""
    columns = [(backbone, openness) for backbone in BACKBONES for openness in OPENNESS]
    figures = [hos(rows, *column) for column in columns]
    header = [
        "method",
        *(f"{TITLES[backbone]}, {OPENNESS[openness]}" for backbone, openness in columns),
    ]
    measured = {name for f in figures for name in f if name in (names or f)}
    methods = sorted(measured, key=lambda name: -fmean(f.get(name, 0.0) for f in figures))
    lines = [[name, *(_cell(f.get(name), f.values()) for f in figures)] for name in methods]
    return _markdown(header, lines)


def task_table(rows: Sequence[Row], backbone: str, openness: str) -> str:
    """Return HOS of every task, and the other figures as means over tasks."""
    by_task = {task: hos(rows, backbone, openness, task) for task in (*TASKS, "mean")}
    mean = {
        row["method"]: row
        for row in rows
        if (row["backbone"], row["openness"], row["task"]) == (backbone, openness, "mean")
    }
    lines = []
    measured = dict.fromkeys(name for values in by_task.values() for name in values)
    for name in sorted(measured, key=lambda name: -by_task["mean"].get(name, 0.0)):
        row = mean.get(name)
        cells = [_cell(by_task[task].get(name), by_task[task].values()) for task in by_task]
        if row is None:
            lines.append([name, *cells, *("-" for _ in (*_SHOWN, "seconds", "memory"))])
            continue
        deviation = f" ± {100 * float(row['deviation']):.1f}" if row["deviation"] else ""
        lines.append([
            *(name, *cells[:-1], cells[-1] + deviation),
            *(f"{100 * float(row[metric]):.1f}" for metric in _SHOWN),
            f"{float(row['seconds']):.1f}",
            f"{float(row['memory_mb']):.0f}",
        ])  # fmt: skip
    header = [*("method", *TASKS, "mean"), *("OS", "OS*", "UNK", "ALL", "AUROC", "s", "MB")]
    return _markdown(header, lines)


def _cell(value: float | None, all_values: Any) -> str:
    if value is None:
        return "-"
    text = f"{value:.1f}"
    return f"**{text}**" if text == f"{max(all_values):.1f}" else text


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines)) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--backbones", nargs="+", default=list(BACKBONES), choices=BACKBONES)
    parser.add_argument("--methods", nargs="+", default=[], help="methods to run (default: all)")
    parser.add_argument("--tasks", nargs="+", default=[], choices=TASKS, help="default: all")
    parser.add_argument("--openness", nargs="+", default=[], choices=OPENNESS, help="default: both")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--tables", action="store_true", help="measure nothing: read the kept figures"
    )
    parser.add_argument("--write", action="store_true", help="write the tables into the pages")
    return parser.parse_args()


if __name__ == "__main__":
    main()
