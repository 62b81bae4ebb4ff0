"""The three file formats behind one face: names, a text column, a feature matrix."""

from __future__ import annotations

import difflib
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError

Matrix = npt.NDArray[np.float32]
TextColumn = npt.NDArray[np.object_]

SUFFIXES = (".npz", ".csv", ".parquet")

_CHECKED_ROWS = 4096


class TableFile(Protocol):
    """An open table.

    Attributes
    ----------
    path : Path
        Where it is.
    names : tuple of str
        Its columns, or the arrays of an ``.npz`` file.
    has_columns : bool
        Whether each feature is a column with a name.
    """

    path: Path
    names: tuple[str, ...]
    has_columns: bool

    def text(self, name: str) -> TextColumn:
        """Return a column as text; None where the cell is empty."""
        ...

    def labels(self, name: str) -> TextColumn:
        """Return a column of labels as text; None where the cell is empty."""
        ...

    def features(self, names: Sequence[str]) -> Matrix:
        """Return columns, or one array of an ``.npz`` file, as a finite float32 matrix."""
        ...


def open_table(path: Path, text_columns: Iterable[str] = ()) -> TableFile:
    """Open a feature table.

    Parameters
    ----------
    path : Path
        An ``.npz``, ``.csv`` or ``.parquet`` file.
    text_columns : iterable of str
        Columns of a CSV file to be taken as they are typed: the label 007 stays 007.
    """
    suffix = path.suffix.lower()
    if path.is_dir():
        raise InputError(f"{path}: this is a folder; give a feature table ({_either(SUFFIXES)})")
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: the name must end in {_either(SUFFIXES)}")
    if not path.exists():
        raise InputError(f"{path}: no such file{_neighbour(path)}")
    try:
        if suffix == ".npz":
            return ArrayFile(path)
        return ColumnFile(path, _read_columns(path, suffix, text_columns))
    except OSError as error:
        reason = error.strerror or _one_line(error)
        raise InputError(f"{path}: cannot be read ({reason}); check the file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: the text is not UTF-8; save the file as UTF-8") from error


