"""What an analysis gets, methods fitted to a task, and what it returns, a table and a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score

from opensetda.benchmark.grid import AUTO, TRUE, fit_task
from opensetda.benchmark.output import Entry, TextTable, markdown, number, write_csv
from opensetda.benchmark.tasks import TaskSet
from opensetda.benchmark.variants import Variant
from opensetda.context import FitContext
from opensetda.data.benchmarks.protocols import OpenSetTask
from opensetda.errors import InputError
from opensetda.methods.base import OpenSetClassifier
from opensetda.progress import ProgressListener
from opensetda.report.charts import figure_bytes
from opensetda.report.run_parts import codes_of
from opensetda.rows import FloatArray, IntArray
from opensetda.system.files import new_file


@dataclass(frozen=True)
class FittedTask:
    """A method that was fitted to a task, beside the truth, which it has not seen.

    `what` are benchmark, task, openness and seed in words. `source_labels` (n_s,) and `truth`
    (n_t,) are places in the C known classes, C for unknown.
    """

    method: str
    classifier: OpenSetClassifier
    task: OpenSetTask
    what: str
    seed: int
    n_classes: int
    source_labels: IntArray
    truth: IntArray

    @property
    def rows(self) -> FloatArray:
        """The rows of both domains, sources first: (n_s + n_t, D)."""
        both = self.task.source_features, self.task.target_features
        return np.concatenate(both, dtype=np.float64)

    @property
    def step_labels(self) -> IntArray:
        """The labels of the targets after each step: (steps, n_t)."""
        if self.classifier.step_labels_ is None:
            raise InputError(f"--method {self.method}: it has no steps; take pgl or moving-means")
        return self.classifier.step_labels_

    def features(self) -> tuple[FloatArray, FloatArray]:
        """Return how the method represents both domains: (n_s, d), (n_t, d)."""
        classifier: Any = self.classifier
        if not classifier.transforms_domains:
            raise InputError(f"--method {self.method}: it learns no features; leave it out")
        n_source = len(self.source_labels)
        domain = np.repeat([0, -1], [n_source, len(self.truth)])
        both = np.asarray(classifier.transform(self.rows, sample_domain=domain))
        return both[:n_source], both[n_source:]


def fit_methods(
    tasks: TaskSet,
    variants: Sequence[Variant],
    openness: str = TRUE,
    seed: int = 0,
    progress: ProgressListener | None = None,
) -> list[FittedTask]:
    """Fit methods to the first task, with the true share of unknowns or an estimate ("auto")."""
    task = tasks.read(tasks.tasks[0])
    told = "true openness" if openness == TRUE else "estimated openness"
    what = f"{tasks.name} {tasks.tasks[0]} ({told}, seed {seed})"
    fits = []
    for variant in variants:
        classifier = variant.build(task.openness if openness == TRUE else AUTO, seed)
        fit_task(classifier, task, FitContext(progress=progress))
        classes = classifier.classes_.tolist()
        fits.append(
            FittedTask(
                method=variant.label,
                classifier=classifier,
                task=task,
                what=what,
                seed=seed,
                n_classes=len(classes),
                source_labels=codes_of(task.source_labels, classes),
                truth=codes_of(task.target_truth, classes),
            )
        )
    return fits


def share_above(higher: FloatArray, lower: FloatArray) -> float:
    """Return AUROC: the share of pairs whose first is larger, a tie counts half; NaN of none."""
    is_first = np.repeat([1, 0], [len(higher), len(lower)])
    both = np.concatenate([higher, lower])
    return float(roc_auc_score(is_first, both)) if len(higher) and len(lower) else math.nan


@dataclass(frozen=True)
class AnalysisResult:
    """A table, whose rows have unrounded values by column, and a figure; `columns` are headings."""

    title: str
    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, Any]]
    figure: Figure

    def table(self) -> TextTable:
        """Return the table as text."""
        rows = [
            tuple(Entry(shown(row[name], heading)) for name, heading in self.columns.items())
            for row in self.rows
        ]
        return TextTable(self.title, tuple(self.columns.values()), tuple(rows))

    def write(self, folder: Path, name: str, command: str) -> list[Path]:
        """Write table (.csv, .md) and figure (.png); return the paths."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{name}.{ending}" for ending in ("csv", "md", "png")]
        page = f"{markdown(self.table())}\n![]({name}.png)\n\nMade by `{command}`.\n"
        with new_file(paths[0]) as aside:
            write_csv(self.rows, aside)
        with new_file(paths[1]) as aside:
            aside.write_text(page, encoding="utf-8")
        with new_file(paths[2]) as aside:
            aside.write_bytes(figure_bytes(self.figure, "png"))
        return paths


def shown(value: Any, heading: str) -> str:
    """Return a value as text: with three decimals, or one if the heading says "%"."""
    if not isinstance(value, float):
        return str(value)
    return number(100 * value, 1) if heading.endswith("%") else number(value, 3)
