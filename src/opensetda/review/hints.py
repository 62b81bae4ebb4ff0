"""What helps to judge a label: columns in which a sample stands out, and rows of the source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.tables.loading import TableColumns, read_samples
from opensetda.errors import InputError, one_line
from opensetda.report.content import Indices, Numbers
from opensetda.runs.folder import RunFolder
from opensetda.runs.predictions import PredictionTable
from opensetda.system.files import file_record

MOST_COLUMNS = 6
# Numbers of a table that are read: 100 MB.
_MOST_CELLS = 25_000_000


@dataclass(frozen=True)
class LabelledSource:
    """Rows of the source that the run kept, and their classes."""

    rows: npt.NDArray[np.float32]
    y: Indices
    classes: tuple[str, ...]

    def nearest(self, apart: Numbers) -> tuple[str, Numbers, Numbers]:
        """Return the class of the nearest row, that row, and the mean of the class.

        Rows are compared in standard deviations from the mean of their own domain: (D,).
        """
        deviation = self.rows.std(axis=0)
        own = (self.rows - self.rows.mean(axis=0)) / np.where(deviation > 0, deviation, np.inf)
        row = int(((own - apart) ** 2).sum(axis=1).argmin())
        of_class = self.rows[self.y == self.y[row]]
        return self.classes[self.y[row]], self.rows[row], of_class.mean(axis=0)


@dataclass(frozen=True)
class Columns:
    """The rows of the targets, with means and deviations; `note` says why there are none."""

    names: tuple[str, ...] = ()
    X: Any = None
    mean: Any = None
    deviation: Any = None
    note: str = ""
    source: LabelledSource | None = None

    def of(self, rows: Indices) -> list[dict[str, Any]]:
        """Return columns whose mean over some samples differs most from that of all targets.

        The difference is in standard deviations of the targets.
        """
        if not self.names or not len(rows):
            return []
        values = self.X[rows].mean(axis=0, dtype=np.float64)
        apart = (values - self.mean) / self.deviation
        best = np.argsort(-np.abs(apart), kind="stable")[:MOST_COLUMNS].tolist()
        shown = [
            {
                "name": self.names[place],
                "value": float(f"{values[place]:.4g}"),
                "typical": float(f"{self.mean[place]:.4g}"),
                "apart": round(float(apart[place]), 1),
            }
            for place in best
            if abs(apart[place]) >= 0.05  # the others are shown as 0.0
        ]
        if self.source is not None and len(rows) == 1:
            label, row, mean = self.source.nearest(apart)
            for entry, place in zip(shown, best, strict=False):
                entry["class"] = label
                entry["near"] = float(f"{row[place]:.4g}")
                entry["mean"] = float(f"{mean[place]:.4g}")
        return shown


def open_columns(run: RunFolder, table: PredictionTable) -> Columns:
    """Read the target's table, if it is still what the run was made with."""
    record = run.settings["inputs"]["target"]
    path = record.get("path", "")
    try:
        names = None if run.has_images else run.feature_names()
        if not names:
            return Columns()
        if len(table) * len(names) > _MOST_CELLS:
            raise InputError(f"{path}: too large to show its columns here")
        if not Path(path).is_file() or file_record(Path(path))["sha256"] != record.get("sha256"):
            raise InputError(f"{path}: changed or gone since the run, so its columns are not shown")
        given = {name: run.column(name) for name in ("label", "id", "features")}
        columns = TableColumns(**{name: value for name, value in given.items() if value})
        X = read_samples(path, len(names), names, columns, plan=run.column_plan()).X
    except (InputError, OSError) as error:
        return Columns(note=one_line(error))
    # One at a time: of all together, a copy in twice the precision would be made.
    deviation = np.array([column.std(dtype=np.float64) for column in X.T])
    # A constant column tells nothing.
    deviation = np.where(deviation > 0, deviation, np.inf)
    kept = run.kept()
    source = None
    if kept is not None and kept.rows.shape[1:] == X.shape[1:] and len(kept.rows):
        source = LabelledSource(kept.rows, kept.y, kept.classes)
    return Columns(names, X, X.mean(axis=0, dtype=np.float64), deviation, source=source)
