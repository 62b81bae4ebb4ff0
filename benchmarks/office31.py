"""Accuracy on Office-31 features: six tasks, 10 known and 11 unknown classes, true openness.

    python benchmarks/office31.py                       # the default against its rivals
    python benchmarks/office31.py --ablations           # and the default without each part
    python benchmarks/office31.py --pgl "two layers: graph.layers=2"   # any change of settings
    python benchmarks/office31.py --seeds 0 --backbones resnet50       # a smaller grid

Wants `{backbone}/{amazon,dslr,webcam}.npz` with X (n, d), y (n,) and classes in --data.
Target labels are used twice: for the true share of unknowns, which is given to every
method, and for scoring. The step is always the last.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.analyses.sweeps import ablations_of, why_not
from opensetda.base import OpenSetClassifier
from opensetda.data.benchmarks.protocols import OpenSetTask, open_set_split, open_set_task
from opensetda.metrics.open_set import OpenSetMetrics
from opensetda.pgl.settings import PGLSettings
from opensetda.runs.evaluation import evaluate_targets
from opensetda.runs.methods import build_method

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "office31-features"
BACKBONES = ("efficientnet-lite0", "resnet50")
TASKS = {
    "A-D": ("amazon", "dslr"),
    "A-W": ("amazon", "webcam"),
    "D-A": ("dslr", "amazon"),
    "D-W": ("dslr", "webcam"),
    "W-A": ("webcam", "amazon"),
    "W-D": ("webcam", "dslr"),
}


def main() -> None:
    """Run the grid, print a table a backbone, and write all figures as JSON."""
    arguments = _arguments()
    if not arguments.data.is_dir():
        sys.exit(f"error: {arguments.data} does not exist; name the features' folder with --data")
    variants = _variants(arguments)
    records = []
    for backbone in arguments.backbones:
        tasks = {name: load_task(arguments.data / backbone, *TASKS[name]) for name in TASKS}
        print(f"\n{backbone}: HOS in %, mean of seeds {arguments.seeds}", flush=True)
        print(f"{'method':<36}" + "".join(f"{name:>7}" for name in TASKS) + "   mean     s/grid")
        for label, (method, preset, changes) in variants.items():
            started = time.perf_counter()
            seeds = arguments.seeds if method == "pgl" else arguments.seeds[:1]
            for name, task in tasks.items():
                for seed in seeds:
                    classifier = build_method(
                        method, openness=task.openness, preset=preset, changes=changes, seed=seed
                    )
                    figures = run_task(classifier, task)
                    records.append(
                        {"backbone": backbone, "variant": label, "task": name, "seed": seed}
                        | figures
                    )
            seconds = (time.perf_counter() - started) / len(seeds)
            print(_row(label, records, backbone, seconds), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(records, indent=1))
    print(f"\nall figures: {arguments.out}")


def load_task(folder: Path, source: str, target: str) -> OpenSetTask:
    """Read two domains and apply the protocol: first 10 classes known, last 11 unknown."""
    domains = []
    for name in (source, target):
        with np.load(folder / f"{name}.npz") as file:
            domains.append((file["X"].astype(np.float32), file["classes"][file["y"]]))
            classes = file["classes"]
    return open_set_task(domains[0], domains[1], open_set_split(classes, 10, 11))


def fit_and_evaluate(classifier: OpenSetClassifier, task: OpenSetTask) -> OpenSetMetrics:
    """Fit on one task, then score with the truth what was said without it."""
    X = np.concatenate([task.source_features, task.target_features])
    y = np.concatenate([task.source_labels, np.full(len(task.target_features), "")])
    domain = np.repeat([1, -1], [len(task.source_features), len(task.target_features)])
    classifier.fit(X, y, sample_domain=domain)
    return evaluate_targets(classifier, task.target_truth)


def run_task(classifier: OpenSetClassifier, task: OpenSetTask) -> dict[str, Any]:
    """Fit on one task and return its figures, without those of single classes."""
    figures = fit_and_evaluate(classifier, task).to_dict()
    return {name: value for name, value in figures.items() if name != "per_class"}


def _row(label: str, records: Iterable[dict[str, Any]], backbone: str, seconds: float) -> str:
    own = [r for r in records if r["variant"] == label and r["backbone"] == backbone]
    means = [100 * np.mean([r["hos"] for r in own if r["task"] == name]) for name in TASKS]
    cells = "".join(f"{value:7.1f}" for value in means)
    return f"{label:<36}{cells}{np.mean(means):7.2f}{seconds:11.1f}"


def _variants(arguments: argparse.Namespace) -> dict[str, tuple[str, str, dict[str, Any]]]:
    variants: dict[str, tuple[str, str, dict[str, Any]]] = {
        "source only": ("source-only", "default", {}),
        "progressive class means": ("class-means", "default", {}),
        "PGL, default": ("pgl", "default", {}),
    }
    if arguments.paper:
        variants["PGL, paper-office-home"] = ("pgl", "paper-office-home", {})
    if arguments.ablations:
        default = PGLSettings.preset("default")
        for name, changes in ablations_of("default").items():
            # What the default does without, it cannot lose.
            if why_not(default, changes) is None:
                variants[name] = ("pgl", "default", changes)
    for text in arguments.pgl:
        name, _, assignments = text.partition(":")
        changes = dict(part.strip().split("=", 1) for part in assignments.split(","))
        variants[name] = ("pgl", "default", changes)
    return variants


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--backbones", nargs="+", default=list(BACKBONES), choices=BACKBONES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--ablations", action="store_true", help="also without each part")
    parser.add_argument("--paper", action="store_true", help="also the paper's preset (slow)")
    parser.add_argument("--pgl", action="append", default=[], metavar="NAME:SETTING=VALUE,...")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "office31.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
