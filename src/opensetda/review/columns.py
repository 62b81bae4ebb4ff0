"""The columns in which samples of a table stand out, for a person to recognise them by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.data.tables.loading import TableColumns, read_samples
from opensetda.errors import InputError, one_line
from opensetda.report.content import Indices
from opensetda.runs.folder import MODEL, RunFolder
from opensetda.runs.predictions import PredictionTable
from opensetda.system.files import file_record

MOST_COLUMNS = 6
# Numbers of a table that are read: 100 MB.
_MOST_CELLS = 25_000_000
# Deviations, below which a column does not differ.
_LEAST = 0.05
# Rows of a long list whose means are taken.
_MOST_AVERAGED = 5000


@dataclass(frozen=True)
class Columns:
    """The rows of the targets, with means and deviations; `note` says why there are none."""

    X: Any
    names: tuple[str, ...]
    mean: Any
    deviation: Any
    of_class: dict[str, Any]
    labels: Any
    note: str = ""

    def of(self, rows: Indices, nearest: str | None = None) -> list[dict[str, Any]]:
        """Return the columns in which samples differ most from all targets.

        The difference of their mean is in standard deviations of the targets; so is the difference
        from the mean of the targets with the label `nearest`, by default the class that is nearest
        to them.
        """
        if not self.names or not len(rows):
            return []
        values = self.X[rows[:_MOST_AVERAGED]].mean(axis=0, dtype=np.float64)
        apart = (values - self.mean) / self.deviation
        if nearest is None:
            nearest = self._nearest(values, set(self.labels[rows].tolist()))
        own = self.of_class.get(nearest) if nearest is not None else None
        best = np.argsort(-np.abs(apart), kind="stable")[:MOST_COLUMNS].tolist()
        return [
            {
                "name": self.names[place],
                "value": _rounded(values[place]),
                "typical": _rounded(self.mean[place]),
                "apart": round(float(apart[place]), 1),
                "nearest": None if own is None else nearest,
                "fromNearest": None
                if own is None
                else round(float((values[place] - own[place]) / self.deviation[place]), 1),
            }
            for place in best
            if abs(apart[place]) >= _LEAST
        ]

    def _nearest(self, values: Any, own: set[str]) -> str | None:
        """Return the label, not their own, whose targets are nearest."""
        distances = {
            label: float(np.square((values - mean) / self.deviation).sum())
            for label, mean in self.of_class.items()
            if label not in own
        }
        return min(distances, key=distances.__getitem__, default=None)


NO_COLUMNS = Columns(None, (), None, None, {}, None)


def open_columns(run: RunFolder, table: PredictionTable) -> Columns:
    """Read the target's table, if it is still what the run was made with."""
    has_names = run.manifest.has(MODEL) and not run.has_images
    record = run.settings["inputs"]["target"]
    path = record.get("path", "")
    try:
        names = run.feature_names() if has_names else None
        if not names:
            return NO_COLUMNS
        if len(table) * len(names) > _MOST_CELLS:
            raise InputError(f"{path}: too large to show its columns here")
        if not Path(path).is_file() or file_record(Path(path))["sha256"] != record.get("sha256"):
            raise InputError(f"{path}: changed or gone since the run, so its columns are not shown")
        given = {name: run.column(name) for name in ("label", "id", "features")}
        columns = TableColumns(**{name: value for name, value in given.items() if value})
        X = read_samples(path, len(names), names, columns, plan=run.column_plan()).X
        if len(X) != len(table):
            raise InputError(f"{path}: {len(X)} rows for {len(table)} targets")
    except (InputError, OSError) as error:
        return Columns(None, (), None, None, {}, None, one_line(error))
    mean = X.mean(axis=0, dtype=np.float64)
    # One at a time: of all together, a copy in twice the precision would be made.
    deviation = np.array([column.std(dtype=np.float64) for column in X.T])
    # A constant column tells nothing.
    deviation = np.where(deviation > 0, deviation, np.inf)
    of_class = {
        label: X[table.labels == label].mean(axis=0, dtype=np.float64)
        for label in np.unique(table.labels).tolist()
    }
    return Columns(X, names, mean, deviation, of_class, table.labels)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
