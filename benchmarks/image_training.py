"""Parts of `benchmarks/images.py` that train or label: each runs `osda` as its users would."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from office31 import fit_and_evaluate, load_task
from opensetda.data.benchmarks.catalogue import BENCHMARKS
from opensetda.runs.methods import build_method

OSDA = [sys.executable, "-c", "from opensetda.cli.main import run; run()"]
SEEDS = (0, 1, 2)
# A small backbone is the embedded one on small images.
SMALL = ["--image-size", "64"]
# What the paper trains: Office-Home with ResNet-50 (25 classes, B = 2) and VisDA-17 with VGG-19
# (6 classes, B = 8).
PAPER = {"resnet50": ("paper-office-home", 25), "vgg19": ("paper-visda", 6)}


def osda(*arguments: Any) -> str:
    """Run the command in a process of its own and return what it said."""
    done = subprocess.run(
        [*OSDA, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"osda {arguments}: {done.stderr}")
    return done.stdout


def hos(run: Path, truth: Path) -> dict[str, float]:
    """Evaluate a run; HOS and what goes with it, in %."""
    osda("evaluate", run, "--labels", truth)
    found = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    final = found["final"]
    share = json.loads((run / "estimates.json").read_text(encoding="utf-8"))["openness"]["share"]
    return {
        **{name: 100 * final[name] for name in ("hos", "os_star", "unk", "auroc")},
        "share": share,
        "true_share": found["true_openness"],
    }


def measure_accuracy(images: Path, features: Path) -> dict[str, Any]:
    """`osda fit` on Office-31 images, amazon's known classes to webcam, against its features."""
    spec = BENCHMARKS["office31"]
    task = load_task(features / "efficientnet-lite0", "amazon", "webcam")
    runs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for domain, classes in (("amazon", spec.known), ("webcam", spec.known + spec.unknown)):
            (folder / domain).mkdir()
            for label in classes:
                (folder / domain / label).symlink_to(images / domain / label)
        for seed in SEEDS:
            out = folder / f"run-{seed}"
            osda(
                *("fit", folder / "amazon", folder / "webcam", "--out", out),
                *("--seed", seed, "--cache", folder / "cache"),
            )
            own = build_method("pgl", openness="auto", seed=seed)
            of_features = 100 * fit_and_evaluate(own, task).hos
            runs.append({"seed": seed, "features": of_features, **hos(out, folder / "webcam")})
    return {"runs": runs}


def show_accuracy(result: dict[str, Any]) -> None:
    """Print the table of `measure_accuracy`."""
    print("Office-31, amazon (10 classes) to webcam (21), nothing but defaults: HOS in %")
    print(f"{'seed':<8}{'images':>10}{'features':>10}")
    for run in result["runs"]:
        print(f"{run['seed']:<8}{run['hos']:>10.1f}{run['features']:>10.1f}")
    own, theirs = (np.mean([run[name] for run in result["runs"]]) for name in ("hos", "features"))
    print(f"{'mean':<8}{own:>10.1f}{theirs:>10.1f}   difference {own - theirs:+.1f}")


def measure_iterations() -> dict[str, Any]:
    """One training iteration of the paper's networks at 224 x 224, each in its own process."""
    return {name: _measured_child("iteration", name) for name in PAPER}


