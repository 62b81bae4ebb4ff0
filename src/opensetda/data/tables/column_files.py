"""One table over Arrow: columns by name, in memory, or in files that are read in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from opensetda.data.names import shown
from opensetda.data.reading import broken, reading
from opensetda.data.tables import mapped
from opensetda.data.tables.mapped import Matrix, TextColumn
from opensetda.errors import InputError

_BATCH_VALUES, _BATCH_ROWS = 1 << 20, 1 << 16
# A reader of Parquet holds a page and a dictionary, up to 2 MB, of each column.
_COLUMNS_AT_ONCE = 512
_NUMERIC = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)


@dataclass
class ColumnTable:
    """Columns by name; `batches` yields files and some rows of some columns of them at a time.

    Features of a table `in_file` that is large go to a scratch file in the folder `scratch`.
    """

    path: Path
    schema: Any
    length: int
    batches: Callable[[Sequence[str], int], Iterator[tuple[Path, Any]]]
    scratch: Path | None = None
    in_file: bool = False

    def __post_init__(self) -> None:
        self.names: tuple[str, ...] = tuple(self.schema.names)
        self.kinds: dict[str, Any] = dict(zip(self.names, self.schema.types, strict=True))
        check_once(self.path, self.names)

    @classmethod
    def in_memory(cls, path: Path, table: Any) -> ColumnTable:
        """Return an Arrow table as a table."""

        def batches(names: Sequence[str], rows: int) -> Iterator[tuple[Path, Any]]:
            return ((path, some) for some in table.select([*names]).to_batches(max_chunksize=rows))

        return cls(path, table.schema, table.num_rows, batches)

    def __len__(self) -> int:
        return self.length

    def text(self, name: str) -> TextColumn:
        """Return a column as text; None where the cell is empty."""
        where, kind = f"{self.path}: column {name!r}", self.kinds[name]
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if types.is_nested(kind) or types.is_null(kind):
            raise InputError(f"{where} holds {kind}; labels and ids are text or numbers")
        cells, start = [np.empty(0, dtype=object)], 0
        with reading(self.path, f"column {name!r}"):
            for _, batch in self.batches([name], _BATCH_ROWS):
                column = batch.column(0).cast(kind)
                if not types.is_floating(kind) and not types.is_boolean(kind):
                    column = np.array(column.cast(pa.string()).to_pylist(), dtype=object)
                cells.append(mapped.as_text(np.asarray(column), where, start))
                start += batch.num_rows
        return np.concatenate(cells)

    labels = text

    def is_large(self, names: Sequence[str]) -> bool:
        """Return whether features go to a file."""
        return self.in_file and mapped.is_large((len(self), len(names)))

    def features(self, names: Sequence[str], fill: Mapping[str, float] | None = None) -> Matrix:
        """Return columns side by side as finite float32, in memory or in a scratch file.

        Empty cells get their column's number in `fill`, or NaN; without `fill` they are an error.
        """
        for name in names:
            if not is_numeric(self.kinds[name]):
                problem = f"column {name!r} is not numeric ({self.example(name)})"
                raise InputError(
                    f"{self.path}: {problem}; take --label-column, --id-column or --drop"
                )
        shape = (len(self), len(names))
        if not self.is_large(names):
            return self._read_into(np.empty(shape, dtype=np.float32), names, fill)
        with mapped.scratch_file(self.scratch, self.path, 4 * len(self) * len(names)) as stream:
            self._read_into(np.memmap(stream, np.float32, "r+", 0, shape), names, fill)
            return np.memmap(stream, np.float32, "r", 0, shape)

    def _read_into(
        self, matrix: Matrix, names: Sequence[str], fill: Mapping[str, float] | None
    ) -> Matrix:
        for left in range(0, len(names), _COLUMNS_AT_ONCE):
            some, start, last, first = names[left : left + _COLUMNS_AT_ONCE], 0, None, 0
            rows = max(1, min(_BATCH_ROWS, _BATCH_VALUES // len(some)))
            for path, batch in self.batches(some, rows):
                # Rows are counted by file.
                first, last = first if path == last else start, path
                stop = start + batch.num_rows
                with reading(path):
                    for place, name in enumerate(some, start=left):
                        missing = None if fill is None else fill.get(name, np.nan)
                        # By name: the reader of Parquet keeps the order of the file.
                        values = column_numbers(
                            batch.column(name), path, name, start - first, missing
                        )
                        matrix[start:stop, place] = values
                start = stop
            if start != len(matrix):
                raise broken(self.path, "it is damaged: rows are missing")
        return matrix

    def example(self, name: str) -> str:
        """Return what a column that is not numeric holds, in words."""
        kind = self.kinds[name]
        if not types.is_string(kind):
            return f"it holds {'categories' if types.is_dictionary(kind) else kind}"
        for row, value in enumerate(self.text(name).tolist(), start=1):
            try:
                float(value or "nan")
            except ValueError:
                return f"row {row} holds {shown(value, 40)}"
        return "it holds text"


def is_frame(value: Any) -> bool:
    """Return whether a value is a DataFrame: of pandas, polars, or any other that Arrow reads."""
    return hasattr(value, "columns") and hasattr(value, "__arrow_c_stream__")


def frame_table(frame: Any, name: str, labels: tuple[str, Any] | None = None) -> ColumnTable:
    """Return a DataFrame as a table; `labels`, with their column, take the place of its own."""
    with reading(name, "the DataFrame"):
        is_pandas = type(frame).__module__.partition(".")[0] == "pandas"
        # An index, which Arrow would append, is no feature.
        table = pa.Table.from_pandas(frame, preserve_index=False) if is_pandas else pa.table(frame)
        if labels is not None:
            others = [name for name in table.column_names if name != labels[0]]
            column = pa.array(list(labels[1]), pa.string())
            table = table.select(others).append_column(labels[0], column)
    return ColumnTable.in_memory(Path(name), table)


def check_once(path: Path, names: Sequence[str]) -> None:
    """Raise an `InputError` if two columns have the same name."""
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path}: column {shown(twice)} appears twice; rename one of them")


def is_numeric(kind: Any) -> bool:
    """Return whether columns of an Arrow type are numbers."""
    return any(is_kind(kind) for is_kind in _NUMERIC)


def column_numbers(
    column: Any, path: Path, name: str, first: int = 0, missing: float | None = None
) -> npt.NDArray[np.float32]:
    """Return a numeric Arrow column as finite float32; empty cells are an error, or `missing`."""
    if types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if not types.is_floating(column.type):
        column = column.cast(pa.float64(), safe=False)
    # An empty cell becomes NaN.
    values = np.asarray(column)
    mapped.check_finite_values(path, first, values[:, None], name, missing is not None)
    narrow = mapped.to_float32(values)
    return narrow if missing is None else np.where(np.isnan(narrow), np.float32(missing), narrow)
