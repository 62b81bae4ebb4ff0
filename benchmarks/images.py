"""Images: accuracy, speed, fine-tuning, memory.

    python benchmarks/images.py                 # all parts, about half an hour on 2 quiet cores
    python benchmarks/images.py extraction      # how fast files become features
    python benchmarks/images.py second-fit      # what a second run costs before it trains
    python benchmarks/images.py accuracy        # Office-31 images against its features
    python benchmarks/images.py finetuning      # PACS, Office-31: frozen and fine-tuned; hours
    python benchmarks/images.py iterations      # one of the paper's ResNet-50 and VGG-19
    python benchmarks/images.py stages          # one iteration, --finetune last against all
    python benchmarks/images.py memory          # osda predict on 1,000 and 10,000 images

`extraction` alternates the plain eager network on pre-decoded tensors (batches of 32, the
usual memory format, all cores) with ours from JPEG files to cached features, so that the
machine's moods hit both alike; the figure to judge by is the median of the ratios.
`second-fit` runs `osda fit` twice on the same images, and compares the time of the second
before its training starts, imports apart, with the whole time of the first.

Figures go to benchmarks/results/images.json, one entry per part.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import image_finetuning as finetuning
import image_training as training
from office31 import DATA as FEATURES
from opensetda.backbones.cache import FeatureCache
from opensetda.backbones.engines import open_onnx_engine, relative_difference
from opensetda.backbones.extraction import extract
from opensetda.backbones.extractor import usable_cores
from opensetda.backbones.model import ImageBackbone, load_backbone, normalise, resize_image
from opensetda.backbones.recipe import Recipe
from opensetda.backbones.registry import resolve
from opensetda.data.images.decoding import decode_image
from opensetda.data.images.loading import read_images

OFFICE31 = Path(__file__).resolve().parents[2] / "shared" / "data" / "office31"
PACS = OFFICE31.parent / "pacs-images-160"
RESULTS = Path(__file__).parent / "results" / "images.json"
EAGER_BATCH = 32


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


def time_files(recipe: Recipe, paths: Sequence[str], engine: str, graphs: Path) -> dict[str, Any]:
    """Seconds and features from files to a cache that was empty but for the exported network.

    The network is exported once for ever; that time is measured and listed on its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "networks").symlink_to(graphs / "networks")
        with FeatureCache(Path(folder), recipe.key, recipe.width) as cache:
            started = time.perf_counter()
            extraction = extract(recipe, paths, paths, cache, engine=engine)
            cache.flush()
            seconds = time.perf_counter() - started
        kept, found = FeatureCache(Path(folder), recipe.key, recipe.width).read(
            [_digest(path) for path in paths]
        )
    assert found.all(), "every image must be in the cache"
    assert extraction.engine == engine, extraction.warnings
    np.testing.assert_array_equal(kept, extraction.X)
    return {"seconds": seconds, "features": extraction.X}


def measure_extraction(data: Path, n_images: int, rounds: int) -> dict[str, Any]:
    """Images per second of the eager network and of both engines, in turns."""
    torch.set_num_threads(usable_cores())
    paths = sample_paths(data, n_images)
    with tempfile.TemporaryDirectory() as folder:
        graphs = Path(folder)
        recipe = resolve(memory=graphs)
        backbone = load_backbone(recipe)
        started = time.perf_counter()
        open_onnx_engine(recipe, memory=graphs)
        export_seconds = time.perf_counter() - started
        (graphs / "networks").mkdir(exist_ok=True)
        pixels = torch.stack(
            [resize_image(decode_image(path), recipe.preprocessing) for path in paths]
        )
        images = normalise(pixels, recipe.preprocessing).contiguous()
        time_eager(backbone, images[:EAGER_BATCH])
        rates: dict[str, list[float]] = {"eager": [], "onnx": [], "torch": []}
        differences = {"onnx": 0.0, "torch": 0.0}
        for _ in range(rounds):
            seconds, expected = time_eager(backbone, images)
            rates["eager"].append(len(paths) / seconds)
            for engine in ("onnx", "torch"):
                run = time_files(recipe, paths, engine, graphs)
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


