"""Source and target that are arrays or DataFrames in memory, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.names import label_problem
from opensetda.data.tables import mapped
from opensetda.data.tables.column_files import frame_table, is_frame
from opensetda.data.tables.loading import FeatureTable, TableColumns, read_domains
from opensetda.errors import InputError
from opensetda.runs.request import TableOptions

_CHUNK = 4096


@dataclass(frozen=True)
class DomainArrays:
    """Features of source and target, and the labels of the source as text.

    Only DataFrames have `tables`, with names of features and what was done with columns.
    """

    source: npt.NDArray[Any]
    labels: npt.NDArray[np.str_]
    target: npt.NDArray[Any]
    tables: tuple[FeatureTable, FeatureTable] | None = None

    @classmethod
    def of(
        cls, source: Any, labels: Any, target: Any, options: TableOptions | None = None
    ) -> DomainArrays:
        """Check what a caller gave, or raise an `InputError` that names the array and the row."""
        if labels is None and isinstance(source, tuple) and len(source) == 2:
            source, labels = source
        if is_frame(source) and is_frame(target):
            return cls._of_frames(source, labels, target, options or TableOptions())
        if options is not None and options != TableOptions():
            raise InputError("tables: for files and DataFrames; source and target are arrays")
        if labels is None:
            raise InputError("source: labels are missing; give (X, y), or X with labels=y")
        X = feature_rows(source, "source")
        y = label_text(labels, "source labels", "label the row or remove it")
        if len(y) != len(X):
            raise InputError(f"source labels: {len(y)} entries for {len(X)} rows of features")
        classes = np.unique(y)
        if len(classes) < 2:
            raise InputError(
                f"source labels: one class only ({str(classes[0])!r}); "
                "give labelled rows of at least two classes"
            )
        return cls(X, y, feature_rows(target, "target", (X.shape[1], "the source")))

    @classmethod
    def _of_frames(
        cls, source: Any, labels: Any, target: Any, options: TableOptions
    ) -> DomainArrays:
        columns, own = table_columns(options), None
        if labels is not None:
            own = columns.label, label_text(labels, "source labels", "label the row or remove it")
        tables = frame_table(source, "source", own), frame_table(target, "target")
        read = read_domains(*tables, columns)
        assert read[0].labels is not None, "read_domains returns a labelled source"
        return cls(read[0].X, read[0].labels, read[1].X, read)


def feature_rows(X: Any, name: str, expected: tuple[int, str] | None = None) -> npt.NDArray[Any]:
    """Return an array as finite float32 rows; a memory map stays one.

    `expected` is the number of features it must have, and what has that number.
    """
    try:
        values = X if isinstance(X, np.memmap) else np.asarray(X)
    except ValueError as error:
        raise InputError(f"{name}: not an array of numbers ({error})") from None
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        raise InputError(
            f"{name}: shape {values.shape} of {values.dtype}; features need numbers in two "
            "dimensions, one row per sample"
        )
    if 0 in values.shape:
        what = "row" if not len(values) else "feature"
        raise InputError(f"{name}: shape {values.shape}; give at least one {what}")
    if expected is not None and values.shape[1] != expected[0]:
        raise InputError(
            f"{name}: {values.shape[1]} features, but {expected[1]} has {expected[0]}; "
            "both must come from the same feature extractor"
        )
    for start in range(0, len(values), _CHUNK):
        mapped.check_finite_values(Path(name), start, np.asarray(values[start : start + _CHUNK]))
    return (
        values if isinstance(values, np.memmap) else np.ascontiguousarray(mapped.to_float32(values))
    )


def label_text(labels: Any, name: str, advice: str) -> npt.NDArray[np.str_]:
    """Return labels as text, or raise an `InputError` that names the first empty one."""
    values = np.asarray(labels)
    if values.ndim != 1 or not len(values):
        raise InputError(f"{name}: shape {values.shape}; give one label per row")
    text = mapped.as_text(values, name)
    mapped.check_cells(text, Path(name), "labels", advice, label_problem)
    return mapped.fixed_width(text, Path(name), "labels")


def table_columns(options: TableOptions) -> TableColumns:
    """Return the columns of feature tables."""
    more = {name: getattr(options, name) for name in ("drop", "keep", "one_hot", "impute")}
    return TableColumns(options.label or "y", options.id, options.features, **more)
