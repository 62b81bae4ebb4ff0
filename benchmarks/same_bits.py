"""Checks that a change of the code leaves every result as it was, to the bit.

    git worktree add /tmp/before COMMIT
    PYTHONPATH=/tmp/before/src python benchmarks/same_bits.py record /tmp/before.json
    python benchmarks/same_bits.py compare /tmp/before.json

Runs `osda demo`, PGL on the six Office-31 tasks and every rival on one of them (features of both
backbones), and small image runs (frozen, and with a backbone that is trained), all as a
user would type them, and keeps a SHA-256 of the predictions, the model and the metrics of each.
Bits depend on the machine: record and compare on the same one. About 30 minutes on one core;
`--only demo images` takes two.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "office31-features"
BACKBONES = ("efficientnet-lite0", "resnet50")
DOMAINS = ("amazon", "dslr", "webcam")
# Every task is run with PGL, this one with all methods.
RIVAL_TASKS = (("dslr", "webcam"),)
METHODS = (
    *("pgl", "source-only", "class-means", "mmd", "dann", "ati", "osbp", "sta"),
    *("daod", "oslpp", "ovanet", "uniot", "dann+osvm", "source-only+osnn"),
)
KNOWN, UNKNOWN = 10, 11
# What a user takes away from a run. Neither times nor the names of parameters are in them:
# model.json lists the latter; its threshold and slope are in estimates.json, too.
FILES = (
    *("predictions.parquet", "predictions.csv", "steps.parquet", "estimates.json"),
    *("model.safetensors", "backbone.safetensors", "metrics.json", "view.safetensors"),
)
Digests = dict[str, str]


def main() -> None:
    """Record the digests of all runs, or compare them with recorded ones."""
    options = _options()
    options.file = options.file.resolve()
    with tempfile.TemporaryDirectory() as name:
        digests: Digests = {}
        # Runs keep paths as they were typed: relative ones are the same every time.
        os.chdir(name)
        for part in options.only:
            for run, folder in PARTS[part](Path(), options.data.resolve()):
                digests |= {f"{run}/{file}": _digest(folder / file) for file in FILES}
                print(run, flush=True)
                if options.action == "record":
                    text = json.dumps(digests, indent=1) + "\n"
                    options.file.write_text(text, encoding="utf-8")
    if options.action == "record":
        return
    before = json.loads(options.file.read_text(encoding="utf-8"))
    changed = sorted(key for key, digest in digests.items() if before[key] != digest)
    for key in changed:
        print(f"changed: {key}")
    print(f"{len(digests) - len(changed)} of {len(digests)} files have the same bits")
    sys.exit(1 if changed else 0)


def _demo(folder: Path, data: Path) -> Iterator[tuple[str, Path]]:
    _osda("demo", "--out", folder / "demo")
    yield "demo", folder / "demo"


def _office31(folder: Path, data: Path) -> Iterator[tuple[str, Path]]:
    for backbone in BACKBONES:
        for source, target in permutations(DOMAINS, 2):
            task = folder / f"{backbone}-{source}-{target}"
            _write_task(data / backbone, source, target, task)
            for method in METHODS if (source, target) in RIVAL_TASKS else METHODS[:1]:
                run = folder / f"{task.name}-{method}"
                places = task / "source.npz", task / "target.npz"
                _osda("fit", *places, "--out", run, "--method", method, "--no-report")
                _osda("evaluate", run, "--labels", task / "truth.csv")
                yield run.name, run


def _images(folder: Path, data: Path) -> Iterator[tuple[str, Path]]:
    digits = folder / "digits"
    _osda("data", "digits", digits, "--every", 25)
    common = (
        digits / "mnist",
        digits / "scikit-learn",
        "--no-cache",
        "--image-size",
        64,
        "--no-report",
    )
    tuned = [
        "--finetune",
        "all",
        *("--set", "steps=2", "--set", "optimiser.iterations_per_epoch=2"),
    ]
    for name, extra in {"frozen": [], "finetuned": tuned}.items():
        _osda("fit", *common, "--out", folder / name, *extra)
        yield f"images-{name}", folder / name


PARTS: dict[str, Callable[[Path, Path], Iterator[tuple[str, Path]]]] = {
    "demo": _demo,
    "images": _images,
    "office31": _office31,
}


def _write_task(features: Path, source: str, target: str, folder: Path) -> None:
    """Write the open-set task as two tables and the truth, as README of the data says."""
    folder.mkdir()
    for domain, name in ((source, "source"), (target, "target")):
        with np.load(features / f"{domain}.npz") as file:
            X, y, classes = file["X"], file["y"], file["classes"]
        known = y < KNOWN
        taken = known if name == "source" else known | (y >= len(classes) - UNKNOWN)
        if name == "source":
            np.savez(folder / "source.npz", X=X[taken], y=classes[y[taken]])
            continue
        np.savez(folder / "target.npz", X=X[taken])
        truth = [f"{row},{classes[label]}" for row, label in enumerate(y[taken], start=1)]
        (folder / "truth.csv").write_text("\n".join(["id,y", *truth]) + "\n", encoding="utf-8")


def _osda(*arguments: object) -> None:
    command = [sys.executable, "-m", "opensetda", *map(str, arguments), "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)


def _digest(path: Path) -> str:
    if not path.exists():
        return "none"
    content = path.read_bytes()
    if path.name == "metrics.json":
        # It names the file of the truth, which lies in another temporary folder every time.
        metrics = {key: value for key, value in json.loads(content).items() if key != "truth"}
        content = json.dumps(metrics).encode()
    return hashlib.sha256(content).hexdigest()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path, help="JSON file of the recorded digests")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the Office-31 features")
    return parser.parse_args()


if __name__ == "__main__":
    main()
