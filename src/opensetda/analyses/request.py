"""What an analysis gets, and what it returns: one method on one task, a table and a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from opensetda.base import OpenSetClassifier
from opensetda.benchmark.grid import AUTO, TRUE, fit_task
from opensetda.benchmark.output import Entry, TextTable, markdown, number, write_csv
from opensetda.benchmark.tasks import TaskSet
from opensetda.benchmark.variants import Variant
from opensetda.context import FitContext
from opensetda.data.benchmarks.protocols import OpenSetTask
from opensetda.errors import InputError
from opensetda.progress import ProgressListener
from opensetda.rows import FloatArray, IntArray
from opensetda.runs.figure_style import figure_bytes
from opensetda.runs.methods import method_class
from opensetda.system.files import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class AnalysisRequest:
    """The data and the options of an analysis, which is of the first task.

    The methods get the true share of unknowns ("true"), or have to estimate it ("auto").
    """

    tasks: TaskSet
    variants: Sequence[Variant]
    openness: str = TRUE
    seed: int = 0
    progress: ProgressListener | None = None

    @property
    def what(self) -> str:
        """Benchmark, task, openness and seed in words."""
        share = "true openness" if self.openness == TRUE else "estimated openness"
        return f"{self.tasks.name} {self.tasks.tasks[0]} ({share}, seed {self.seed})"

    @cached_property
    def task(self) -> OpenSetTask:
        """The task that is analysed."""
        return self.tasks.read(self.tasks.tasks[0])

    def check_features(self) -> None:
        """Raise an `InputError` for a method without ``transform``."""
        for variant in self.variants:
            if not method_class(variant.method).transforms_domains:
                why = "it learns no features of its own (it has no transform)"
                raise InputError(f"--method {variant.label}: {why}; leave it out")

    def fit(self, variant: Variant | None = None) -> FittedTask:
        """Fit a method, by default the first, without the truth."""
        variant, task = variant or self.variants[0], self.task
        share = task.openness if self.openness == TRUE else AUTO
        classifier = variant.build(share, self.seed)
        fit_task(classifier, task, FitContext(progress=self.progress))
        return FittedTask(variant.label, classifier, task)


@dataclass(frozen=True)
class FittedTask:
    """A method that was fitted to a task, beside the truth, which it has not seen."""

    method: str
    classifier: OpenSetClassifier
    task: OpenSetTask

    @property
    def n_classes(self) -> int:
        """C, the number of known classes."""
        return len(self.classifier.classes_)

    @property
    def rows(self) -> FloatArray:
        """The rows of both domains, sources first: (n_s + n_t, D)."""
        both = self.task.source_features, self.task.target_features
        return np.concatenate(both, dtype=np.float64)

    @property
    def source_labels(self) -> IntArray:
        """The classes of the source rows: (n_s,)."""
        return true_classes(self.task.source_labels, self.classifier.classes_)

    @property
    def truth(self) -> IntArray:
        """The classes of the target rows, C for unknown: (n_t,)."""
        return true_classes(self.task.target_truth, self.classifier.classes_)

    @property
    def step_labels(self) -> IntArray:
        """The labels of the targets after each step: (steps, n_t)."""
        if self.classifier.step_labels_ is None:
            raise InputError(f"--method {self.method}: it has no steps; take pgl or moving-means")
        return self.classifier.step_labels_

    def features(self) -> tuple[FloatArray, FloatArray]:
        """Return how the method represents both domains: (n_s, d), (n_t, d)."""
        classifier: Any = self.classifier
        n_source, n_target = len(self.task.source_features), len(self.task.target_features)
        domain = np.repeat([0, -1], [n_source, n_target])
        both = np.asarray(classifier.transform(self.rows, sample_domain=domain))
        return both[:n_source], both[n_source:]

    @torch.no_grad()
    def source_classes(self) -> IntArray:
        """Return the class that the method gives to each row of the source: (n_s,)."""
        scorer: Any = self.classifier.scorer_
        rows = torch.from_numpy(np.array(self.task.source_features))
        x = self.classifier.scaler_(rows, of_source=True)
        # Without alignment, rows of both domains are scored alike.
        aligned = hasattr(scorer, "alignment")
        logits = scorer.score(scorer.embed(x, True))[0] if aligned else scorer(x)[0]
        return np.asarray(logits.argmax(dim=1).numpy())


def true_classes(truth: Any, classes: Any) -> IntArray:
    """Return class indices of true labels, C for all unknown classes."""
    place = np.minimum(np.searchsorted(classes, truth), len(classes) - 1)
    return np.asarray(np.where(classes[place] == truth, place, len(classes)), dtype=np.intp)


def share_above(higher: FloatArray, lower: FloatArray) -> float:
    """Return AUROC: the share of pairs whose first is larger, a tie counts half; NaN of none."""
    if not len(higher) or not len(lower):
        return math.nan
    is_first = np.repeat([1, 0], [len(higher), len(lower)])
    return float(roc_auc_score(is_first, np.concatenate([higher, lower])))


class Column(NamedTuple):
    """A column of numbers, or of text without `digits`; percentages are `scale` 100."""

    heading: str
    digits: int | None = None
    scale: float = 1

    def text(self, value: Any) -> str:
        """Return a value as text."""
        return str(value) if self.digits is None else number(value * self.scale, self.digits)


@dataclass(frozen=True)
class AnalysisResult:
    """A table, whose rows have unrounded values by column, and a figure."""

    title: str
    columns: Mapping[str, Column]
    rows: Sequence[Mapping[str, Any]]
    figure: Figure
    notes: Sequence[str] = ()

    def table(self) -> TextTable:
        """Return the table as text."""
        headings = tuple(column.heading for column in self.columns.values())
        rows = [[c.text(row[name]) for name, c in self.columns.items()] for row in self.rows]
        return TextTable(self.title, headings, tuple(tuple(map(Entry, row)) for row in rows))

    def write(self, folder: Path, name: str, command: str) -> list[Path]:
        """Write table (.csv, .md) and figure (.png, .pdf); return the paths."""
        folder.mkdir(parents=True, exist_ok=True)
        notes = "".join(f"\n{note}\n" for note in self.notes)
        page = f"{markdown(self.table())}{notes}\n![]({name}.png)\n\nMade by `{command}`.\n"
        paths = [folder / f"{name}.{ending}" for ending in ("csv", "md", "png", "pdf")]
        for path in paths:
            with new_file(path) as aside:
                if path.suffix == ".csv":
                    write_csv(self.rows, aside)
                elif path.suffix == ".md":
                    aside.write_text(page, encoding="utf-8")
                else:
                    aside.write_bytes(figure_bytes(self.figure, path.suffix[1:]))
        return paths
