"""What a committee costs, and what columns in different units cost it.

    python benchmarks/committee.py            # three minutes on one quiet core
    python benchmarks/committee.py --predicted 1000000
    python benchmarks/committee.py --suites   # half an hour: six tasks of every suite; --show

Processor seconds of one thread: a fit with nothing told on Office-31 A-D and on 759 + 3,929 rows
of PACS; `predict` of --predicted rows of 64 columns, against `MovingMeans` alone. Megabytes of the
saved model and of its ONNX file at 1,280 columns. HOS on four tasks of fsdd, share told, with
standardised columns and with the same in units of 10^-3 to 10^4.

--suites: HOS with nothing told, calibration error and AUROC of the confidence, AUROC of that of
`predict` on the same targets, labels that `predict` changes, labels that are not the most probable
column, HOS with the share told; at most 800 rows of each domain. Rows are kept in
figures/committee.csv, means are written into docs/committee.md.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
import time
import warnings
from itertools import islice
from pathlib import Path
from statistics import fmean

os.environ["OMP_NUM_THREADS"] = "1"  # before the imports
import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from opensetda import Committee, MovingMeans, save
from opensetda.context import FitContext
from opensetda.methods.base import OpenSetClassifier
from opensetda.metrics.open_set import evaluate, expected_calibration_error
from opensetda.usecases.export_model import to_onnx
from published import fill, markdown
from suites import DATA, SUITES, find_suite
from trust import UNKNOWN, Task, tasks_of

MEGABYTE = 2.0**20
FIGURES = Path(__file__).parent / "figures" / "committee.csv"
PAGE = Path(__file__).parents[1] / "docs" / "committee.md"
COLUMNS_OF_SUITES = (
    "hos",
    "calibration_error",
    "auroc",
    "auroc_of_predict",
    "differs",
    "contradicts",
    "hos_told",
)
TASKS = 6
ROWS = 800
UNITS = (-3, 4)
"""Powers of ten between which the units of columns lie."""
COLUMNS = 64
UNITS_TASKS = 4


def seconds_of(method: OpenSetClassifier, task: Task) -> float:
    """Fit, and return the processor time."""
    X, y, domain = task.domains()
    started = time.process_time()
    method.fit(X, y, domain, context=FitContext())
    return time.process_time() - started


def generated(n_rows: int, n_classes: int = 8) -> Task:
    """Return clusters of which the last is unknown."""
    rng = np.random.default_rng(0)
    centres = 2 * rng.normal(size=(n_classes, COLUMNS))
    names = np.array([f"class {number}" for number in range(n_classes - 1)] + [UNKNOWN])
    of_source = rng.integers(0, n_classes - 1, 1000)
    of_target = rng.integers(0, n_classes, n_rows)
    source = centres[of_source] + rng.normal(size=(1000, COLUMNS))
    target = centres[of_target] + rng.normal(size=(n_rows, COLUMNS)) + 0.5
    parts = source.astype(np.float32), names[of_source], target.astype(np.float32)
    return Task(*parts, names[of_target])


def predict_seconds(n_rows: int) -> dict[str, float]:
    """Return the processor seconds of `predict` by each method."""
    task = generated(1000)
    later = generated(n_rows).target
    found = {}
    for method in (Committee(), MovingMeans()):
        seconds_of(method, task)
        method.predict(later[:1000])
        started = time.process_time()
        method.predict(later)
        found[type(method).__name__] = time.process_time() - started
    return found


def sizes(fitted: OpenSetClassifier) -> tuple[float, float]:
    """Return the megabytes of the saved model, and of the exported one."""
    with tempfile.TemporaryDirectory() as folder:
        save(fitted, Path(folder) / "model")
        files = [path for path in (Path(folder) / "model").rglob("*") if path.is_file()]
        saved = sum(path.stat().st_size for path in files)
    return saved / MEGABYTE, len(to_onnx(fitted)) / MEGABYTE


def with_units(task: Task) -> tuple[Task, Task]:
    """Return a task with standardised columns, and with the same in different units."""
    mean, deviation = task.X.mean(axis=0), task.X.std(axis=0) + 1e-9
    width = task.X.shape[1]
    powers = np.random.default_rng(3).permutation(np.linspace(UNITS[0], UNITS[1], width))
    plain = task._replace(X=(task.X - mean) / deviation, target=(task.target - mean) / deviation)
    units = 10.0**powers
    return plain, plain._replace(X=plain.X * units, target=plain.target * units)


def hos(task: Task) -> float:
    """Return HOS with the share told."""
    fitted = task.fit(float((task.truth == UNKNOWN).mean()))
    return 100 * float(evaluate(task.truth, fitted.transduction_, fitted.classes_).hos)


def of_task(task: Task) -> list[float]:
    """Return the figures of a task, in the order of `COLUMNS_OF_SUITES`."""
    fitted = task.fit()
    right = fitted.transduction_ == task.truth
    confidence = fitted.transduction_confidence_
    later = fitted.predict_proba(task.target)
    labels = fitted.predict(task.target)
    names = np.array([*fitted.classes_, UNKNOWN])
    contradicting = (names[fitted.transduction_proba_.argmax(axis=1)] != fitted.transduction_).sum()
    contradicting += (names[later.argmax(axis=1)] != labels).sum()
    return [
        float(evaluate(task.truth, fitted.transduction_, fitted.classes_).hos),
        expected_calibration_error(confidence, right),
        float(roc_auc_score(right, confidence)),
        float(roc_auc_score(labels == task.truth, later.max(axis=1))),
        float((labels != fitted.transduction_).mean()),
        float(contradicting),
        hos(task) / 100,
    ]


def measure_suites(data: Path) -> None:
    """Measure the tasks that are missing, and keep a row for each."""
    done = {(row["suite"], row["task"]) for row in read_figures()}
    for suite in SUITES:
        for name, task in islice(tasks_of(suite, data, ROWS), TASKS):
            if (suite, name) in done:
                continue
            figures = [f"{value:.4f}" for value in of_task(task)]
            is_new = not FIGURES.exists()
            with FIGURES.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                if is_new:
                    writer.writerow(["suite", "task", *COLUMNS_OF_SUITES])
                writer.writerow([suite, name, *figures])


def read_figures() -> list[dict[str, str]]:
    """Return the rows that were measured."""
    if not FIGURES.exists():
        return []
    with FIGURES.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def show_suites() -> None:
    """Print the mean of each suite, and of all, and write them into the docs."""
    rows = read_figures()
    lines = []
    for suite in SUITES:
        own = [row for row in rows if row["suite"] == suite]
        if own:
            lines.append([fmean(float(row[name]) for row in own) for name in COLUMNS_OF_SUITES])
    lines.append([fmean(column) for column in zip(*lines, strict=True)])
    texts = [
        [suite, *(f"{value:.3f}" for value in line)]
        for suite, line in zip((*SUITES, "mean"), lines, strict=True)
    ]
    table = markdown(["suite", *(name.replace("_", " ") for name in COLUMNS_OF_SUITES)], texts)
    print(table)
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), {"committee": table}), encoding="utf-8")


def main() -> None:
    """Measure, and print a line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--predicted", type=int, default=100_000, help="rows")
    parser.add_argument("--suites", action="store_true", help="six tasks of every suite instead")
    parser.add_argument("--show", action="store_true", help="show them without measuring")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if given.suites or given.show:
        if not given.show:
            measure_suites(given.data)
        show_suites()
        return
    for name, seconds in predict_seconds(given.predicted).items():
        print(f"predict of {given.predicted:,} rows, {name}: {seconds:.1f} s", flush=True)
    office = find_suite("office31-lite0", given.data)
    if office is not None:
        read = office.read("amazon-dslr")
        features = (read.source_features, read.source_labels, read.target_features)
        task = Task(*features, np.asarray(read.target_truth))
        fitted = Committee()
        print(f"fit, Office-31 A-D: {seconds_of(fitted, task):.1f} s", flush=True)
        saved, exported = sizes(fitted)
        print(f"saved {saved:.1f} MB, exported {exported:.1f} MB", flush=True)
    pacs = find_suite("pacs", given.data)
    if pacs is not None:
        read = pacs.read("photo-sketch")
        some = np.random.default_rng(0).permutation(len(read.source_features))[:759]
        source = read.source_features[some], np.asarray(read.source_labels)[some]
        task = Task(*source, read.target_features, np.asarray(read.target_truth))
        seconds = seconds_of(Committee(), task)
        print(f"fit, {len(some)} + {len(task.target):,} rows: {seconds:.1f} s", flush=True)
    pairs = [with_units(task) for _, task in tasks_of("fsdd", given.data, ROWS)][:UNITS_TASKS]
    if pairs:
        plain = fmean(hos(one) for one, _ in pairs)
        units = fmean(hos(other) for _, other in pairs)
        print(f"HOS on fsdd, standardised columns {plain:.1f}, in different units {units:.1f}")


if __name__ == "__main__":
    main()
