"""`speed`: two processes against one, one thread each, on extraction."""

from __future__ import annotations

import statistics
from typing import Any

from scaling_tools import Options, child, print_bar, print_table, write_images

EXTRACTION_BAR = 1.7


def measure(options: Options) -> dict[str, Any]:
    """Measure in turns: one process, two processes, one process ..."""
    rows = [_extraction(options, options.choose(3, 1))]
    print_table(
        ("what", "unit", "1 process", "2 processes", "times as fast", "bar"),
        [[row[k] for k in ("what", "unit", "one", "two", "speedup", "bar")] for row in rows],
    )
    print(
        "medians of alternating runs; 1 process is pinned to one core, 2 have two; extraction is "
        "timed within the process, by extract() after an engine was built and warmed up"
    )
    for row in rows:
        print_bar(
            f"{row['what']} at least {row['bar']} times as fast", row["speedup"] >= row["bar"]
        )
    return {"rows": rows, "met": all(row["speedup"] >= row["bar"] for row in rows)}


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
