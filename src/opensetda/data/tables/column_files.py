"""One table over Arrow: columns by name, in memory, or in files that are read in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from opensetda.data.names import shown
from opensetda.data.reading import broken, reading
from opensetda.data.tables import mapped
from opensetda.data.tables.mapped import Fill, Matrix, TableFile, TextColumn
from opensetda.errors import InputError

# A file, the number of a row in it, and the record batch from there.
Batch = tuple[Path, int, Any]

_BATCH_VALUES, _BATCH_ROWS = 1 << 20, 1 << 16
# A reader of Parquet holds a page and a dictionary, up to 2 MB, of each column.
_COLUMNS_AT_ONCE = 512
_NUMERIC = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)


class ColumnTable(TableFile):
    """Columns by name; `batches` yields some rows of some columns at a time.

    Features of a table `in_file` that is large go to a scratch file in the folder `scratch`.
    """

    has_columns = True

    def __init__(
        self,
        path: Path,
        schema: Any,
        length: int,
        batches: Callable[[Sequence[str], int], Iterator[Batch]],
        what: str,
        scratch: Path | None = None,
        in_file: bool = False,
    ) -> None:
        self.path, self._length, self._batches, self._what = path, length, batches, what
        self._scratch, self._in_file = scratch, in_file
        self.names: tuple[str, ...] = tuple(schema.names)
        self.kinds: Mapping[str, Any] = dict(zip(self.names, schema.types, strict=True))
        check_once(path, self.names)

    @classmethod
    def in_memory(cls, path: Path, table: Any, what: str) -> ColumnTable:
        """Return an Arrow table as a table."""

        def batches(names: Sequence[str], rows: int) -> Iterator[Batch]:
            first = 0
            for batch in table.select([*names]).to_batches(max_chunksize=rows):
                yield path, first, batch
                first += batch.num_rows

        return cls(path, table.schema, table.num_rows, batches, what)

    def __len__(self) -> int:
        return self._length

    def text(self, name: str) -> TextColumn:
        """Return a column as text."""
        cells, start = [np.empty(0, dtype=object)], 0
        with reading(self.path, f"column {name!r}"):
            for _, _, batch in self._batches([name], _BATCH_ROWS):
                cells.append(column_text(batch.column(0), f"{self.path}: column {name!r}", start))
                start += batch.num_rows
        return np.concatenate(cells)

    def is_large(self, names: Sequence[str]) -> bool:
        """Return whether features go to a file."""
        return self._in_file and mapped.is_large((len(self), len(names)))

    def features(self, names: Sequence[str], fill: Fill = None) -> Matrix:
        """Return columns side by side, in memory or in a scratch file."""
        self.check_kinds(names)
        shape = (len(self), len(names))
        if not self.is_large(names):
            matrix = np.empty(shape, dtype=np.float32)
            self._read_into(matrix, names, fill)
            return matrix
        with mapped.scratch_file(self._scratch, self.path, 4 * len(self) * len(names)) as stream:
            written = np.memmap(stream, np.float32, "r+", 0, shape)
            self._read_into(written, names, fill)
            return np.memmap(stream, np.float32, "r", 0, shape)

    def _read_into(self, matrix: Matrix, names: Sequence[str], fill: Fill) -> None:
        for left in range(0, len(names), _COLUMNS_AT_ONCE):
            some, start = names[left : left + _COLUMNS_AT_ONCE], 0
            rows = max(1, min(_BATCH_ROWS, _BATCH_VALUES // len(some)))
            for path, first, batch in self._batches(some, rows):
                # The reader of Parquet keeps the order of the file.
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                stop = start + batch.num_rows
                with reading(path, self._what):
                    for place, name in enumerate(some, start=left):
                        missing = None if fill is None else fill.get(name, np.nan)
                        values = column_numbers(columns[name], path, name, first, missing)
                        matrix[start:stop, place] = values
                start = stop
            if start != len(matrix):
                raise broken(self.path, self._what, "it is damaged: rows are missing")

    def check_kinds(self, names: Sequence[str]) -> None:
        """Raise an error for the first column that is not numeric."""
        for name in names:
            if not is_numeric(self.kinds[name]):
                advice = "name it with --label-column or --id-column, or leave it out with --drop"
                problem = f"column {name!r} is not numeric ({self.example(name)})"
                raise InputError(f"{self.path}: {problem}; {advice}")

    def example(self, name: str) -> str:
        """Return what a column that is not numeric holds, in words."""
        kind = self.kinds[name]
        if types.is_dictionary(kind):
            return "it holds categories"
        if not types.is_string(kind):
            return f"it holds {kind}"
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
    with reading(name, "a DataFrame"):
        if type(frame).__module__.partition(".")[0] == "pandas":
            # An index, which Arrow would append, is no feature.
            table = pa.Table.from_pandas(frame, preserve_index=False)
        else:
            table = pa.table(frame)
        if labels is not None:
            column, values = labels
            if column in table.column_names:
                table = table.drop_columns([column])
            table = table.append_column(column, pa.array(list(values), pa.string()))
    return ColumnTable.in_memory(Path(name), table, "a DataFrame")


def check_once(path: Path, names: Sequence[str]) -> None:
    """Raise an `InputError` if two columns have the same name."""
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise InputError(f"{path}: column {shown(name)} appears twice; rename one of them")


def is_numeric(kind: Any) -> bool:
    """Return whether columns of an Arrow type are numbers."""
    return any(is_kind(kind) for is_kind in _NUMERIC)


def column_text(column: Any, where: str, first: int = 0) -> TextColumn:
    """Return an Arrow column as text; None where a cell is empty."""
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_floating(kind) or types.is_boolean(kind):
        return mapped.as_text(np.asarray(column.cast(kind)), where, first)
    if types.is_nested(kind) or types.is_null(kind):
        raise InputError(f"{where} holds {kind}; labels and ids are text or numbers")
    # Not a Python string for each row.
    encoded = column if types.is_dictionary(column.type) else column.dictionary_encode()
    try:
        names = [*encoded.dictionary.cast(pa.string()).to_pylist(), None]
    except (UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise InputError(f"{where} is not UTF-8 text; save it as text") from error
    cells = np.array([name or None for name in names], dtype=object)
    return np.asarray(cells[np.asarray(encoded.indices.cast(pa.int64()).fill_null(len(names) - 1))])


def column_numbers(
    column: Any, path: Path, name: str, first: int = 0, missing: float | None = None
) -> npt.NDArray[np.float32]:
    """Return a numeric Arrow column, from row `first` on, as finite float32 numbers.

    An empty cell gets the value `missing`, which may be NaN; None makes it an error.
    """
    if types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if not types.is_floating(column.type):
        column = column.cast(pa.float64(), safe=False)
    # An empty cell becomes NaN.
    values = np.asarray(column)
    narrow = mapped.to_float32(values)
    wrong = ~np.isfinite(narrow)
    if missing is not None:
        gaps = np.isnan(narrow)
        narrow, wrong = np.where(gaps, np.float32(missing), narrow), wrong & ~gaps
    if wrong.any():
        row = int(wrong.argmax())
        raise mapped.not_finite(path, first + row, f"column {name!r}", values[row])
    return narrow
