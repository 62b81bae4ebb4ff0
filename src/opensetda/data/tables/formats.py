"""One table over Arrow, of columns by name: in memory, or in files that are read in batches.

Formats are known by the suffixes of names. `Arrays` of files have no columns.
"""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.json
import pyarrow.parquet
from pyarrow import types

from opensetda.data.names import broken, check_path, no_such, reading, shown
from opensetda.data.tables import mapped
from opensetda.data.tables.delimited import BLOCK_BYTES, read_csv, read_sheet
from opensetda.data.tables.mapped import Arrays, Matrix, TextColumn
from opensetda.errors import InputError
from opensetda.system.files import open_regular
from opensetda.system.memory import check_free
from opensetda.system.sizes import check_columns

SUFFIXES = (".npz", ".npy", ".csv", ".tsv", ".xlsx", ".feather", ".jsonl", ".parquet")
_ANY_SUFFIX = f"{', '.join(SUFFIXES)}, or be a folder of .parquet files only"
# Bytes in memory per byte of a file; a sheet is compressed, and its cells are Python objects.
_FACTOR = {".csv": 3, ".tsv": 3, ".jsonl": 3, ".feather": 3, ".xlsx": 50}
# Read buffer per column of Parquet; without it a whole row group would be read at once.
_BUFFER_BYTES = 1 << 14
WINDOWS = "cp1252"  # what spreadsheet programs write where they do not write UTF-8
_BATCH_VALUES = 1 << 20
_BATCH_ROWS = 1 << 16
# A reader of Parquet holds a page and a dictionary, up to 2 MB, of each column.
_COLUMNS_AT_ONCE = 512
_NUMERIC = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)


