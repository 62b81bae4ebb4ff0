"""Time and memory against the number of targets, from a memory-mapped file.

    python benchmarks/scale.py                  # up to 200,000 targets, about 15 minutes
    python benchmarks/scale.py --targets 12500 25000

Rows are drawn from Gaussian classes on random directions (10 known, 10 unknown, 1280
features, float32) and written to a `.npy` file that `fit` reads through a memory map.
Each size runs in a process of its own: the peak resident set is that of the whole
process, with Python, torch and scikit-learn in it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

FEATURES, KNOWN, UNKNOWN, SOURCE_ROWS = 1280, 10, 10, 2000


def write_rows(path: Path, n_targets: int) -> None:
    """Write source rows, then target rows, without holding them in memory."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(KNOWN + UNKNOWN, FEATURES)).astype(np.float32)
    shift = rng.normal(size=FEATURES).astype(np.float32)
    shape = (SOURCE_ROWS + n_targets, FEATURES)
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    for start in range(0, len(rows), 4096):
        place = np.arange(start, min(start + 4096, len(rows)))
        is_target = place >= SOURCE_ROWS
        label = np.where(is_target, place % (KNOWN + UNKNOWN), place % KNOWN)
        noise = rng.normal(scale=3.0, size=(len(place), FEATURES)).astype(np.float32)
        rows[place] = centres[label] + is_target[:, None] * shift + noise
    rows.flush()


def fit(path: Path, n_targets: int) -> dict[str, float]:
    """Fit on the file; return seconds and the peak resident set of this process."""
    from opensetda import PGLClassifier

    X = np.load(path, mmap_mode="r")
    place = np.arange(len(X))
    domain = np.where(place < SOURCE_ROWS, 1, -1)
    y = np.where(domain > 0, place % KNOWN, 0)
    started = time.perf_counter()
    classifier = PGLClassifier(random_state=0, unknown_label=99)
    classifier.fit(X, y, sample_domain=domain)
    seconds = time.perf_counter() - started
    truth = place[SOURCE_ROWS:] % (KNOWN + UNKNOWN)
    truth[truth >= KNOWN] = 99
    return {
        "file_mb": path.stat().st_size / 2**20,
        "seconds": seconds,
        "seconds_a_step": float(np.median([step["seconds"] for step in classifier.history_])),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "accuracy": float(np.mean(classifier.transduction_ == truth)),
    }


def main() -> None:
    """Run all sizes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--targets", type=int, nargs="+", default=[25_000, 50_000, 100_000, 200_000]
    )
    parser.add_argument("--fit", nargs=2, metavar=("FILE", "TARGETS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fit:
        print(json.dumps(fit(Path(arguments.fit[0]), int(arguments.fit[1]))))
        return
    print(
        "| targets | file, MB | fit, s | a step, s | a step and 1,000 targets, s | "
        "peak resident, MB | times the file | ALL |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for n_targets in arguments.targets:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.npy"
            write_rows(path, n_targets)
            output = subprocess.run(
                [sys.executable, __file__, "--fit", str(path), str(n_targets)],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            ).stdout
        row = json.loads(output)
        print(
            f"| {n_targets:,} | {row['file_mb']:,.0f} | {row['seconds']:.0f} | "
            f"{row['seconds_a_step']:.1f} | {1000 * row['seconds_a_step'] / n_targets:.3f} | "
            f"{row['peak_mb']:,.0f} | {row['peak_mb'] / row['file_mb']:.2f} | "
            f"{100 * row['accuracy']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