def run_iteration(name: str) -> dict[str, Any]:
    """Train the paper's graph with its backbone once, on noise; weights are random."""
    import torch

    from opensetda.backbones.model import ImageBackbone
    from opensetda.backbones.networks import build_network
    from opensetda.backbones.recipe import Recipe
    from opensetda.backbones.registry import BACKBONES
    from opensetda.nn.inputs import TunedImages
    from opensetda.pgl.episodes import EpisodeSampler
    from opensetda.pgl.settings import PGLSettings
    from opensetda.pgl.trainer import Trainer
    from opensetda.rows import Rows
    from opensetda.system.memory import keep_freed_memory

    keep_freed_memory()
    preset, n_classes = PAPER[name]
    settings, spec = PGLSettings.preset(preset), BACKBONES[name]
    network = build_network(spec.timm_name, spec.preprocessing.size)
    recipe = Recipe(name, spec.timm_name, "random", "", spec.width, spec.preprocessing, "")
    backbone = ImageBackbone(network, recipe)
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(n_classes), 20)
    X = rng.normal(size=(2 * len(y), spec.width)).astype(np.float32)
    source, target = Rows(X, np.arange(len(y))), Rows(X, np.arange(len(y), len(X)))

    class Noise:
        """Images of noise."""

        def __init__(self) -> None:
            self.backbone = backbone.to(memory_format=torch.channels_last)

        def trainable_parameters(self) -> list[torch.nn.Parameter]:
            return backbone.trainable_parameters()

        def augmented(self, rows: Any, rng: np.random.Generator, settings: Any) -> torch.Tensor:
            return torch.randn(len(rows), 3, 224, 224).contiguous(memory_format=torch.channels_last)

    inputs = TunedImages(Noise(), source, target, settings.alignment, settings.finetune)
    trainer = Trainer(inputs, n_classes, settings, rng)
    sampler = EpisodeSampler(y, np.full(len(y), -1), n_classes, 0.0, settings.episodes)
    started = time.perf_counter()
    losses = trainer.backward(sampler, strength=1.0)
    return {
        "seconds": time.perf_counter() - started,
        "images": 2 * n_classes * settings.episodes.episodes,
        "trained": sum(p.numel() for p in backbone.trainable_parameters()),
        "losses": losses,
    }


def show_iterations(result: dict[str, Any]) -> None:
    """Print the table of `measure_iterations`."""
    print("one training iteration at 224 x 224, the paper's settings, float32")
    print(f"{'':<12}{'images':>8}{'trained':>14}{'seconds':>10}{'peak GB':>10}")
    for name, figures in result.items():
        if isinstance(figures, dict) and "images" in figures:
            print(
                f"{name:<12}{figures['images']:>8}{figures['trained']:>14,}"
                f"{figures['seconds']:>10.1f}{figures['peak'] / 2**30:>10.2f}"
            )


def measure_stages(images: Path) -> dict[str, Any]:
    """One iteration of the preset `finetune` by the last stages and by all, 160 x 160 pixels."""
    return {kind: _measured_child("stages", kind, images) for kind in ("last", "all")}


