"""`identical`: one, two and four processes leave the same files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scaling_tools import Options, draw_domains, osda, print_bar, print_table, write_images
from scaling_tools import write_tables as write_drawn

PROCESSES = (1, 2, 4)
# What a run leaves that says what was learned and found.
RUN_FILES = (
    "model.safetensors",
    "model.json",
    "predictions.parquet",
    "predictions.csv",
    "steps.parquet",
    "estimates.json",
    "view.safetensors",
)


def measure(options: Options) -> dict[str, Any]:
    """Fit, predict and extract with all numbers of processes, and compare every file."""
    rows: list[dict[str, Any]] = []
    work = options.folder
    for n_target, more in ((3000, ()), (options.choose(20_000, 3000), ("--sample", "1024"))):
        place = work / f"rows-{n_target}-{len(more)}"
        write_drawn(place, *draw_domains(1000, n_target, 10, 64, 10, noise=1.5))
        name = f"{n_target:,} rows" + (", sample of 1,024" if more else "")
        rows += _compare(place, name, ("source.npz", "target.npz"), more, options)
    place = work / "images"
    many = options.choose(12, 4)
    known = {f"class {label}": many for label in range(options.choose(6, 3))}
    write_images(place / "source", known, 120, seed=1)
    write_images(place / "target", {**known, "other 1": many, "other 2": many}, 120, seed=2)
    rows += _compare(place, "images", ("source", "target"), ("--no-cache",), options)
    print_table(
        ("data", "command", "file", "processes", "as with 1"),
        [[row[key] for key in ("data", "command", "file", "processes", "same")] for row in rows],
    )
    met = all(row["same"] != "DIFFERENT" for row in rows)
    print("bytes: byte by byte; values: the same arrays in a file that is laid out otherwise")
    numbers = ", ".join(str(n) for n in options.choose(PROCESSES, PROCESSES[:2]))
    print_bar(f"every file the same with {numbers} processes", met)
    return {"rows": rows, "met": met}


def _compare(
    place: Path, name: str, data: Sequence[str], more: Sequence[str], options: Options
) -> list[dict[str, Any]]:
    """Run all commands with 1, 2 and 4 processes; return one row per file and number."""
    short = ("--set", "steps=3") if options.quick else ()
    images = "--no-cache" in more
    numbers = options.choose(PROCESSES, PROCESSES[:2])
    for processes in numbers:
        print(f"  {name}, {processes} processes ...", file=sys.stderr, flush=True)
        run = f"run-{processes}"
        fit = ("fit", *data, "--out", run, "--no-report", "--quiet", *short, *more)
        osda(place, *fit, processes=processes)
        for suffix in options.choose(("csv", "parquet"), ("parquet",)):
            # The model of one process throughout: each command is compared on its own.
            later = ("predict", "run-1", data[1], "--out", f"later-{processes}.{suffix}", "--quiet")
            osda(place, *later, processes=processes)
        if images:
            made = ("--out", f"features-{processes}.npz", "--no-cache", "--quiet")
            osda(place, "features", data[1], *made, processes=processes)
    pairs = [("fit", f"run-{{}}/{file}") for file in RUN_FILES]
    pairs += [("predict", "later-{}.csv"), ("predict", "later-{}.parquet")]
    pairs += [("features", "features-{}.npz")] * images
    compared = [
        {
            "data": name,
            "command": command,
            "file": Path(pattern).name.replace("-{}", ""),
            "processes": processes,
            "same": same_files(place / pattern.format(1), place / pattern.format(processes)),
        }
        for command, pattern in pairs
        for processes in numbers[1:]
    ]
    return [row for row in compared if row["same"] != "-"]


def same_files(first: Path, second: Path) -> str:
    """Return how two files are the same: "bytes", "values" or "DIFFERENT"; "-" without either."""
    if not first.exists() and not second.exists():
        return "-"
    if not (first.exists() and second.exists()):
        return "DIFFERENT"
    if first.read_bytes() == second.read_bytes():
        return "bytes"
    arrays = [_arrays(path) for path in (first, second)]
    same = (
        bool(arrays[0])
        and arrays[0].keys() == arrays[1].keys()
        and all(np.array_equal(values, arrays[1][name]) for name, values in arrays[0].items())
    )
    return "values" if same else "DIFFERENT"


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name; of other files nothing."""
    if path.suffix == ".npz":
        with np.load(path) as content:
            return dict(content.items())
    if path.suffix == ".parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
        return {name: table.column(name).to_numpy() for name in table.column_names}
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return load_file(path)
    return {}
