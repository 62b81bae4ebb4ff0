"""Tables as they come: units, row numbers, times, text and empty cells beside the features.

    python benchmarks/tables.py                   # generated sensors, and gas if its data is there
    python benchmarks/tables.py --seeds 2 --verbose --data ../shared/data
    python benchmarks/tables.py --screen          # no feature of any suite is left out

Each table is written to CSV files. The literal command `osda fit a.csv b.csv --out run` is run;
it fails with one message, whose corrected command is run as it is printed. HOS is compared with
that of the clean table: features only, complete, each domain standardised.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from opensetda.data.tables.screening import suspicious_columns
from opensetda.metrics.open_set import evaluate
from opensetda.runs import RunFolder
from suites_data import (
    DATA,
    OFFICE,
    SUITES,
    TABLES,
    folder_of,
    is_there,
    read_domain,
    read_task,
    task_names,
)

UNKNOWN = "unknown"
FIT = ("osda", "fit", "a.csv", "b.csv", "--out", "run")
N_KNOWN, N_UNKNOWN, N_SENSORS, ROWS = 5, 3, 12, 60
UNITS = 10.0 ** np.linspace(-3, 4, N_SENSORS)
GAS_TASKS = ("batch1-batch5", "batch1_2-batch8")
EMPTY = 0.03

Rows = npt.NDArray[np.float64]


class Table(NamedTuple):
    """Features of two domains by name, labels of the source and classes of the target."""

    names: list[str]
    source: Rows
    labels: npt.NDArray[Any]
    target: Rows
    truth: npt.NDArray[Any]


def sensors(seed: int) -> Table:
    """Make states of a machine, recorded by sensors in units from 1e-3 to 1e4.

    In the target every sensor has another gain and offset, and there are states that the source
    does not have.
    """
    rng = np.random.default_rng(seed)
    classes = np.array([f"state-{number}" for number in range(N_KNOWN + N_UNKNOWN)])
    means = rng.normal(0, 1.3, (len(classes), N_SENSORS))
    mixing = np.eye(N_SENSORS) + rng.normal(0, 0.25, (N_SENSORS, N_SENSORS))
    gain, offset = np.exp(rng.normal(0, 0.25, N_SENSORS)), rng.normal(0, 0.7, N_SENSORS)
    level = rng.uniform(2, 6, N_SENSORS)

    def record(which: npt.NDArray[np.intp]) -> Rows:
        return means[which] + rng.normal(0, 1, (len(which), N_SENSORS)) @ mixing + level

    of_source = np.repeat(np.arange(N_KNOWN), ROWS)
    of_target = rng.permutation(np.repeat(np.arange(len(classes)), ROWS))
    source, target = record(of_source), record(of_target) * gain + offset
    names = [f"{kind}_{number}" for number, kind in enumerate(["RPM", "temp", "volt", "flow"] * 3)]
    return Table(names, source * UNITS, classes[of_source], target * UNITS, classes[of_target])


def gas(task: str, data: Path) -> Table:
    """Read a task of gas: 128 features of chemical sensors, in several units."""
    found = read_task("gas", task, data)
    names = [f"sensor{number // 8}_{number % 8}" for number in range(128)]
    domains = found.source_features, found.target_features
    source, target = (rows.astype(np.float64) for rows in domains)
    return Table(names, source, found.source_labels, target, found.target_truth)


def as_recorded(rows: Rows, names: Sequence[str], first: int, seed: int) -> pd.DataFrame:
    """Return features with what a logger and a person add to them, and without some cells."""
    rng = np.random.default_rng((seed, first))
    holed = rows.copy()
    for column in rng.choice(rows.shape[1], min(6, rows.shape[1]), replace=False):
        holed[rng.random(len(rows)) < EMPTY, column] = np.nan
    frame = pd.DataFrame(holed, columns=list(names))
    seconds = 1_700_000_000 + 400 * first + np.cumsum(rng.integers(20, 90, len(rows)))
    frame.insert(0, "machine_id", first + np.arange(len(rows)))
    frame.insert(1, "epoch", seconds)
    frame.insert(2, "recorded", pd.to_datetime(seconds, unit="s").strftime("%d.%m.%Y %H:%M"))
    frame["cycles"] = first + np.cumsum(rng.integers(1, 40, len(rows)))
    frame["operator"] = rng.choice(["Ana", "Bo", "Cem", "Dee"], len(rows))
    frame["firmware"] = 7
    return frame


def hos(folder: Path, truth: npt.NDArray[Any], known: Sequence[str]) -> float:
    """Return HOS in percent of a run."""
    truth = np.where(np.isin(truth, known), truth, UNKNOWN)
    return 100 * float(evaluate(truth, RunFolder.open(folder).labels(), known).hos)


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `osda` as typed, in a folder."""
    assert command[0] == "osda"
    typed = [sys.executable, "-m", "opensetda", *command[1:]]
    # The environment of this process: PYTHONPATH says which package is measured.
    return subprocess.run(typed, cwd=folder, capture_output=True, text=True, env=os.environ)