def run_stages(kind: str, folder: str, n: str = "280") -> dict[str, Any]:
    """Train the bundled backbone on photographs; seconds are processor time."""
    from opensetda.backbones.activations import store_activations
    from opensetda.backbones.finetuning import FineTunedImages
    from opensetda.backbones.model import load_backbone
    from opensetda.backbones.registry import resolve
    from opensetda.nn.inputs import TrainableImages, TunedImages
    from opensetda.pgl.episodes import EpisodeSampler
    from opensetda.pgl.settings import PGLSettings
    from opensetda.pgl.trainer import Trainer
    from opensetda.rows import Rows
    from opensetda.system.memory import keep_freed_memory

    keep_freed_memory()
    settings, recipe = PGLSettings.preset("finetune"), resolve(size=160)
    backbone, rng = load_backbone(recipe), np.random.default_rng(0)
    paths = [str(path) for path in sorted(Path(folder).rglob("*.jpg"))]
    paths = paths[:: max(1, len(paths) // int(n))][: int(n)]
    y = np.arange(len(paths) // 2) % 6
    X = rng.normal(size=(len(paths), recipe.width)).astype(np.float32)
    source, target = Rows(X, np.arange(len(y))), Rows(X, np.arange(len(y), len(X)))
    with tempfile.TemporaryDirectory() as scratch:
        started = time.process_time()
        figures: dict[str, Any] = {"images": len(paths)}
        trained: TrainableImages = FineTunedImages(backbone, paths)
        if kind == "last":
            trained = store_activations(backbone, paths, settings.finetune, Path(scratch))
            figures["stored"] = (Path(scratch) / "activations.npy").stat().st_size
        figures["preparation"] = time.process_time() - started
        inputs = TunedImages(trained, source, target, settings.alignment, settings.finetune)
        trainer = Trainer(inputs, 6, settings, rng)
        sampler = EpisodeSampler(y, np.full(len(y), -1), 6, 0.0, settings.episodes)
        seconds = []
        for _ in range(6):
            started = time.process_time()
            trainer.backward(sampler, strength=1.0)
            trainer.optimiser.step()
            seconds.append(time.process_time() - started)
        started = time.process_time()
        inputs.refresh()
        figures["refresh"] = time.process_time() - started
    # The first one decodes images and fills caches.
    return {**figures, "seconds": float(np.median(seconds[1:]))}


def show_stages(result: dict[str, Any]) -> None:
    """Print the table of `measure_stages`."""
    print("EfficientNet-Lite0 at 160 x 160, 6 classes, the preset 'finetune'; processor time")
    for kind in ("last", "all"):
        found = result[kind]
        line = f"{kind}: {found['seconds']:.2f} s per iteration, peak {found['peak'] / 1e9:.2f} GB"
        if kind == "last":
            n = found["images"]
            line += f", {found['stored'] / n / 1e3:.0f} KB and {found['preparation'] / n:.2f} s"
            line += " per image before the training"
        print(line)


def measure_memory(images: Path) -> dict[str, Any]:
    """Peak memory of `osda predict` on 1,000 and on 10,000 images."""
    result = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        osda("data", "digits", folder / "digits", "--every", 20)
        out = folder / "run"
        osda(
            *("fit", folder / "digits" / "mnist", folder / "digits" / "scikit-learn"),
            *("--out", out, "--cache", folder / "cache", *SMALL),
        )
        files = sorted(images.rglob("*.jpg"))
        for count in (1_000, 10_000):
            many = folder / str(count)
            many.mkdir()
            for number in range(count):
                (many / f"{number:06d}.jpg").symlink_to(files[number % len(files)])
            labels = folder / f"{count}.csv"
            result[str(count)] = _measured_child("predict", out, many, labels)
            lines = sum(1 for _ in labels.open(encoding="utf-8")) - 1
            assert lines == count, f"{lines} predictions for {count} images"
    return result


def run_predict(run: str, images: str, labels: str) -> dict[str, Any]:
    """Label a folder of images."""
    from opensetda.cli.main import main

    started = time.perf_counter()
    # What the command prints is not a figure.
    with Path(os.devnull).open("w") as nowhere:
        stdout, sys.stdout = sys.stdout, nowhere
        code = main(["predict", run, images, "--out", labels])
        sys.stdout = stdout
    assert code == 0
    return {"seconds": time.perf_counter() - started}


def show_memory(result: dict[str, Any]) -> None:
    """Print the table of `measure_memory`."""
    print("osda predict, the embedded backbone at 64 x 64 pixels")
    for count, figures in result.items():
        if isinstance(figures, dict) and "peak" in figures:
            rate = int(count) / figures["seconds"]
            peak = figures["peak"] / 2**20
            print(f"{int(count):>8,} images: peak {peak:,.0f} MB, {rate:.0f} images/s")


def peak_memory() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage: its peak begins with that of the process that started this one.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _measured_child(what: str, *arguments: Any) -> dict[str, Any]:
    """Run a function of this file in its own process; its figures, with its peak of memory."""
    done = subprocess.run(
        [sys.executable, __file__, what, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{what} {arguments}: {done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    functions = {"iteration": run_iteration, "predict": run_predict, "stages": run_stages}
    outcome = functions[sys.argv[1]](*sys.argv[2:])
    outcome["peak"] = peak_memory()
    print(json.dumps(outcome))
