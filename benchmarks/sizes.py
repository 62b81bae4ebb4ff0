"""Sizes that a machine may not bear: `osda fit` on small files that ask for much.

    python benchmarks/sizes.py                  # all cases
    python benchmarks/sizes.py columns images   # some

columns    two tables of 20 rows and 1,000,000 columns
single     5,000 classes of one row
pairs      2,500 classes of two rows
copies     a Parquet file of 3,000,000 equal rows, in 30 KB
images     two images of 177 megapixels, in 43 KB
usual      1,000 classes of 20 rows

Prints seconds of wall clock and of processors, the largest memory in MB, and the last line of each.
The exit code is 1 if a case needs more than 60 s and 2 GB, or is refused after more than 5 s.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from PIL import Image

SECONDS, MEGABYTES, REFUSED_SECONDS = 60.0, 2000.0, 5.0
STOPPED_SECONDS = 600
SIDE = 13_300


def main(names: list[str]) -> int:
    """Run the cases; return the exit code."""
    failed = False
    print(f"{'case':10} {'seconds':>8} {'cpu':>7} {'MB':>6}  ending")
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as folder:
            arguments = CASES[name](Path(folder))
            seconds, cpu_seconds, megabytes, code, last = measured(folder, arguments)
        is_good = seconds <= REFUSED_SECONDS if code == 2 else code == 0
        is_good = is_good and seconds <= SECONDS and megabytes <= MEGABYTES
        failed = failed or not is_good
        mark = "pass" if is_good else "FAIL"
        print(
            f"{name:10} {seconds:8.1f} {cpu_seconds:7.1f} {megabytes:6.0f}  {mark} {code}: {last}"
        )
    return int(failed)


def measured(folder: str, arguments: list[str]) -> tuple[float, float, float, int, str]:
    """Run `osda fit`; return seconds, processor seconds, MB, exit code and the last line."""
    log = Path(folder) / "log"
    command = [sys.executable, "-m", "opensetda", "fit", *arguments, "--out", "run", "--no-cache"]
    started = time.perf_counter()
    with log.open("w") as stream:
        process = subprocess.Popen(command, cwd=folder, stdout=stream, stderr=subprocess.STDOUT)
        # Unlike the usage of all children, `wait4` has that of this one alone.
        while True:
            found, status, usage = os.wait4(process.pid, os.WNOHANG)
            if found:
                break
            if time.perf_counter() - started > STOPPED_SECONDS:
                process.kill()
            time.sleep(0.05)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    cpu_seconds = usage.ru_utime + usage.ru_stime
    megabytes = usage.ru_maxrss * 1024 / 1e6
    return seconds, cpu_seconds, megabytes, process.returncode, (lines or [""])[-1]


def write_arrays(folder: Path, shape: tuple[int, int], classes: int) -> list[str]:
    """Write a labelled and an unlabelled table of random numbers."""
    rng = np.random.default_rng(0)
    labels = np.repeat([f"class {number}" for number in range(classes)], shape[0] // classes)
    source = rng.normal(size=shape).astype(np.float32)
    np.savez(folder / "source.npz", X=source, y=labels)
    np.savez(folder / "target.npz", X=rng.normal(size=shape).astype(np.float32))
    return ["source.npz", "target.npz"]


def copies(folder: Path) -> list[str]:
    """Write a small table, and one of equal rows."""
    rng, count = np.random.default_rng(0), 3_000_000
    columns = {name: rng.normal(size=40) for name in ("a", "b")}
    labelled = pa.table({**columns, "y": np.repeat(["one", "two"], 20)})
    pyarrow.parquet.write_table(labelled, folder / "source.parquet")
    equal = pa.table({name: np.ones(count) for name in columns})
    pyarrow.parquet.write_table(equal, folder / "target.parquet", compression="zstd")
    return ["source.parquet", "target.parquet"]


def images(folder: Path) -> list[str]:
    """Write small images, and among the targets two of 177 megapixels."""
    rng = np.random.default_rng(0)
    for place in ("source/one", "source/two", "target"):
        (folder / place).mkdir(parents=True)
        for number in range(6):
            pixels = rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / place / f"{number}.png")
    for number in range(2):
        Image.new("1", (SIDE, SIDE)).save(folder / "target" / f"large {number}.png", optimize=True)
    return ["source", "target"]


CASES: dict[str, Callable[[Path], list[str]]] = {
    "columns": lambda folder: write_arrays(folder, (20, 1_000_000), 4),
    "single": lambda folder: write_arrays(folder, (5_000, 16), 5_000),
    "pairs": lambda folder: write_arrays(folder, (5_000, 16), 2_500),
    "copies": copies,
    "images": images,
    "usual": lambda folder: write_arrays(folder, (20_000, 64), 1_000),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
