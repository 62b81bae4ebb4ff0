"""Time and memory of PGL's edge network against the plain form, forward and backward.

    python benchmarks/pgl_graph.py          # sizes of Office-Home and Syn2Real-O, 2 minutes

Ours computes every unordered pair of nodes once (`pgl.network.EdgeNetwork`); the plain form is
1x1 convolutions over all N x N ordered pairs, as in the paper. Processor time is the median of
turns in one process, memory the growth of the peak resident set, each form in its own process.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from opensetda.pgl.network import EdgeNetwork

# C, B, D, h.
SIZES = {"office-home": (25, 2, 2048, 512), "syn2real-o": (12, 6, 2048, 1024)}
FORMS = ("plain", "ours")


class PlainEdges(nn.Module):
    """All ordered pairs: v (N, D) -> (N, N)."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        first = nn.Conv2d(width_in, 2 * width, 1, bias=False), nn.BatchNorm2d(2 * width)
        second = nn.Conv2d(2 * width, width, 1, bias=False), nn.BatchNorm2d(width)
        last = nn.Conv2d(width, 1, 1)
        self.layers = nn.Sequential(*first, nn.LeakyReLU(), *second, nn.LeakyReLU(), last)

    def forward(self, v: Tensor) -> Tensor:
        """Score all ordered pairs."""
        return self.layers((v[:, None] - v[None]).abs().permute(2, 0, 1)[None])[0, 0]


def iteration(form: str, size: str) -> Callable[[], None]:
    """Return a function that scores all pairs of a graph and computes the gradients."""
    n_classes, episodes, width_in, width = SIZES[size]
    torch.manual_seed(0)
    network = (PlainEdges if form == "plain" else EdgeNetwork)(width_in, width)
    v = torch.randn(2 * n_classes * episodes, width_in, requires_grad=True)
    return lambda: network(v).sigmoid().sum().backward()


def resident(field: str) -> float:
    """Return a field of this process's memory in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def memory(form: str, size: str) -> float:
    """Return the memory that two iterations take, in MB."""
    run, before = iteration(form, size), resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # The peak is what is resident now.
    run()
    run()
    return resident("VmHWM") - before


def main() -> None:
    """Print a table, or the memory of one form in a process of its own."""
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument(
        "--memory",
        nargs=2,
        metavar=("FORM", "SIZE"),
        help=f"print the MB of one form ({', '.join(FORMS)}) at one size ({', '.join(SIZES)})",
    )
    asked = parser.parse_args().memory
    torch.set_num_threads(1)
    if asked:
        print(memory(*asked))
        return
    for size in SIZES:
        runs = {form: iteration(form, size) for form in FORMS}
        seconds: dict[str, list[float]] = {form: [] for form in FORMS}
        for form in FORMS * 5:
            begun = time.process_time()
            runs[form]()
            seconds[form].append(time.process_time() - begun)
        for form in FORMS:
            command = [sys.executable, __file__, "--memory", form, size]
            megabytes = float(subprocess.run(command, capture_output=True, check=True).stdout)
            median = statistics.median(seconds[form])
            print(f"{size:12}{form:8}{median:6.2f} s per graph{megabytes:8.0f} MB", flush=True)


if __name__ == "__main__":
    main()
