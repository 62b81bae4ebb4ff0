"""All formats of tables behind one interface: names, a text column, a feature matrix."""

from __future__ import annotations

import difflib
import math
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from opensetda.data.tables import mapped, parquet_parts
from opensetda.data.tables.mapped import OnRead, StoredArray, StoredText, TextColumn, broken, ignore
from opensetda.data.tables.parquet_parts import ParquetParts, is_parts_folder, unreadable
from opensetda.errors import InputError

Matrix = npt.NDArray[Any]

SUFFIXES = (".npz", ".npy", ".csv", ".parquet")
_ANY_SUFFIX = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"

_CHECKED_ROWS = 4096


class TableFile(Protocol):
    """An open table, whose features may be columns with names.

    `names` are its columns, or the arrays of an ``.npz`` file; empty for an ``.npy`` file.
    """

    path: Path
    names: tuple[str, ...]
    has_columns: bool

    def text(self, name: str) -> TextColumn:
        """Return a column as text; None where the cell is empty."""
        ...

    def labels(self, name: str) -> TextColumn:
        """Return a column of labels as text; None where the cell is empty."""
        return self.text(name)

    def width(self, names: Sequence[str]) -> int | None:
        """Return the number of features if it is known before a large table is read."""
        return None

    def features(self, names: Sequence[str], on_read: OnRead = ignore) -> Matrix:
        """Return columns, or one array, as a matrix of finite numbers.

        In memory it is float32; a large one is a read-only `numpy.memmap` of any number type.
        `on_read` is called with the number of bytes read since its last call.
        """
        ...

    def check_kinds(self, names: Sequence[str]) -> None:
        """Raise an error for the first column that is not numeric."""
        return

    def stored_text(self, name: str, advice: str) -> StoredText | None:
        """Return a column of text without gaps that stays in a file; None if it cannot."""
        return None


def open_table(
    path: Path, text_columns: Iterable[str] = (), scratch: Path | None = None
) -> TableFile:
    """Open an ``.npz``, ``.npy``, ``.csv`` or ``.parquet`` file, or a folder of Parquet files.

    Columns of a CSV file in `text_columns` are read as text: the label 007 stays 007. `scratch` is
    as in `read_domains`.
    """
    suffix = path.suffix.lower()
    if is_parts_folder(path):
        return ParquetParts(path, scratch)
    if path.is_dir():
        advice = f"give a feature table ({_ANY_SUFFIX}), or a folder with .parquet files only"
        raise InputError(f"{path}: this is a folder; {advice}")
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: the name must end in {_ANY_SUFFIX}")
    if not path.exists():
        raise InputError(f"{path}: no such file{_neighbour(path)}")
    try:
        if suffix == ".npz":
            return ArrayFile(path)
        if suffix == ".npy":
            return BareArray(path)
        if suffix == ".parquet":
            parts = ParquetParts(path, scratch)
            if mapped.is_large((len(parts), len(parts.names))):
                return parts
        return ColumnFile(path, _read_columns(path, suffix, text_columns))
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: the text is not UTF-8; save the file as UTF-8") from error


class ArrayFile(TableFile):
    """An ``.npz`` file: arrays by name. Nothing in it is ever unpickled."""

    has_columns = False

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            loaded = np.load(path, allow_pickle=False)
        except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
            raise broken(path, "an .npz file", "it is damaged, cut short or not one") from error
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise broken(path, "an .npz file", "it holds one bare array; save it with np.savez")
        self._arrays, self.names = loaded, tuple(loaded.files)

    def text(self, name: str) -> TextColumn:
        """Return a one-dimensional array as text."""
        values = self._array(name)
        if values.ndim != 1:
            needed = "labels and ids need one dimension"
            raise InputError(f"{self.path}: array {name!r} has shape {values.shape}; {needed}")
        return mapped.as_text(values, f"{self.path}: array {name!r}")

    def labels(self, name: str) -> TextColumn:
        """Return labels; numbers become names if the file has an array `classes`."""
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

    def width(self, names: Sequence[str]) -> int | None:
        """Return the number of features of a large array; None for others."""
        stored = self._large(names)
        return None if stored is None else stored.shape[1]

    def features(self, names: Sequence[str], on_read: OnRead = ignore) -> Matrix:
        """Return the array `names[0]`."""
        (name,) = names
        stored = self._large(names)
        if stored is not None:
            return mapped.checked_map(stored, on_read)
        values = self._array(name)
        mapped.check_shape(self.path, f"array {name!r}", values)
        for start in range(0, len(values), _CHECKED_ROWS):
            mapped.check_finite_values(self.path, start, values[start : start + _CHECKED_ROWS])
        return np.ascontiguousarray(mapped.to_float32(values))

    def stored_text(self, name: str, advice: str) -> StoredText | None:
        """Return a one-dimensional array as text that stays in the file."""
        stored = self._stored(name)
        if stored is None or len(stored.shape) != 1:
            return None
        return mapped.ArrayText(stored, name, advice)

    def _large(self, names: Sequence[str]) -> StoredArray | None:
        (name,) = names
        stored = self._stored(name)
        if stored is None or not mapped.is_large(stored.shape):
            return None
        mapped.check_shape(self.path, stored.name, stored)
        return stored

    def _stored(self, name: str) -> StoredArray | None:
        archive = self._arrays.zip
        assert archive is not None, "open as long as this is"
        member = archive.getinfo(name if name in archive.NameToInfo else f"{name}.npy")
        try:
            return mapped.stored_array(self.path, member, f"array {name!r}")
        except OSError as error:
            raise broken(self.path, f"array {name!r}", mapped.one_line(error)) from error

    def _array(self, name: str) -> npt.NDArray[Any]:
        try:
            return np.asarray(self._arrays[name])
        except MemoryError:
            raise
        except Exception as error:
            if isinstance(error, ValueError) and "allow_pickle" in str(error):
                raise InputError(
                    f"{self.path}: array {name!r} holds Python objects, which are never "
                    "unpickled; save it as text or numbers, e.g. values.astype(str)"
                ) from error
            # zipfile, zlib, lzma and numpy each raise errors of their own.
            raise broken(self.path, f"array {name!r}") from error


