"""The suites of suites.py: office objects, drawings, speech, sensors and text, as tasks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from opensetda.benchmark.tasks import TaskSet, find_tasks, read_all
from opensetda.data.benchmarks.protocols import ClassSplit, OpenSetTask, open_set_task
from opensetda.features.alignment import Alignment
from opensetda.features.scaling import Scaling
from opensetda.usecases.fit_rows import read_rows_of

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
OFFICE31 = {"office31-lite0": "efficientnet-lite0", "office31-resnet50": "resnet50"}
SUITES = (*OFFICE31, "pacs", "fsdd", "gas", "news2")


def find_suite(
    suite: str, data: Path, n_tasks: int | None = None, most_rows: int | None = None
) -> TaskSet | None:
    """Return the tasks of a suite, by default all of them and all rows; None if not there."""
    if suite in OFFICE31:
        folder = data / "office31-features" / OFFICE31[suite]
        found = find_tasks("office31", folder) if folder.is_dir() else None
    else:
        found = _find_own(suite, data / "suites" / suite)
    if found is None or (n_tasks is None and most_rows is None):
        return found
    # The same order for any number, so that more tasks can be added later.
    order = np.random.default_rng(0).permutation(len(found.tasks))
    names = [found.tasks[place] for place in sorted(order[:n_tasks])]
    read = partial(read_fewer_rows, read=found.read, most=most_rows or sys.maxsize)
    return read_all(suite, names, read)


def _find_own(suite: str, folder: Path) -> TaskSet | None:
    if not folder.is_dir():
        return None
    listing = json.loads((folder / "tasks.json").read_text(encoding="utf-8"))
    pairs = {"-".join(pair): pair for pair in listing["tasks"]}
    read = partial(read_task, folder=folder, pairs=pairs, known=listing["known"])
    return read_all(suite, pairs, read)


def read_task(
    name: str,
    folder: Path,
    pairs: dict[str, Sequence[str]],
    known: Sequence[int],
    warnings: list[str] | None = None,
) -> OpenSetTask:
    """Read two domains: the source keeps the known classes, the target keeps all."""
    domains = []
    for domain in pairs[name]:
        with np.load(folder / f"{domain}.npz") as file:
            classes = file["classes"]
            domains.append((file["X"].astype(np.float32), classes[file["y"]]))
    names = [str(label) for label in classes]
    split = [names[index] for index in known]
    unknown = tuple(label for label in names if label not in split)
    return open_set_task(domains[0], domains[1], ClassSplit(tuple(split), unknown))


def read_fewer_rows(
    name: str,
    read: Callable[..., OpenSetTask],
    most: int,
    warnings: list[str] | None = None,
) -> OpenSetTask:
    """Read at most so many rows of either domain, always the same ones, in their order."""
    task = read(name)
    rng = np.random.default_rng(0)
    source = np.sort(rng.permutation(len(task.source_labels))[:most])
    target = np.sort(rng.permutation(len(task.target_truth))[:most])
    return replace(
        task,
        source_features=task.source_features[source],
        source_labels=task.source_labels[source],
        target_features=task.target_features[target],
        target_truth=task.target_truth[target],
    )


def aligned_task(
    name: str,
    read: Callable[..., OpenSetTask],
    scaling: str,
    warnings: list[str] | None = None,
) -> OpenSetTask:
    """Read a task, scale its rows and align its domains, without any label."""
    task = read(name)
    domains = read_rows_of(task.source_features, task.source_labels, task.target_features)
    _, scaled = Scaling.applied(scaling, domains)
    alignment = Alignment.fit(scaled.source, scaled.target)
    # Domains have an order of their own.
    source = np.empty((len(task.source_labels), alignment.width_out), dtype=np.float32)
    source[scaled.source.index] = alignment.source(scaled.source)
    target = np.empty((len(task.target_truth), alignment.width_out), dtype=np.float32)
    target[scaled.target.index - len(source)] = alignment.target(scaled.target)
    return replace(task, source_features=source, target_features=target)