def measure_second_fit(data: Path, source: str, target: str) -> dict[str, Any]:
    """Time two runs of `osda fit` with nothing but defaults, the second with the cache."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [_fit(data / source, data / target, Path(folder), name) for name in ("1", "2")]
    first, second = runs
    return {
        "task": f"{source} to {target}",
        "first": first,
        "second": second,
        "share": second["data"] / first["whole"],
        "share_with_imports": second["before_training"] / first["whole"],
    }


def _fit(source: Path, target: Path, folder: Path, name: str) -> dict[str, float]:
    """Run `osda fit` in a process of its own.

    "data" is what the command itself notes: listing files, resolving the backbone and
    getting the features. "before_training" is seen from outside, until it has told what it
    is going to train on: Python's start and the import of torch come on top, which a fit
    to ready features has as well.
    """
    environment = {**os.environ, "OSDA_CACHE": str(folder / "cache")}
    code = "from opensetda.cli.main import run; run()"
    command = [sys.executable, "-c", code, "fit", str(source), str(target)]
    started = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--out", str(folder / name)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    before_training = None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("source: ") and before_training is None:
            before_training = time.perf_counter() - started
    if process.wait() or before_training is None:
        raise RuntimeError(f"osda fit failed: {''.join(lines)}")
    record = json.loads((folder / name / "environment.json").read_text(encoding="utf-8"))
    return {
        "data": record["data_seconds"],
        "before_training": before_training,
        "whole": time.perf_counter() - started,
    }


def show_second_fit(result: dict[str, Any]) -> None:
    """Print the table of `measure_second_fit`."""
    print(f"osda fit, {result['task']}, defaults")
    print(f"{'':<14}{'images to features':>20}{'with imports':>15}{'whole':>10}")
    for name in ("first", "second"):
        times = result[name]
        print(
            f"{name + ' run':<14}{times['data']:>18.2f} s{times['before_training']:>13.2f} s"
            f"{times['whole']:>8.1f} s"
        )
    print(
        f"second run before training / whole first run: {100 * result['share']:.2f} % "
        f"(with imports {100 * result['share_with_imports']:.2f} %)"
    )


def save(part: str, result: dict[str, Any], path: Path) -> None:
    """Put the figures of one part into the file of results; the other parts stay."""
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    machine = {"python": platform.python_version(), "torch": torch.__version__}
    results[part] = {**result, "machine": {**machine, "cores": usable_cores()}}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


Part = tuple[Callable[[argparse.Namespace], dict[str, Any]], Callable[[dict[str, Any]], None]]

PARTS: dict[str, Part] = {
    "extraction": (
        lambda given: measure_extraction(given.data / given.domain, given.images, given.rounds),
        show_extraction,
    ),
    "second-fit": (
        lambda given: measure_second_fit(given.data, "amazon", "webcam"),
        show_second_fit,
    ),
    "accuracy": (
        lambda given: training.measure_accuracy(given.data, given.features),
        training.show_accuracy,
    ),
    "finetuning": (finetuning.measure, finetuning.show),
    "iterations": (lambda given: training.measure_iterations(), training.show_iterations),
    "stages": (lambda given: training.measure_stages(given.data), training.show_stages),
    "memory": (lambda given: training.measure_memory(given.data), training.show_memory),
}


def main() -> None:
    """Measure the parts asked for, print their tables and save their figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--data", type=Path, default=OFFICE31, help="Office-31, or folders like it")
    parser.add_argument("--domain", default="webcam", help="folder below DATA for 'extraction'")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--features", type=Path, default=FEATURES, help="features of Office-31")
    tuning = parser.add_argument_group("finetuning")
    tuning.add_argument("--pacs", type=Path, default=PACS, help="images of PACS")
    tuning.add_argument("--suites", nargs="+", default=[], choices=finetuning.TASKS)
    tuning.add_argument("--tasks", nargs="+", default=[])
    kinds = ["frozen", "fine-tuned"]
    tuning.add_argument("--kinds", nargs="+", default=kinds, choices=finetuning.KINDS)
    tuning.add_argument("--told", nargs="+", default=["told", "auto"], choices=["told", "auto"])
    help_take = "1: all images of a class, 2: every second, 3: every third"
    tuning.add_argument("--take", type=int, default=1, choices=(1, 2, 3), help=help_take)
    tuning.add_argument("--write", action="store_true", help="write the tables into docs/images.md")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {unknown.pop()!r}; there are {', '.join(PARTS)}")
    if not arguments.data.is_dir():
        parser.error(f"{arguments.data}: no such folder; give the images with --data")
    for part in arguments.parts or PARTS:
        measure, show = PARTS[part]
        result = measure(arguments)
        show(result)
        save(part, result, arguments.out)


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