def clean_hos(table: Table, folder: Path, *more: str, standard: bool = True) -> float:
    """Return HOS of the features alone."""
    for name, rows in (("a", table.source), ("b", table.target)):
        if standard:
            rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
        frame = pd.DataFrame(rows, columns=table.names)
        if name == "a":
            frame["y"] = table.labels
        frame.to_csv(folder / f"{name}.csv", index=False)
    done = run([*FIT, "--overwrite", "--no-report", *more], folder)
    assert done.returncode == 0, done.stderr
    return hos(folder / "run", table.truth, np.unique(table.labels).tolist())


def measure(name: str, table: Table, seed: int, verbose: bool) -> dict[str, Any]:
    """Run the first command, then the one of its message; return HOS beside the clean table's."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source = as_recorded(table.source, table.names, 1_000, seed)
        source["y"] = table.labels
        source.to_csv(folder / "a.csv")
        as_recorded(table.target, table.names, 50_000, seed).to_csv(folder / "b.csv")
        first = run(FIT, folder)
        if verbose:
            print(f"$ {shlex.join(FIT)}\n{first.stderr}")
        corrected = shlex.split(first.stderr.rpartition("un instead: ")[2])
        second = run(corrected, folder)
        if verbose:
            print(f"$ {shlex.join(corrected)}\n{second.stderr}\n{second.stdout}")
        assert first.returncode == 2, first.stderr
        assert second.returncode == 0, second.stderr
        known = np.unique(table.labels).tolist()
        folder_of_run = RunFolder.open(folder / "run")
        return {
            "table": name,
            "problems": sum(line.startswith("  ") for line in first.stderr.splitlines()),
            "left out": len(folder_of_run.column("left_out")),
            "as recorded": hos(folder / "run", table.truth, known),
            "scaling": folder_of_run.estimates()["scaling"]["name"],
            "clean, standardised": clean_hos(table, folder),
            "clean, as given": clean_hos(table, folder, standard=False),
            "--scaling none": clean_hos(table, folder, "--scaling", "none", standard=False),
        }


def screen(data: Path) -> None:
    """Print the columns that would be left out of every pair of domains of the suites."""
    pairs = 0
    for suite in (suite for suite in SUITES if is_there(suite, data)):
        tasks = [read_task(suite, task, data) for task in task_names(suite, data)]
        domains = [(task.source_features, task.target_features) for task in tasks]
        if suite in TABLES or suite in OFFICE:
            # Whole domains, in the order of their files, too.
            whole = [read_domain(file)[0] for file in sorted(folder_of(suite, data).glob("*.npz"))]
            domains += itertools.permutations(whole, 2)
        for source, target in domains:
            names = [f"f{column}" for column in range(source.shape[1])]
            pairs += 1
            if lost := suspicious_columns(names, source, target):
                print(suite, lost)
    print(f"{pairs} pairs of domains")


def main() -> None:
    """Print a line per table, and the means."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="generated tables (default 5)")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with suites/gas")
    parser.add_argument("--verbose", action="store_true", help="print the commands and messages")
    parser.add_argument("--screen", action="store_true", help="look for columns left out of suites")
    options = parser.parse_args()
    if options.screen:
        screen(options.data)
        return
    tables = {f"sensors, seed {seed}": sensors(seed) for seed in range(options.seeds)}
    if is_there("gas", options.data):
        tables |= {f"gas, {task}": gas(task, options.data) for task in GAS_TASKS}
    results = []
    for number, (name, table) in enumerate(tables.items()):
        results.append(measure(name, table, number, options.verbose))
        print(results[-1], flush=True)
    frame = pd.DataFrame(results)
    print(frame.round(1).to_string(index=False))
    kind = frame["table"].str.partition(",")[0]
    print(frame.groupby(kind).mean(numeric_only=True).round(1).to_string())


if __name__ == "__main__":
    main()