@dataclass
class ColumnTable:
    """Columns by name; `batches` yields files and some rows of some columns of them at a time.

    Features of a table `in_file` that is large go to a scratch file in the folder `scratch`. In its
    file there are `rows_before` these.
    """

    path: Path
    schema: Any
    length: int
    batches: Callable[[Sequence[str], int], Iterator[tuple[Path, Any]]]
    scratch: Path | None = None
    in_file: bool = False
    rows_before: int = 0
    notes: tuple[str, ...] = ()
    """What was assumed in reading it, for the user."""

    def __post_init__(self) -> None:
        self.names: tuple[str, ...] = tuple(self.schema.names)
        # Before any cell is read of Parquet; a few more than features: labels and ids.
        check_columns(len(self.names) - 2, str(self.path))
        # pandas has large strings.
        kinds = [pa.string() if types.is_large_string(k) else k for k in self.schema.types]
        self.kinds: dict[str, Any] = dict(zip(self.names, kinds, strict=True))
        if len(self.kinds) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise InputError(f"{self.path}: column {shown(twice)} appears twice; rename one")

    @classmethod
    def in_memory(cls, path: Path, table: Any, notes: tuple[str, ...] = ()) -> ColumnTable:
        """Return an Arrow table as a table."""

        def batches(names: Sequence[str], rows: int) -> Iterator[tuple[Path, Any]]:
            return ((path, some) for some in table.select([*names]).to_batches(max_chunksize=rows))

        return cls(path, table.schema, table.num_rows, batches, notes=notes)

    def in_case_of(self, names: Iterable[str]) -> ColumnTable:
        """Return this table with its columns named as in `names` where only their case differs."""
        wanted = {*names}
        folded = Counter(name.casefold() for name in self.names)
        asked = Counter(name.casefold() for name in wanted)
        new_names = {
            name: other
            for other in wanted.difference(self.names)
            for name in self.names
            if name.casefold() == other.casefold()
            and folded[name.casefold()] == asked[name.casefold()] == 1
        }
        if not new_names:
            return self
        old_names = {new: old for old, new in new_names.items()}
        schema = [new_names.get(name, name) for name in self.names]

        def batches(names: Sequence[str], rows: int) -> Iterator[tuple[Path, Any]]:
            for path, batch in self.batches([old_names.get(name, name) for name in names], rows):
                found = [new_names.get(name, name) for name in batch.schema.names]
                yield path, batch.rename_columns(found)

        pairs = ", ".join(f"{shown(old)} as {shown(new)}" for new, old in old_names.items())
        return replace(
            self,
            schema=pa.schema(zip(schema, self.schema.types, strict=True)),
            batches=batches,
            notes=(*self.notes, f"{self.path}: columns whose case differs are read as: {pairs}"),
        )

    def __len__(self) -> int:
        return self.length

    def text(self, name: str) -> TextColumn:
        """Return a column as text; None where the cell is empty."""
        where = f"{self.path}: column {name!r}"
        kind = self.kinds[name]
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if types.is_nested(kind) or types.is_null(kind):
            raise InputError(f"{where} holds {kind}; labels and ids are text or numbers")
        cells = [np.empty(0, dtype=object)]
        start = 0
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
                raise InputError(f"{self.path}: {problem}; drop it or name it as label or id")
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
            some = names[left : left + _COLUMNS_AT_ONCE]
            start = 0
            last = None
            first = -self.rows_before
            most = max(1, min(_BATCH_ROWS, _BATCH_VALUES // len(some)))
            for path, batch in self.batches(some, most):
                # Rows are counted by file.
                first = first if last in (None, path) else start
                last = path
                stop = start + batch.num_rows
                with reading(path):
                    for place, name in enumerate(some, start=left):
                        # By name: the reader of Parquet keeps the order of the file.
                        values = _numbers(batch.column(name))
                        rows = matrix[start:stop, place]
                        mapped.check_finite_values(
                            path, start - first, values[:, None], name, fill is not None
                        )
                        rows[:] = mapped.to_float32(values)
                        rows[np.isnan(rows)] = (fill or {}).get(name, np.nan)
                start = stop
            if start != len(matrix):
                raise broken(self.path, "it is damaged: rows are missing")
        return matrix

    def example(self, name: str) -> str:
        """Return what a column that is not numeric holds, in words."""
        kind = self.kinds[name]
        cells = self.text(name).tolist() if types.is_string(kind) else []
        for row, value in enumerate(cells, start=1):
            try:
                float(value or "nan")
            except ValueError:
                return f"row {row} holds {shown(value, 40)}"
        return f"it holds {kind}"


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


def is_numeric(kind: Any) -> bool:
    """Return whether columns of an Arrow type are numbers."""
    return any(is_kind(kind) for is_kind in _NUMERIC)


def _numbers(column: Any) -> npt.NDArray[Any]:
    """Return a numeric Arrow column as floats, NaN where a cell is empty."""
    if types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if not types.is_floating(column.type):
        column = column.cast(pa.float64(), safe=False)
    return np.asarray(column)


TableFile = ColumnTable | Arrays


def open_table(
    path: Path, text_columns: Iterable[str] = (), scratch: Path | None = None
) -> TableFile:
    """Open a file whose name ends in one of `SUFFIXES`, or a folder of Parquet files.

    Columns of a CSV file in `text_columns` are read as text: the label 007 stays 007.
    """
    check_path(path)
    suffix = path.suffix.lower()
    if is_parts_folder(path):
        return _open_parquet(path, scratch)
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: no table, which must end in {_ANY_SUFFIX}")
    if not path.exists():
        raise no_such(path, lambda name: name.lower().endswith(SUFFIXES))
    if suffix in (".npz", ".npy"):
        return Arrays(path, scratch)
    if suffix == ".parquet":
        return _open_parquet(path, scratch)
    with reading(path), open_regular(path) as stream:
        size = _FACTOR[suffix] * os.fstat(stream.fileno()).st_size
        check_free(size, f"{path}: in memory it", "save it as Parquet, which is read in batches")
        if suffix == ".xlsx":
            table = read_sheet(path, stream)
        elif suffix == ".feather":
            table = pyarrow.feather.read_table(stream, memory_map=False)
            table.validate(full=True)
        elif suffix == ".jsonl":
            options = pyarrow.json.ReadOptions(block_size=BLOCK_BYTES)
            table = pyarrow.json.read_json(stream, options)
        else:
            try:
                table = read_csv(stream, suffix, text_columns)
            except UnicodeError:
                table = read_csv(stream, suffix, text_columns, encoding=WINDOWS)
                note = f"{path}: not UTF-8, read as Windows-1252; save it as UTF-8 to be sure"
                return ColumnTable.in_memory(path, table, (note,))
        return ColumnTable.in_memory(path, table)


def find_name(table: TableFile, name: str, option: str) -> str:
    """Return `name` if the table has it; otherwise raise an error that lists what it has."""
    if name in table.names:
        return name
    kind = "column" if isinstance(table, ColumnTable) else "array"
    there = listing(table.names) or "one without a name (np.savez stores several)"
    hint = meant(name, table.names) or f"; choose another with {option}"
    raise InputError(f"{table.path}: no {kind} {name!r}; it has {there}{hint}")


def meant(name: str, names: Iterable[str]) -> str:
    """Return a question with the name that is nearest, whatever its case; empty if none is near."""
    plain = {other.strip().casefold(): other for other in names}
    near = difflib.get_close_matches(name.strip().casefold(), plain, n=1)
    return f"; did you mean {shown(plain[near[0]])}?" if near else ""


def listing(names: Sequence[str], most: int = 8) -> str:
    """Join names for an error message, at most the first few."""
    some = ", ".join(map(shown, names[:most]))
    return some if len(names) <= most else f"{some}, ... ({len(names)} in all)"


def is_parts_folder(path: str | Path) -> bool:
    """Return whether a folder is a table in parts: Parquet files, and perhaps ``_*`` and ``.*``."""
    # Stops at the first other file: a folder may hold a million images.
    with suppress(OSError), os.scandir(path) as entries:
        visible = (entry for entry in entries if not entry.name.startswith(("_", ".")))
        are_parts = (file.name.lower().endswith(".parquet") and file.is_file() for file in visible)
        return next(are_parts, False) and all(are_parts)
    return False


def _open_parquet(path: Path, scratch: Path | None) -> ColumnTable:
    """Return a Parquet file, or a folder of parts with the same columns, as a table."""
    length = 0
    schemas = []
    files = part_files(path)
    for file in files:
        with parquet_file(file) as parquet:
            length += max(0, parquet.metadata.num_rows)
            schemas.append(parquet.schema_arrow)
        columns, first = (sorted(map(str, schemas[place])) for place in (-1, 0))
        if columns != first:
            problem = f"names or types of columns are not those of {files[0].name}"
            raise InputError(f"{file}: {problem}; all parts of a table need the same columns")

    def batches(names: Sequence[str], rows: int) -> Iterator[tuple[Path, Any]]:
        for file in files:
            with parquet_file(file) as parquet:
                yield from ((file, some) for some in parquet.iter_batches(rows, columns=[*names]))

    return ColumnTable(path, schemas[0], length, batches, scratch, in_file=True)


def part_files(path: Path) -> list[Path]:
    """Return the Parquet files of a folder of parts, in their order, or the one that is given."""
    parts = sorted(path.iterdir()) if path.is_dir() else []
    return [file for file in parts if not file.name.startswith(("_", "."))] or [path]


@contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """Open a Parquet file to read it in batches."""
    with (
        reading(path),
        open_regular(path) as stream,
        pyarrow.parquet.ParquetFile(stream, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file,
    ):
        yield file
