"""`speed`: two processes against one, one thread each, on extraction and on training."""

from __future__ import annotations

import statistics
from typing import Any

from scaling_tools import Options, child, print_bar, print_table, write_images

# Of the task, what the larger graphs change, classes, and the bar.
TRAININGS = {
    "default, 12 classes": ({}, 12, 1.5),
    "larger graphs: 31 classes, 8 episodes": ({"episodes.node_limit": None}, 31, None),
}
EXTRACTION_BAR = 1.7


def measure(options: Options) -> dict[str, Any]:
    """Measure both, in turns: one process, two processes, one process ..."""
    rounds = options.choose(5, 1)
    rows = [_extraction(options, options.choose(3, 1))]
    rows += [_training(options, name, rounds) for name in TRAININGS]
    print_table(
        ("what", "unit", "1 process", "2 processes", "times as fast", "bar"),
        [[row[k] for k in ("what", "unit", "one", "two", "speedup", "bar")] for row in rows],
    )
    print(
        "medians of alternating runs; 1 process is pinned to one core, 2 have two; extraction is "
        "timed within the process, by extract() after an engine was built and warmed up"
    )
    met = all(row["bar"] is None or row["speedup"] >= row["bar"] for row in rows)
    print_bar("extraction at least 1.7 times, training at least 1.5 times as fast", met)
    return {"rows": rows, "met": met}


def _alternate(
    options: Options, task: str, wanted: dict[str, Any], rounds: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    one, two = [], []
    for _ in range(rounds):
        one.append(child(options.folder, task, wanted, core=0))
        two.append(child(options.folder, task, wanted, processes=2))
    return one, two


def _row(
    what: str, unit: str, rates: tuple[list[float], list[float]], bar: float | None
) -> dict[str, Any]:
    one, two = (statistics.median(values) for values in rates)
    return {
        "what": what,
        "unit": unit,
        "one": one,
        "two": two,
        "speedup": two / one,
        "bar": bar,
        "all_one": rates[0],
        "all_two": rates[1],
    }


def _extraction(options: Options, rounds: int) -> dict[str, Any]:
    images, scratch = options.folder / "images", options.folder / "scratch"
    scratch.mkdir()
    write_images(images, {"photos": options.choose(600, 24)}, 300, seed=1)
    wanted = {"images": str(images), "scratch": str(scratch)}
    one, two = _alternate(options, "extract", wanted, rounds)
    rates = tuple([run["images_a_second"] for run in runs] for runs in (one, two))
    row = _row("extraction", "images a second", rates, EXTRACTION_BAR)
    return {**row, "images": one[0]["images"], "engine": one[0]["engine"]}


def _training(options: Options, name: str, rounds: int) -> dict[str, Any]:
    changes, n_classes, bar = TRAININGS[name]
    wanted = {
        "n_classes": n_classes,
        "n_target": 2000,
        "width": 256,
        "updates": options.choose(150, 10),
        "settings": {**changes, "optimiser.graphs": 2},
    }
    one, two = _alternate(options, "train", wanted, rounds)
    rates = tuple([1000 / run["ms_a_graph"] for run in runs] for runs in (one, two))
    row = _row(f"training, {name}", "graphs a second", rates, bar)
    return {**row, "nodes": one[0]["nodes"]}
