"""Source and target that are arrays or DataFrames in memory, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from opensetda.data.names import label_problem
from opensetda.data.tables import mapped
from opensetda.data.tables.column_files import frame_table, is_frame
from opensetda.data.tables.loading import FeatureTable, TableColumns, read_domains
from opensetda.errors import InputError
from opensetda.runs.request import ARRAY, TableOptions

_CHUNK = 4096


class DomainArrays(NamedTuple):
    """Source and target as tables; only those of DataFrames have names of features."""

    source: FeatureTable
    target: FeatureTable

    @classmethod
    def of(
        cls, source: Any, labels: Any, target: Any, options: TableOptions | None = None
    ) -> DomainArrays:
        """Check what a caller gave, or raise an `InputError` that names the array and the row."""
        if labels is None and isinstance(source, tuple) and len(source) == 2:
            source, labels = source
        y = None if labels is None else _label_text(labels, "source labels")
        if is_frame(source) and is_frame(target):
            columns = table_columns(options or TableOptions())
            own = None if y is None else (columns.label, y)
            frames = frame_table(source, "source", own), frame_table(target, "target")
            return cls(*read_domains(*frames, columns))
        if options is not None and options != TableOptions():
            raise InputError("tables: for files and DataFrames; source and target are arrays")
        if y is None:
            raise InputError("source: labels are missing; give (X, y), or X with labels=y")
        X = feature_rows(source, "source")
        if len(y) != len(X):
            raise InputError(f"source labels: {len(y)} entries for {len(X)} rows of features")
        if (y == y[0]).all():
            raise InputError(
                f"source labels: one class only ({str(y[0])!r}); "
                "give labelled rows of at least two classes"
            )
        later = feature_rows(target, "target", (X.shape[1], "the source"))
        where = Path(ARRAY)
        return cls(
            FeatureTable(X, y, None, None, where), FeatureTable(later, None, None, None, where)
        )


def feature_rows(X: Any, name: str, expected: tuple[int, str] | None = None) -> npt.NDArray[Any]:
    """Return an array as finite float32 rows; a memory map stays one.

    `expected` is the number of features it must have, and what has that number.
    """
    try:
        values = X if isinstance(X, np.memmap) else np.asarray(X)
    except ValueError as error:
        raise InputError(f"{name}: not an array of numbers ({error})") from None
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        found = f"the array has shape {values.shape} of {values.dtype}"
        needed = "features need numbers in two dimensions, one row per sample"
        raise InputError(f"{name}: {found}; {needed}")
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
    if isinstance(values, np.memmap):
        return values
    return np.ascontiguousarray(mapped.to_float32(values))


def _label_text(labels: Any, name: str) -> npt.NDArray[np.str_]:
    values = np.asarray(labels)
    if values.ndim != 1 or not len(values):
        raise InputError(f"{name}: shape {values.shape}; give one label per row")
    text = mapped.as_text(values, name)
    mapped.check_cells(text, Path(name), "labels", "label the row or remove it", label_problem)
    return mapped.fixed_width(text, Path(name), "labels")


def table_columns(options: TableOptions) -> TableColumns:
    """Return the columns of feature tables."""
    more = {name: getattr(options, name) for name in ("drop", "keep", "one_hot", "impute")}
    return TableColumns(options.label or "y", options.id, options.features, **more)