class BareArray(TableFile):
    """An ``.npy`` file: one matrix of features, and nothing that could name a row."""

    has_columns = False
    names: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as stream:
            if stream.read(len(mapped.MAGIC)) != mapped.MAGIC:
                raise broken(path, "an .npy file", "it is damaged, cut short or not one")
            stream.seek(0)
            found = mapped.read_header(stream, path, "an .npy file")
            if found is None:
                raise broken(path, "an .npy file", "its version is not known")
            offset, end = stream.tell(), stream.seek(0, 2)
        self._fortran, shape, dtype = found
        self._array = StoredArray(path, "an .npy file", dtype, shape, offset)
        if dtype.hasobject:
            objects = "it holds Python objects, which are never unpickled"
            raise InputError(f"{path}: {objects}; save numbers")
        if end < offset + math.prod(shape) * dtype.itemsize:
            raise broken(path, "an .npy file", "it is cut short")

    def width(self, names: Sequence[str]) -> int | None:
        """Return the number of features."""
        mapped.check_shape(self.path, "the array", self._array)
        return self._array.shape[1]

    def features(self, names: Sequence[str], on_read: OnRead = ignore) -> Matrix:
        """Return the array, whatever `names` are."""
        array = self._array
        mapped.check_shape(self.path, "the array", array)
        if not self._fortran:
            return mapped.checked_map(array, on_read)
        if mapped.is_large(array.shape):
            problem = "the array is stored column by column (Fortran order)"
            raise InputError(f"{self.path}: {problem}; save np.ascontiguousarray(X)")
        # The file holds the transposed array in C order.
        values = array._replace(shape=array.shape[::-1]).map().T
        mapped.check_finite_values(self.path, 0, values)
        return np.ascontiguousarray(values)

    def text(self, name: str) -> TextColumn:
        """Raise an error: there is no text."""
        raise InputError(f"{self.path}: a bare array has no {name!r} beside it")


class ColumnFile(TableFile):
    """A CSV or Parquet file: columns by name."""

    has_columns = True

    def __init__(self, path: Path, table: Any) -> None:
        self.path, self.names, self._table = path, tuple(table.column_names), table
        parquet_parts.check_once(path, self.names)

    def text(self, name: str) -> TextColumn:
        """Return a column as text."""
        return parquet_parts.column_text(self._table.column(name), f"{self.path}: column {name!r}")

    def features(self, names: Sequence[str], on_read: OnRead = ignore) -> Matrix:
        """Return columns side by side."""
        matrix = np.empty((self._table.num_rows, len(names)), dtype=np.float32)
        for place, name in enumerate(names):
            column = self._table.column(name)
            matrix[:, place] = parquet_parts.column_numbers(column, self.path, name)
        return matrix

    def check_kinds(self, names: Sequence[str]) -> None:
        """Raise an error for the first column that is not numeric."""
        for name in names:
            parquet_parts.check_numeric(self._table.column(name), f"{self.path}: column {name!r}")


def find_name(table: TableFile, name: str, option: str) -> str:
    """Return `name` if the table has it; otherwise raise an error that lists what it has."""
    if name in table.names:
        return name
    if not table.names:
        advice = f"save X and {name} with np.savez"
        raise InputError(f"{table.path}: a bare array has no {name!r} beside it; {advice}")
    kind = "column" if table.has_columns else "array"
    close = difflib.get_close_matches(name, table.names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; choose another with {option}"
    if len(table.names) == 1 and table.has_columns and any(c in table.names[0] for c in ";\t|"):
        hint = "; the file must be separated by commas"
    raise InputError(f"{table.path}: no {kind} {name!r}; it has {listing(table.names)}{hint}")


def listing(names: Sequence[str], most: int = 8) -> str:
    """Join names for an error message, at most the first few."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"


def _read_columns(path: Path, suffix: str, text_columns: Iterable[str]) -> Any:
    try:
        if suffix == ".parquet":
            # Not read_table: it would make columns out of folder names such as "year=2024".
            with pyarrow.parquet.ParquetFile(path) as file:
                return file.read()
        convert = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(text_columns, pa.string()))
        parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
        try:
            return pyarrow.csv.read_csv(path, parse_options=parse, convert_options=convert)
        except pa.ArrowInvalid:
            # On one thread the reader names the line.
            read = pyarrow.csv.ReadOptions(use_threads=False)
            return pyarrow.csv.read_csv(path, read, parse, convert)
    except pa.ArrowException as error:
        kind = "a Parquet file" if suffix == ".parquet" else "a CSV table"
        raise broken(path, kind, mapped.one_line(error)) from error


def _neighbour(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f" (nor a folder {folder})"
    there = [entry.name for entry in folder.iterdir() if entry.suffix.lower() in SUFFIXES]
    close = difflib.get_close_matches(path.name, there, n=1)
    return f"; did you mean {folder / close[0]}?" if close else ""
