"""The part `finetuning` of `benchmarks/images.py`: what training the backbone gains.

Every row is one `osda fit` and one `osda evaluate`, as a user would type them, on the images of
PACS and Office-31 at 160 x 160 pixels. Rows that benchmarks/figures/finetuning.csv has are not
measured again.
"""

from __future__ import annotations

import csv
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from image_training import OSDA, hos
from opensetda.data.benchmarks.catalogue import BENCHMARKS
from published import fill

FIGURES = Path(__file__).resolve().parent / "figures" / "finetuning.csv"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "images.md"
SIZE = 160
PACS = ("photo", "art_painting", "cartoon", "sketch")
PACS_KNOWN = ("dog", "elephant", "giraffe", "guitar")
# The tasks of the bars, and the other six, which were not looked at before the end.
JUDGED = {
    "P-A": ("photo", "art_painting"),
    "P-C": ("photo", "cartoon"),
    "P-S": ("photo", "sketch"),
    "A-C": ("art_painting", "cartoon"),
    "C-A": ("cartoon", "art_painting"),
    "S-P": ("sketch", "photo"),
}
OTHERS = {
    "A-P": ("art_painting", "photo"),
    "A-S": ("art_painting", "sketch"),
    "C-P": ("cartoon", "photo"),
    "C-S": ("cartoon", "sketch"),
    "S-A": ("sketch", "art_painting"),
    "S-C": ("sketch", "cartoon"),
}
OFFICE = {"A-D": ("amazon", "dslr"), "A-W": ("amazon", "webcam"), "D-A": ("dslr", "amazon")}
TASKS = {"PACS": JUDGED, "PACS, the others": OTHERS, "Office-31": OFFICE}
# What is compared: the default on frozen features, the same on the mean of four views, the
# preset, and rivals, on frozen features or with a trained backbone.
KINDS: dict[str, list[str]] = {
    "frozen": [],
    "views": ["--finetune", "last", "--set", "steps=1"],
    "fine-tuned": ["--finetune", "last"],
    "source-only": ["--method", "source-only"],
    "class-means": ["--method", "class-means"],
    "osbp, fine-tuned": ["--method", "osbp", "--finetune", "last"],
    "dann+osvm, fine-tuned": ["--method", "dann+osvm", "--finetune", "last"],
}
COLUMNS = (
    *("suite", "task", "kind", "told", "every", "n_source", "n_target"),
    *("hos", "os_star", "unk", "share", "true_share", "seconds", "memory_mb", "cache_mb"),
)
Row = dict[str, str]


def measure(given: Any) -> dict[str, Any]:
    """Measure what is missing in the file of figures."""
    images = {"PACS": given.pacs, "PACS, the others": given.pacs, "Office-31": given.data}
    for suite in given.suites or TASKS:
        for task, domains in TASKS[suite].items():
            if given.tasks and task not in given.tasks:
                continue
            wanted = list(product(given.kinds, given.told))
            _measure_task(images[suite], suite, task, domains, wanted, given.take)
    return {"figures": FIGURES.name, "write": given.write}


