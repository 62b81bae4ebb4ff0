"""Images: what training the backbone gains, and how fast files become features.

    python benchmarks/images.py finetuning                   # frozen and fine-tuned; hours
    python benchmarks/images.py finetuning --show --write    # measured figures into docs/images.md
    python benchmarks/images.py extraction                   # eager network against ours

`finetuning`: every row is one `osda fit` and one `osda evaluate`, as a user would type them, on
the images of PACS and Office-31 at 160 x 160 pixels; methods that train the backbone themselves
share one `osda benchmark` per task, whose seconds are without the stored activations, unless only
one is missing. Rows that benchmarks/figures/finetuning.csv has are not measured again.

The number of threads changes a trained run by a point or two: those of `moving-means` had two,
those of `pgl` one (`OMP_NUM_THREADS=1`). DANN on C-A came from a script that called the functions
of a grid cell; the rivals on A-D, A-W and P-A were measured before stored views began with those
of `--views`.
`extraction` alternates the plain eager network on pre-decoded tensors (batches of 32, all cores)
with ours from JPEG files to cached features, so that other load on the
machine affects both alike; judge by the median of the ratios.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest import mock

import numpy as np
import torch

from opensetda.backbones import engines
from opensetda.backbones.engines import make_engine, relative_difference
from opensetda.backbones.extraction import FeatureCache, extract, usable_cores
from opensetda.backbones.model import ImageBackbone, load_backbone, normalise, resize_image
from opensetda.backbones.recipe import Recipe
from opensetda.backbones.registry import resolve
from opensetda.data.benchmarks.protocols import BENCHMARKS
from opensetda.data.images.decoding import decode_image
from opensetda.data.images.loading import read_images
from opensetda.pgl.presets import ABLATIONS
from published import append, fill

OSDA = [sys.executable, "-m", "opensetda"]
OFFICE31 = Path(__file__).resolve().parents[2] / "shared" / "data" / "office31"
PACS_IMAGES = OFFICE31.parent / "pacs-images-160"
EAGER_BATCH = 32
FIGURES = Path(__file__).resolve().parent / "figures" / "finetuning.csv"
CACHE = FIGURES.parents[1] / "results" / "cache"
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
# What is compared: the default on frozen features and with a trained backbone, PGL, and rivals.
KINDS: dict[str, list[str]] = {
    "frozen": [],
    "views": ["--views", "4"],
    "fine-tuned": ["--finetune", "last"],
    "pgl": ["--method", "pgl"],
    # The settings of "pgl, fine-tuned", without its training.
    "pgl, taught": ["--method", "pgl", "--preset", "end-to-end"],
    "pgl, paper's start": ["--method", "pgl", "--finetune", "last", "--preset", "office-home"],
    "source-only": ["--method", "source-only"],
    "class-means": ["--method", "class-means"],
}
TOGETHER = {f"{name}, fine-tuned": name for name in ("pgl", "osbp", "sta", "dann+osvm")}
KINDS |= {kind: ["--method", name, "--finetune", "last"] for kind, name in TOGETHER.items()}
# PGL without a part, with a trained backbone; measured at once.
ABLATED = {f"pgl, {name}": name for name in ABLATIONS if name != "no-adversary"}
TOGETHER |= ABLATED
# And without what is ours, or with what we left out.
OURS = {
    "pgl, own pseudo-labels": "ranking=softmax",
    "pgl, adversary": "adversary_weight=0.4",
    "pgl, no unknown loss": "unknown_weight=0",
    "pgl, no query labels": "query_labels=false",
}
KINDS |= {kind: [*KINDS["pgl, fine-tuned"], "--set", change] for kind, change in OURS.items()}
# The tables: tasks, kinds, and the first of these is what the others are compared with.
OWN = ("frozen", "views", "fine-tuned", "source-only", "class-means")
GROUPS = [(suite, tuple(tasks), OWN) for suite, tasks in TASKS.items()]
GROUPS += [
    (
        "Methods that train the backbone",
        ("A-D", "A-W", "D-A", "P-A", "P-C", "C-A"),
        ("pgl", "pgl, taught", "pgl, fine-tuned", "pgl, paper's start", *list(TOGETHER)[1:4]),
    ),
    ("Without a part, trained", ("A-D", "C-A"), ("pgl, fine-tuned", *ABLATED, *OURS)),
]
COLUMNS = (
    *("suite", "task", "kind", "told", "every", "n_source", "n_target"),
    *("hos", "os_star", "unk", "share", "true_share", "seconds", "memory_mb"),
)
Row = dict[str, str]


def measure_finetuning(given: argparse.Namespace) -> None:
    """Measure what is missing in the file of figures, and show the tables."""
    images = {"PACS": given.pacs, "PACS, the others": given.pacs, "Office-31": given.data}
    for suite in () if given.show else given.suites or TASKS:
        for task, domains in TASKS[suite].items():
            if given.tasks and task not in given.tasks:
                continue
            wanted = list(product(given.kinds, given.told))
            _measure_task(images[suite], suite, task, domains, wanted, given.take)
    text = "\n".join(tables(read_figures()))
    print(text)
    if given.write:
        page = fill(PAGE.read_text(encoding="utf-8"), {"finetuning": f"\n{text}"})
        PAGE.write_text(page, encoding="utf-8")


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
        counts = {"every": take, "n_source": n_source, "n_target": n_known + n_unknown}
        where = {"suite": suite, "task": task, **counts}
        for told in dict.fromkeys(told for kind, told in missing if kind in TOGETHER):
            kinds = [kind for kind, own in missing if own == told and kind in TOGETHER]
            if len(kinds) < 2:
                continue
            missing = [pair for pair in missing if pair[0] not in kinds or pair[1] != told]
            for kind, found in _compare(source, target, folder, kinds, known, told).items():
                _append({**where, "kind": kind, "told": told, **_figures(found)})
        for kind, told in missing:
            out = folder / "run"
            openness = f"{share:.6f}" if told == "told" else "auto"
            command = [
                *("fit", source, target, "--out", out, "--overwrite", "--no-report", "--quiet"),
                *("--openness", openness, "--image-size", SIZE, "--cache", CACHE, *KINDS[kind]),
            ]
            started = time.perf_counter()
            _osda(*command)
            seconds = time.perf_counter() - started
            record = json.loads((out / "environment.json").read_text(encoding="utf-8"))
            costs = {"seconds": seconds, "memory_mb": record["peak_megabytes"]}
            _append(
                {**where, "kind": kind, "told": told, **_figures(_evaluate(out, target) | costs)}
            )


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


def _compare(
    source: Path, target: Path, folder: Path, kinds: Sequence[str], known: Sequence[str], told: str
) -> dict[str, Row]:
    """Train the backbone for some methods, one after the other, on the same activations."""
    methods = [("--method", TOGETHER[kind]) for kind in kinds if kind not in ABLATED]
    if {*kinds} & {*ABLATED}:
        methods = [("--method", "pgl"), ("--ablations",), *methods]
    _osda(
        *("benchmark", source, target, "--out", folder / told, "--finetune", "last", "--quiet"),
        *("--openness", {"told": "true"}.get(told, told), "--seeds", 1, "--jobs", 1),
        *("--image-size", SIZE, "--cache", CACHE),
        *(word for pair in methods for word in pair),
        *(word for label in known for word in ("--known", label)),
    )
    with (folder / told / "results.csv").open(newline="", encoding="utf-8") as file:
        found = {row["method"]: row for row in csv.DictReader(file)}
    for row in found.values():
        row |= {name: str(100 * float(row[name])) for name in ("hos", "os_star", "unk")}
    return {kind: found[TOGETHER[kind]] for kind in kinds}


def _figures(found: dict[str, Any]) -> Row:
    """Return figures as they are kept."""
    digits = {"hos": 2, "os_star": 2, "unk": 2, "share": 3, "true_share": 3}
    return {name: f"{float(found[name]):.{digits.get(name, 0)}f}" for name in COLUMNS[7:]}


def _append(row: dict[str, Any]) -> None:
    append(FIGURES, COLUMNS, [row])
    what = f"{row['suite']} {row['task']}, {row['kind']}, {row['told']}"
    print(f"{what}: HOS {row['hos']}, {row['seconds']} s", flush=True)


def read_figures() -> list[Row]:
    """Return all rows measured so far."""
    if not FIGURES.exists():
        return []
    with FIGURES.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Return HOS in % by task and kind, with the gain over the first kind of each table."""
    for (title, names, kinds), told in product(GROUPS, ("told", "auto")):
        own = [row for row in rows if row["told"] == told and row["kind"] in kinds]
        found = {(row["kind"], row["task"]): float(row["hos"]) for row in own}
        tasks = [task for task in names if (kinds[0], task) in found]
        if all(kind == kinds[0] or task not in tasks for kind, task in found):
            continue
        words = "oracle openness" if told == "told" else "estimated openness"
        yield f"{title}, {words}:"
        yield ""
        yield f"| | {' | '.join(tasks)} | mean | gain | worst |"
        yield f"|{' --- |' * (len(tasks) + 4)}"
        for kind in kinds:
            measured = [task for task in tasks if (kind, task) in found]
            if not measured:
                continue
            texts = [f"{found[kind, task]:.1f}" if task in measured else "-" for task in tasks]
            gains = [found[kind, task] - found[kinds[0], task] for task in measured]
            mean = fmean(found[kind, task] for task in measured)
            texts += [f"{mean:.1f}", f"{fmean(gains):+.1f}", f"{min(gains):+.1f}"]
            yield f"| {kind} | {' | '.join(texts)} |"
        yield ""


