"""Time and memory of one training iteration: the plain reference, ours, and the default preset.

    python benchmarks/speed.py            # about 3 minutes on 2 cores

The three are timed in turns within one process, so that the machine's moods hit all of
them alike; the figures to judge by are the ratios. Memory is the growth of the peak
resident set over two iterations, each variant in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from opensetda.nn.inputs import FixedRows
from opensetda.pgl.episodes import EpisodeSampler
from opensetda.pgl.settings import PGLSettings
from opensetda.pgl.trainer import Trainer
from opensetda.rows import Rows
from reference import ReferencePairs

SIZES = {"office-home": (25, 2, 2048, 512), "syn2real": (12, 6, 2048, 1024)}
VARIANTS = ("reference", "same widths", "default preset")


def make_iteration(variant: str, size: tuple[int, int, int, int]) -> Callable[[], float]:
    """Return a function that runs one training iteration and returns the loss."""
    n_classes, episodes, features, width = size
    preset = "default" if variant == "default preset" else "paper-office-home"
    settings = PGLSettings.preset(preset).with_changes(
        {"episodes.episodes": episodes, "episodes.node_limit": None}
    )
    if variant != "default preset":
        settings = settings.with_changes(
            {"graph.edge_width": width, "graph.node_width": width, "graph.dropout": 0}
        )
    torch.manual_seed(0)
    y = np.repeat(np.arange(n_classes), 20)
    X = np.random.default_rng(0).normal(size=(len(y) + 1000, features)).astype(np.float32)
    inputs = FixedRows(
        Rows(X, np.arange(len(y))), Rows(X, np.arange(len(y), len(X))), settings.alignment
    )
    trainer = Trainer(inputs, n_classes, settings, np.random.default_rng(0))
    if variant == "reference":
        network = trainer.network
        network.layers[0].pairs = ReferencePairs(network.layers[0].pairs)
        trainer.use_network(network)
    sampler = EpisodeSampler(y, np.full(1000, -1), n_classes, 0.0, settings.episodes)
    return lambda: sum(trainer.backward(sampler, strength=1.0).values())


def measure_time(size: tuple[int, int, int, int], rounds: int) -> dict[str, float]:
    """Median seconds of an iteration of each variant, timed in turns."""
    iterations = {variant: make_iteration(variant, size) for variant in VARIANTS}
    for iteration in iterations.values():
        iteration()
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for _ in range(rounds):
        for variant, iteration in iterations.items():
            started = time.perf_counter()
            iteration()
            seconds[variant].append(time.perf_counter() - started)
    return {variant: statistics.median(values) for variant, values in seconds.items()}


def measure_memory(variant: str, size: tuple[int, int, int, int]) -> float:
    """Growth of the peak resident set, in MB, over two iterations in this process."""
    iteration = make_iteration(variant, size)
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is resident
    iteration()
    iteration()
    return _resident("VmHWM") - before


def _resident(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"{field} is not in /proc/self/status")


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory-of", nargs=2, metavar=("VARIANT", "SIZE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        variant, name = arguments.memory_of
        print(json.dumps(measure_memory(variant, SIZES[name])))
        return
    print(
        f"{'(C, B, D, width)':<22}{'variant':<16}{'s/iteration':>12}"
        f"{'faster':>9}{'peak MB':>9}{'memory':>9}"
    )
    for name, size in SIZES.items():
        seconds = measure_time(size, arguments.rounds)
        memory = {
            variant: float(
                subprocess.run(
                    [sys.executable, __file__, "--memory-of", variant, name],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
            )
            for variant in VARIANTS
        }
        for variant in VARIANTS:
            print(
                f"{size!s:<22}{variant:<16}{seconds[variant]:>12.4f}"
                f"{seconds['reference'] / seconds[variant]:>8.1f}x{memory[variant]:>9.0f}"
                f"{memory[variant] / memory['reference']:>8.2f}x"
            )


if __name__ == "__main__":
    main()
