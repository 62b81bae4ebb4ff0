"""`large`: ten million targets in a file, with one and two processes, in bounded memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from scaling_tools import (
    Finished,
    Options,
    class_name,
    classes_around,
    osda,
    print_bar,
    print_table,
)

KNOWN, UNKNOWN, WIDTH, SOURCE_ROWS, NOISE = 10, 10, 64, 2000, 1.5
CHUNK = 2**16
LIMIT_MB = 4000.0


def write_rows(folder: Path, n_targets: int) -> None:
    """Write source.npz and target.npy, of float16, chunk by chunk; target i is of class i % 20."""
    folder.mkdir(parents=True)
    centres, shift = classes_around(KNOWN, UNKNOWN, WIDTH)
    rng = np.random.default_rng(0)

    def draw(labels: np.ndarray, moved: np.ndarray | float) -> np.ndarray:
        noise = NOISE * rng.standard_normal((len(labels), WIDTH), dtype=np.float32)
        return (centres[labels] + moved + noise).astype(np.float16)

    y = np.arange(SOURCE_ROWS) % KNOWN
    names = np.array([class_name(label) for label in range(KNOWN)])
    np.savez(folder / "source.npz", X=draw(y, 0.0), y=names[y])
    rows = np.lib.format.open_memmap(
        folder / "target.npy", mode="w+", dtype=np.float16, shape=(n_targets, WIDTH)
    )
    for start in range(0, n_targets, CHUNK):
        place = np.arange(start, min(start + CHUNK, n_targets))
        rows[place[0] : place[-1] + 1] = draw(place % (KNOWN + UNKNOWN), shift)
    rows.flush()


def accuracy(path: Path) -> tuple[int, float]:
    """Return how many labels a file of predictions has, and how many of them are right."""
    import pyarrow.parquet

    n_rows = right = 0
    names = np.array([*(class_name(label) for label in range(KNOWN)), *["unknown"] * UNKNOWN])
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(2**18, columns=["label"]):
            labels = batch.column(0).to_numpy(zero_copy_only=False).astype(np.str_)
            truth = names[np.arange(n_rows, n_rows + len(labels)) % len(names)]
            right += int((labels == truth).sum())
            n_rows += len(labels)
    return n_rows, right / n_rows


def measure(options: Options) -> dict[str, Any]:
    """Fit and predict at all sizes, with all numbers of processes."""
    rows = []
    for n_targets in options.choose((10**6, 10**7), (5_000,)):
        place = options.folder / str(n_targets)
        write_rows(place, n_targets)
        for processes in options.processes:
            rows += _run(place, n_targets, processes, options)
        shutil.rmtree(place)
    names = {
        "targets": "targets",
        "processes": "processes",
        "command": "command",
        "seconds": "all, s",
        "read_seconds": "read, s",
        "learn_seconds": "learn, s",
        "rest_seconds": "rest, s",
        "peak_mb": "largest process, MB",
        "sum_mb": "all together, MB",
        "accuracy": "accuracy",
    }
    print_table(list(names.values()), [[row[key] for key in names] for row in rows])
    print(
        "peaks are VmHWM from /proc, every 50 ms, pages of mapped files included; the sum is over "
        "all processes at one time, torchrun included; the rest of fit is start, sampling, "
        "labelling and writing"
    )
    met = all(max(row["peak_mb"], row["sum_mb"]) < LIMIT_MB for row in rows)
    print_bar("every process and their sum below 4 GB", met)
    return {"rows": rows, "met": met}


def _run(place: Path, n_targets: int, processes: int, options: Options) -> list[dict[str, Any]]:
    """Fit, then predict the same file."""
    run, later = place / "run", place / "later.parquet"
    fit = ("fit", "source.npz", "target.npy", "--out", "run", "--no-report", "--json")
    less = options.choose((), ("--sample", "1024", "--set", "steps=2"))
    fitted = osda(place, *fit, *less, processes=processes)
    told = fitted.json()
    read, learn = told["data_seconds"], told["seconds"]
    rows = [_row(n_targets, processes, "fit", fitted, run / "predictions.parquet", read, learn)]
    predicted = osda(
        place, "predict", "run", "target.npy", "--out", later.name, "--quiet", processes=processes
    )
    rows.append(_row(n_targets, processes, "predict", predicted, later))
    shutil.rmtree(run)
    later.unlink()
    return rows


def _row(
    n_targets: int,
    processes: int,
    command: str,
    done: Finished,
    labels: Path,
    read: float | None = None,
    learn: float | None = None,
) -> dict[str, Any]:
    n_rows, right = accuracy(labels)
    assert n_rows == n_targets, f"{n_rows} labels of {n_targets} targets"
    return {
        "targets": n_targets,
        "processes": processes,
        "command": command,
        "seconds": done.seconds,
        "read_seconds": read,
        "learn_seconds": learn,
        "rest_seconds": done.seconds - (read or 0.0) - (learn or 0.0),
        "peak_mb": done.peak,
        "sum_mb": done.peak_sum,
        "accuracy": right,
    }
