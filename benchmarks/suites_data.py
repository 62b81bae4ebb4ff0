"""The suites: which tasks each of them has, and how a task is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from office31 import TASKS, load_task
from opensetda.data.benchmarks.digits import load_digits_task
from opensetda.data.benchmarks.protocols import ClassSplit, OpenSetTask, open_set_task
from opensetda.rows import FloatArray

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Has office31-features/BACKBONE and suites/NAME."""

OFFICE = {
    "office31-efficientnet-lite0": "efficientnet-lite0",
    "office31-resnet50": "resnet50",
}
"""Suites of Office-31 features, and their backbone."""
TABLES = ("pacs", "gas", "fsdd", "news2")
"""Suites with a tasks.json: pairs of domains, and the indices of the known classes."""
DIGITS = "digits"
"""Bundled, so it runs without a data folder."""
PARTIAL = "office31-partial-resnet50"
"""The source has ten classes that the target lacks."""
SUITES = (*OFFICE, *TABLES, DIGITS, PARTIAL)

N_SHARED, N_LABELLED, N_UNKNOWN = 10, 20, 11

Domain = tuple[FloatArray, npt.NDArray[Any]]


def folder_of(suite: str, data: Path) -> Path:
    """Return the folder of a suite, which may be missing; the digits need none."""
    if suite in TABLES:
        return data / "suites" / suite
    return data / "office31-features" / OFFICE.get(suite, "resnet50")


def is_there(suite: str, data: Path) -> bool:
    """Whether a suite can be run."""
    return suite == DIGITS or folder_of(suite, data).is_dir()


def task_names(suite: str, data: Path) -> list[str]:
    """Return the names of a suite's tasks."""
    if suite == DIGITS:
        return ["mnist-digits"]
    if suite not in TABLES:
        return list(TASKS)
    return ["-".join(pair) for pair in _listing(folder_of(suite, data))["tasks"]]


# Cells of one task follow each other.
@lru_cache(maxsize=2)
def read_task(suite: str, name: str, data: Path) -> OpenSetTask:
    """Read a task by its name."""
    folder = folder_of(suite, data)
    if suite == DIGITS:
        return load_digits_task()
    if suite in OFFICE:
        return load_task(folder, *TASKS[name])
    if suite == PARTIAL:
        source, target = (read_domain(folder / f"{part}.npz") for part in TASKS[name])
        return partial_task(source, target)
    listing = _listing(folder)
    pairs = {"-".join(pair): pair for pair in listing["tasks"]}
    source, target = (read_domain(folder / f"{part}.npz") for part in pairs[name])
    with np.load(folder / f"{pairs[name][0]}.npz") as file:
        classes = file["classes"]
    return table_task(source, target, classes, listing["known"])


def read_domain(path: Path) -> Domain:
    """Read features and class names."""
    with np.load(path) as file:
        return file["X"].astype(np.float32), file["classes"][file["y"]]


def table_task(
    source: Domain, target: Domain, classes: Sequence[str], known: Sequence[int]
) -> OpenSetTask:
    """Make a task: the source keeps the known classes, the target keeps all."""
    names = [str(name) for name in classes]
    known_names = tuple(names[index] for index in known)
    unknown = tuple(name for name in names if name not in known_names)
    return open_set_task(source, target, ClassSplit(known_names, unknown))


def partial_task(source: Domain, target: Domain) -> OpenSetTask:
    """Make a task whose source has more classes than the target shares.

    By the alphabet: 10 classes of both domains, 10 of the source alone, the last 11 unknown.
    """
    names = sorted({*source[1].tolist(), *target[1].tolist()})
    split = ClassSplit(tuple(names[:N_LABELLED]), tuple(names[-N_UNKNOWN:]))
    task = open_set_task(source, target, split)
    rows = np.flatnonzero(~np.isin(task.target_truth, names[N_SHARED:N_LABELLED]))
    parts = ("target_features", "target_truth", "target_rows")
    return replace(task, **{part: getattr(task, part)[rows] for part in parts})


def _listing(folder: Path) -> dict[str, Any]:
    listing: dict[str, Any] = json.loads((folder / "tasks.json").read_text(encoding="utf-8"))
    return listing