def _measure_task(
    images: Path,
    suite: str,
    task: str,
    domains: tuple[str, str],
    wanted: Sequence[tuple[str, str]],
    take: int,
) -> None:
    done = {(row["task"], row["kind"], row["told"], row["every"]) for row in read_figures()}
    missing = [pair for pair in wanted if (task, *pair, str(take)) not in done]
    if not missing:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, target = folder / "source", folder / "target"
        known, unknown = _classes(suite, images / domains[1])
        n_source = sum(_link(images / domains[0], source, label, take) for label in known)
        n_known = sum(_link(images / domains[1], target, label, take) for label in known)
        n_unknown = sum(_link(images / domains[1], target, label, take) for label in unknown)
        share = n_unknown / (n_known + n_unknown)
        for kind, told in missing:
            out, cache = folder / "run", folder / "cache"
            openness = f"{share:.6f}" if told == "told" else "auto"
            command = [
                *("fit", source, target, "--out", out, "--overwrite", "--no-report", "--quiet"),
                *("--openness", openness, "--image-size", SIZE, "--cache", cache, *KINDS[kind]),
            ]
            started = time.perf_counter()
            subprocess.run([*OSDA, *map(str, command)], check=True, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - started
            figures = hos(out, target)
            record = json.loads((out / "environment.json").read_text(encoding="utf-8"))
            stored = cache.glob("activations/*.npy")
            row = {
                **{"suite": suite, "task": task, "kind": kind, "told": told, "every": take},
                **{"n_source": n_source, "n_target": n_known + n_unknown},
                **{name: f"{figures[name]:.2f}" for name in ("hos", "os_star", "unk")},
                **{name: f"{figures[name]:.3f}" for name in ("share", "true_share")},
                "seconds": f"{seconds:.0f}",
                "memory_mb": f"{record['peak_megabytes']:.0f}",
                "cache_mb": f"{sum(path.stat().st_size for path in stored) / 1e6:.0f}",
            }
            _append(row)
            print(f"{suite} {task}, {kind}, {told}: HOS {row['hos']}, {seconds:.0f} s", flush=True)


def _classes(suite: str, images: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if suite == "Office-31":
        return BENCHMARKS["office31"].known, BENCHMARKS["office31"].unknown
    found = sorted(path.name for path in images.iterdir())
    return PACS_KNOWN, tuple(label for label in found if label not in PACS_KNOWN)


def _link(images: Path, folder: Path, label: str, take: int) -> int:
    """Link every first, second ... image of a class into a folder; returns their number."""
    (folder / label).mkdir(parents=True)
    files = sorted((images / label).iterdir())[::take]
    for path in files:
        (folder / label / path.name).symlink_to(path.resolve())
    return len(files)


def _append(row: dict[str, Any]) -> None:
    FIGURES.parent.mkdir(exist_ok=True)
    is_new = not FIGURES.exists()
    with FIGURES.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def read_figures() -> list[Row]:
    """Return all rows measured so far."""
    if not FIGURES.exists():
        return []
    with FIGURES.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def show(result: dict[str, Any]) -> None:
    """Print the tables, and write them into the page if that was asked for."""
    text = "\n".join(tables(read_figures()))
    print(text)
    if result["write"]:
        page = fill(PAGE.read_text(encoding="utf-8"), {"finetuning": f"\n{text}"})
        PAGE.write_text(page, encoding="utf-8")


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Return HOS in % of each suite by task and kind, with the gain over frozen features."""
    for suite, told in product(TASKS, ("told", "auto")):
        own = [row for row in rows if (row["suite"], row["told"]) == (suite, told)]
        found = {(row["kind"], row["task"]): float(row["hos"]) for row in own}
        tasks = [task for task in TASKS[suite] if ("frozen", task) in found]
        if not tasks:
            continue
        words = "share told" if told == "told" else "nothing told"
        taken = {"1": "all images", "2": "every second image", "3": "every third image"}
        images = " or ".join(taken[number] for number in sorted({row["every"] for row in own}))
        yield f"{suite}, {words}, {images}:"
        yield ""
        yield f"| | {' | '.join(tasks)} | mean | gain | worst |"
        yield f"|{' --- |' * (len(tasks) + 4)}"
        for kind in KINDS:
            cells = [found.get((kind, task)) for task in tasks]
            measured = [cell for cell in cells if cell is not None]
            if not measured:
                continue
            texts = ["-" if cell is None else f"{cell:.1f}" for cell in cells]
            gains = [
                cell - found["frozen", task]
                for cell, task in zip(cells, tasks, strict=True)
                if cell is not None
            ]
            figures = f"{fmean(measured):.1f} | {fmean(gains):+.1f} | {min(gains):+.1f}"
            yield f"| {kind} | {' | '.join(texts)} | {figures} |"
        yield ""