def _osda(*arguments: Any) -> None:
    """Run the command in a process of its own."""
    subprocess.run([*OSDA, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def _evaluate(run: Path, truth: Path) -> dict[str, float]:
    """Evaluate a run; HOS and its parts in %, and the shares."""
    _osda("evaluate", run, "--labels", truth, "--quiet")
    found = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    share = json.loads((run / "estimates.json").read_text(encoding="utf-8"))["openness"]["share"]
    figures = {name: 100 * found["final"][name] for name in ("hos", "os_star", "unk")}
    return {**figures, "share": share, "true_share": found["true_openness"]}


def sample_paths(data: Path, n: int) -> list[str]:
    """Return `n` image files of a folder, spread over it, no two with the same content."""
    paths = read_images(data).paths
    by_content = {Path(path).read_bytes(): path for path in paths[:: max(1, len(paths) // n)]}
    return list(by_content.values())[:n]


def time_eager(backbone: ImageBackbone, images: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Seconds and features of the plain network on tensors that are ready."""
    started = time.perf_counter()
    with torch.no_grad():
        features = [backbone(batch) for batch in images.split(EAGER_BATCH)]
    return time.perf_counter() - started, torch.cat(features)


def time_files(recipe: Recipe, paths: Sequence[str], engine: str) -> dict[str, Any]:
    """Seconds and features from files to an empty cache, the export of the network included."""
    with tempfile.TemporaryDirectory() as folder:
        with FeatureCache(Path(folder), recipe.key, recipe.width) as cache:
            started = time.perf_counter()
            is_there = {"onnx": find_spec, "torch": lambda name: None}[engine]
            with mock.patch.object(engines, "find_spec", is_there):
                extraction = extract(recipe, paths, paths, cache)
            seconds = time.perf_counter() - started
        with FeatureCache(Path(folder), recipe.key, recipe.width) as cache:
            kept = [cache.get(hashlib.sha256(Path(path).read_bytes()).digest()) for path in paths]
    assert bool(extraction.warnings) == (engine == "torch"), extraction.warnings
    np.testing.assert_array_equal(kept, extraction.X)
    return {"seconds": seconds, "features": extraction.X}


def measure_extraction(data: Path, n_images: int, rounds: int) -> dict[str, Any]:
    """Images per second of the eager network and of both engines, in turns."""
    torch.set_num_threads(usable_cores())
    paths = sample_paths(data, n_images)
    recipe = resolve()
    backbone = load_backbone(recipe)
    started = time.perf_counter()
    make_engine(recipe)
    export_seconds = time.perf_counter() - started
    pixels = torch.stack([resize_image(decode_image(path), recipe.preprocessing) for path in paths])
    images = normalise(pixels, recipe.preprocessing).contiguous()
    time_eager(backbone, images[:EAGER_BATCH])
    rates: dict[str, list[float]] = {"eager": [], "onnx": [], "torch": []}
    differences = {"onnx": 0.0, "torch": 0.0}
    for _ in range(rounds):
        seconds, expected = time_eager(backbone, images)
        rates["eager"].append(len(paths) / seconds)
        for engine in ("onnx", "torch"):
            run = time_files(recipe, paths, engine)
            rates[engine].append(len(paths) / run["seconds"])
            difference = relative_difference(run["features"], expected.numpy())
            differences[engine] = max(differences[engine], difference)
    return {
        "data": data.name,
        "images": len(paths),
        "cores": usable_cores(),
        "export_seconds": export_seconds,
        "rates": rates,
        "ratios": {
            engine: [own / eager for own, eager in zip(rates[engine], rates["eager"], strict=True)]
            for engine in ("onnx", "torch")
        },
        "differences": differences,
    }


def show_extraction(result: dict[str, Any]) -> None:
    """Print the table of `measure_extraction`."""
    print(
        f"{result['images']} images of {result['data']}, {result['cores']} cores; "
        f"exporting once took {result['export_seconds']:.1f} s"
    )
    print(f"{'':<34}{'images/s':>10}{'faster':>9}{'difference':>12}")
    eager = statistics.median(result["rates"]["eager"])
    print(f"{'eager, ready tensors':<34}{eager:>10.1f}{1:>8.2f}x{'':>12}")
    names = {"onnx": "ONNX Runtime, files to cache", "torch": "torch, files to cache"}
    for engine, name in names.items():
        rate = statistics.median(result["rates"][engine])
        ratio = statistics.median(result["ratios"][engine])
        print(f"{name:<34}{rate:>10.1f}{ratio:>8.2f}x{result['differences'][engine]:>12.1e}")


def main() -> None:
    """Measure a part, and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("finetuning", "extraction"))
    parser.add_argument("--data", type=Path, default=OFFICE31, help="Office-31, or folders like it")
    parser.add_argument("--domain", default="webcam", help="folder below DATA for 'extraction'")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pacs", type=Path, default=PACS_IMAGES, help="images of PACS")
    parser.add_argument("--suites", nargs="+", default=[], choices=TASKS)
    parser.add_argument("--tasks", nargs="+", default=[])
    parser.add_argument(
        "--kinds", nargs="+", default=["frozen", "fine-tuned"], choices=[*KINDS, *ABLATED]
    )
    parser.add_argument("--told", nargs="+", default=["told", "auto"], choices=["told", "auto"])
    parser.add_argument("--take", type=int, default=1, help="2: every second image of a class")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/images.md")
    given = parser.parse_args()
    if not given.data.is_dir():
        parser.error(f"{given.data}: no such folder; give the images with --data")
    if given.part == "finetuning":
        measure_finetuning(given)
    else:
        show_extraction(measure_extraction(given.data / given.domain, given.images, given.rounds))


if __name__ == "__main__":
    main()
