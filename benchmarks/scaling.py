"""Past one machine, and past memory: are the results the same, how fast, in how much memory.

    python benchmarks/scaling.py                        # all parts; hours on 2 cores
    python benchmarks/scaling.py --only speed faults    # some of them
    python benchmarks/scaling.py --quick                # tiny sizes: does everything work?

identical   1, 2 and 4 processes leave the same bytes
faults      one of two processes is killed, without and with a restart
speed       two processes against one: extraction
classes     a thousand classes: memory, time a graph, quality
large       ten million targets in a file
costs       time and memory against every size
grid        `osda benchmark` by loky and by dask

Each part prints a table and its bar. Figures go to benchmarks/results/scaling.json, part by
part: those of the other parts stay. Children have one thread each.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scaling_tools import RESULTS, Options, machine, osda, print_bar, print_table

# Of results.parquet, what says how long something took and where, not what came out.
GRID_TIMES = ("seconds", "peak", "memory", "host", "finished", "started", "command")


def grid(options: Options) -> dict[str, Any]:
    """Run a grid of methods by loky and by dask, two runs at once."""
    chosen = ("source-only", "class-means") if options.quick else ()
    methods = [word for name in chosen for word in ("--method", name)]
    seconds = {}
    for backend in ("loky", "dask"):
        command = ("benchmark", "demo", "--backend", backend, "--jobs", "2", "--out", backend)
        done = osda(options.folder, *command, "--seeds", "1", "--quiet", *methods)
        seconds[backend] = done.seconds
    first, second = (_grid_rows(options.folder / name) for name in seconds)
    tables = [(options.folder / name / "table.csv").read_bytes() for name in seconds]
    print_table(("backend", "seconds"), list(seconds.items()))
    met = first == second
    print(f"{len(first)} runs; table.csv byte by byte: {tables[0] == tables[1]}")
    print_bar("the same result of every run", met)
    return {"seconds": seconds, "runs": len(first), "same_csv": tables[0] == tables[1], "met": met}


def _grid_rows(folder: Path) -> list[str]:
    """Return the rows of a grid as text, without what is of time and place, sorted."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(folder / "results.parquet")
    kept = [n for n in table.column_names if not any(word in n for word in GRID_TIMES)]
    return sorted(json.dumps(row, default=str) for row in table.select(kept).to_pylist())


def part_of_module(name: str) -> Callable[[Options], dict[str, Any]]:
    """Return the part that has a module of its own."""
    return lambda options: importlib.import_module(f"scaling_{name}").measure(options)


PARTS: dict[str, Callable[[Options], dict[str, Any]]] = {
    **{n: part_of_module(n) for n in ("identical", "faults", "speed", "classes", "large", "costs")},
    "grid": grid,
}


def main() -> None:
    """Run the parts, print and write what they find."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, figures to no file")
    parser.add_argument("--folder", type=Path, help="where files go, and are removed")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="of large")
    parser.add_argument("--times", type=int, default=20, help="how often faults kills")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/scaling.json")
    arguments = parser.parse_args()
    out = arguments.out or (None if arguments.quick else RESULTS / "scaling.json")
    if arguments.folder is not None:
        arguments.folder.mkdir(parents=True, exist_ok=True)
    # As by Ctrl-C: what was started ends, and files are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = []
    for name in arguments.only:
        print(f"## {name}\n", flush=True)
        about = {"began": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine()}
        about["load_average_before"] = os.getloadavg()
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="scaling-") as folder:
            options = Options(
                arguments.quick, Path(folder), tuple(arguments.processes), arguments.times
            )
            try:
                result = PARTS[name](options)
            except Exception as error:
                # The other parts go on: they take long.
                traceback.print_exc()
                result = {"error": str(error)[-2000:], "met": False}
        about["seconds"] = round(time.perf_counter() - started, 1)
        if not result.get("met", True):
            failed.append(name)
        if out is not None:
            merge(out, name, {**about, "quick": arguments.quick, **result})
        print(f"{name} took {about['seconds']:.0f} s\n", flush=True)
    if failed:
        sys.exit(f"bars not met: {', '.join(failed)}")


def merge(path: Path, name: str, result: dict[str, Any]) -> None:
    """Put one part's figures in the file, and leave the others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = json.loads(path.read_text()) if path.exists() else {}
    whole[name] = result
    ordered = {part: whole[part] for part in [*PARTS, *whole] if part in whole}
    path.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