class ArrayFile:
    """An ``.npz`` file: arrays by name. Nothing in it is ever unpickled."""

    has_columns = False

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            loaded = np.load(path, allow_pickle=False)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise _broken(path, "an .npz file", "it is damaged, cut short or not one") from error
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise _broken(path, "an .npz file", "it holds one bare array; save it with np.savez")
        self._arrays = loaded
        self.names = tuple(loaded.files)

    def text(self, name: str) -> TextColumn:
        """Return a one-dimensional array as text."""
        values = self._array(name)
        if values.ndim != 1:
            raise InputError(
                f"{self.path}: array {name!r} has shape {values.shape}; "
                "labels and ids need one dimension"
            )
        return as_text(values, f"{self.path}: array {name!r}")

    def labels(self, name: str) -> TextColumn:
        """Return labels, numbers replaced by their names if the file has an array `classes`."""
        numbers = self._array(name)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or "classes" not in self.names:
            return self.text(name)
        class_names = self.text("classes")
        outside = (numbers < 0) | (numbers >= len(class_names))
        if outside.any():
            row = int(outside.argmax())
            raise InputError(
                f"{self.path}: array {name!r}, row {row + 1}: {numbers[row]} is not a number of "
                f"the {len(class_names)} names in 'classes' (0 to {len(class_names) - 1})"
            )
        return np.asarray(class_names[numbers], dtype=object)

    def features(self, names: Sequence[str]) -> Matrix:
        """Return the array `names[0]`."""
        (name,) = names
        values = self._array(name)
        if values.ndim != 2 or values.dtype.kind not in "biuf":
            raise InputError(
                f"{self.path}: array {name!r} has shape {values.shape} of {values.dtype}; "
                "features need numbers in two dimensions, one row a sample"
            )
        matrix = _to_float32(values)
        for start in range(0, len(matrix), _CHECKED_ROWS):
            finite = np.isfinite(matrix[start : start + _CHECKED_ROWS])
            if not finite.all():
                row, column = np.argwhere(~finite)[0]
                value = values[start + row, column]
                raise not_finite(self.path, int(start + row), f"column {column}", value)
        return np.ascontiguousarray(matrix)

    def _array(self, name: str) -> npt.NDArray[Any]:
        try:
            return np.asarray(self._arrays[name])
        except ValueError as error:
            if "allow_pickle" in str(error):
                raise InputError(
                    f"{self.path}: array {name!r} holds Python objects, which are never "
                    "unpickled; save it as text or numbers, e.g. values.astype(str)"
                ) from error
            raise _broken(self.path, f"array {name!r}", "the file is damaged") from error
        except (EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
            raise _broken(self.path, f"array {name!r}", "the file is damaged") from error


class ColumnFile:
    """A CSV or Parquet file: columns by name."""

    has_columns = True

    def __init__(self, path: Path, table: Any) -> None:
        self.path = path
        self.names = tuple(table.column_names)
        self._table = table
        repeated = [name for name in self.names if self.names.count(name) > 1]
        if repeated:
            raise InputError(f"{path}: column {repeated[0]!r} appears twice; rename one of them")

    def text(self, name: str) -> TextColumn:
        """Return a column as text."""
        import pyarrow as pa

        column = self._table.column(name)
        where = f"{self.path}: column {name!r}"
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_floating(column.type) or pa.types.is_boolean(column.type):
            return as_text(column.to_numpy(), where)
        if pa.types.is_nested(column.type) or pa.types.is_null(column.type):
            raise InputError(f"{where} holds {column.type}; labels and ids are text or numbers")
        values = np.array(column.cast(pa.string()).to_pylist(), dtype=object)
        values[values == ""] = None
        return values

    def labels(self, name: str) -> TextColumn:
        """Return a column of labels as text."""
        return self.text(name)

    def features(self, names: Sequence[str]) -> Matrix:
        """Return columns side by side."""
        matrix = np.empty((self._table.num_rows, len(names)), dtype=np.float32)
        for place, name in enumerate(names):
            values = self._numbers(name)
            matrix[:, place] = _to_float32(values)
            finite = np.isfinite(matrix[:, place])
            if not finite.all():
                row = int(finite.argmin())
                raise not_finite(self.path, row, f"column {name!r}", values[row])
        return matrix

    def _numbers(self, name: str) -> npt.NDArray[np.float64]:
        import pyarrow as pa

        column = self._table.column(name)
        kind = column.type
        if pa.types.is_null(kind):
            return np.full(len(column), np.nan)
        if not (
            pa.types.is_integer(kind)
            or pa.types.is_floating(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_decimal(kind)
        ):
            raise InputError(
                f"{self.path}: column {name!r} is not numeric ({_example(column)}); name it "
                "with --label-column or --id-column, or leave it out with --drop"
            )
        if pa.types.is_boolean(kind):
            column = column.cast(pa.int8())
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy())


def as_text(values: npt.NDArray[Any], where: str) -> TextColumn:
    """Turn names or whole numbers into text; empty text and NaN become None.

    Whole numbers that were stored as 3.0, as tables with gaps do, become "3".
    """
    if values.dtype.kind == "S":
        try:
            values = np.char.decode(values, "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{where} is not UTF-8 text; save it as text") from error
    plain = values.tolist()
    if values.dtype.kind == "U":
        return np.array([value or None for value in plain], dtype=object)
    if values.dtype.kind in "iub":
        return np.array([str(value) for value in plain], dtype=object)
    if values.dtype.kind not in "fO":
        raise InputError(f"{where} holds {values.dtype}; labels and ids are text or numbers")
    return np.array([_cell(value, row, where) for row, value in enumerate(plain)], dtype=object)


def not_finite(path: Path, row: int, column: str, value: Any) -> InputError:
    """Return the error for a feature that is no finite number; `row` counts from 0."""
    place = f"{path}: row {row + 1}, {column}"
    if np.isnan(value):
        return InputError(f"{place}: NaN or empty; remove the row or fill in the value")
    if np.isinf(value):
        return InputError(f"{place}: infinite; remove the row or put a finite number there")
    return InputError(f"{place}: {value:g} is too large for 32-bit floats; rescale the column")


def find_name(table: TableFile, name: str, option: str) -> str:
    """Return `name` if the table has it; otherwise raise an error that lists what it has."""
    if name in table.names:
        return name
    kind = "column" if table.has_columns else "array"
    close = difflib.get_close_matches(name, table.names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; choose another with {option}"
    if len(table.names) == 1 and table.has_columns and any(c in table.names[0] for c in ";\t|"):
        hint = "; the file must be separated by commas"
    raise InputError(f"{table.path}: no {kind} {name!r}; it has {listing(table.names)}{hint}")


def listing(names: Sequence[str], most: int = 8) -> str:
    """Join names for an error message, the first few of many."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"


def _read_columns(path: Path, suffix: str, text_columns: Iterable[str]) -> Any:
    import pyarrow as pa

    try:
        if suffix == ".parquet":
            import pyarrow.parquet

            # Not read_table: it would make columns out of folder names such as "year=2024".
            with pyarrow.parquet.ParquetFile(path) as file:
                return file.read()
        import pyarrow.csv

        convert = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(text_columns, pa.string()))
        parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
        try:
            return pyarrow.csv.read_csv(path, parse_options=parse, convert_options=convert)
        except pa.ArrowInvalid:
            # On one thread the reader knows the line, and says it.
            read = pyarrow.csv.ReadOptions(use_threads=False)
            return pyarrow.csv.read_csv(path, read, parse, convert)
    except pa.ArrowException as error:
        kind = "a Parquet file" if suffix == ".parquet" else "a CSV table"
        raise _broken(path, kind, _one_line(error)) from error


def _to_float32(values: npt.NDArray[Any]) -> Matrix:
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def _cell(value: Any, row: int, where: str) -> str | None:
    if value is None or value != value:
        return None
    if isinstance(value, float):
        if not value.is_integer():
            raise InputError(f"{where}, row {row + 1}: {value} is neither text nor a whole number")
        return str(int(value))
    return str(value)


def _example(column: Any) -> str:
    import pyarrow as pa

    if not pa.types.is_string(column.type):
        return f"it holds {column.type}"
    for row, value in enumerate(column.to_pylist()):
        try:
            float(value or "nan")
        except ValueError:
            shown = value if len(value) <= 40 else f"{value[:40]}..."
            return f"row {row + 1} holds {shown!r}"
    return "it holds text"


def _broken(path: Path, what: str, why: str) -> InputError:
    return InputError(f"{path}: cannot read {what}: {why}")


def _neighbour(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f" (nor a folder {folder})"
    there = [entry.name for entry in folder.iterdir() if entry.suffix.lower() in SUFFIXES]
    close = difflib.get_close_matches(path.name, there, n=1)
    return f"; did you mean {folder / close[0]}?" if close else ""


def _one_line(error: Exception, most: int = 160) -> str:
    text = " ".join(str(error).split()).replace("CSV parse error: ", "").replace("Row #", "line ")
    return text if len(text) <= most else f"{text[:most]}..."


def _either(choices: Sequence[str]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"
