"""All formats of tables behind one interface, and those that hold arrays."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np

from opensetda.data.names import shown
from opensetda.data.reading import broken, check_path, no_such, reading
from opensetda.data.tables import arrays, mapped
from opensetda.data.tables.column_files import read_column_file
from opensetda.data.tables.interface import Fill, Matrix, TableFile
from opensetda.data.tables.mapped import OnRead, StoredArray, StoredText, TextColumn, ignore
from opensetda.data.tables.parquet_parts import ParquetParts, is_parts_folder
from opensetda.errors import InputError
from opensetda.system.files import open_regular

SUFFIXES = (".npz", ".npy", ".csv", ".tsv", ".xlsx", ".feather", ".jsonl", ".parquet")
_ANY_SUFFIX = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"


def open_table(
    path: Path, text_columns: Iterable[str] = (), scratch: Path | None = None
) -> TableFile:
    """Open a file whose name ends in one of `SUFFIXES`, or a folder of Parquet files.

    Columns of a CSV file in `text_columns` are read as text: the label 007 stays 007. `scratch` is
    as in `read_domains`.
    """
    check_path(path)
    suffix = path.suffix.lower()
    if is_parts_folder(path):
        return ParquetParts(path, scratch)
    if path.is_dir():
        advice = f"give a feature table ({_ANY_SUFFIX}), or a folder with .parquet files only"
        raise InputError(f"{path}: this is a folder; {advice}")
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: the name must end in {_ANY_SUFFIX}")
    if not path.exists():
        raise no_such(path, lambda name: name.lower().endswith(SUFFIXES))
    if suffix == ".npz":
        return ArrayFile(path, scratch)
    if suffix == ".npy":
        return BareArray(path)
    if suffix == ".parquet":
        return ParquetParts(path, scratch)
    return read_column_file(path, text_columns)


class ArrayFile(TableFile):
    """An ``.npz`` file: arrays by name."""

    has_columns = False

    def __init__(self, path: Path, scratch: Path | None = None) -> None:
        self.path, self.names = path, arrays.array_names(path)
        # A large compressed array is unpacked once.
        self._array = cache(partial(arrays.find_array, path, scratch=scratch))

    def text(self, name: str) -> TextColumn:
        """Return a one-dimensional array as text."""
        array = self._array(name)
        if len(array.shape) != 1:
            needed = "labels and ids need one dimension"
            raise InputError(f"{self.path}: {array.name} has shape {array.shape}; {needed}")
        mapped.check_rows(self.path, name, array.shape[0])
        with reading(self.path, array.name, "the file is damaged"):
            where = f"{self.path}: {array.name}"
            cells = [mapped.as_text(chunk, where, start) for start, chunk in array.chunks()]
        return np.concatenate([np.empty(0, dtype=object), *cells])

    def labels(self, name: str) -> TextColumn:
        """Return labels; numbers become names if the file has an array `classes`."""
        array = self._array(name)
        if len(array.shape) != 1 or array.dtype.kind not in "iu" or "classes" not in self.names:
            return self.text(name)
        mapped.check_rows(self.path, name, array.shape[0])
        class_names = self.text("classes")
        numbers = np.concatenate([np.empty(0, array.dtype), *(some for _, some in array.chunks())])
        outside = (numbers < 0) | (numbers >= len(class_names))
        if outside.any():
            row = int(outside.argmax())
            raise InputError(
                f"{self.path}: array {name!r}, row {row + 1}: {numbers[row]} is not a number of "
                f"the {len(class_names)} names in 'classes' (0 to {len(class_names) - 1})"
            )
        return np.asarray(class_names[numbers], dtype=object)

    def width(self, names: Sequence[str]) -> int | None:
        """Return the number of features."""
        array = self._array(names[0])
        mapped.check_shape(self.path, array.name, array)
        return array.shape[1]

    def features(self, names: Sequence[str], on_read: OnRead = ignore, fill: Fill = None) -> Matrix:
        """Return the array `names[0]`."""
        array = self._array(names[0])
        mapped.check_shape(self.path, array.name, array)
        if mapped.is_large(array.shape) and isinstance(array.map(), np.memmap):
            return mapped.checked_map(array, on_read)
        matrix = np.empty(array.shape, dtype=np.float32)
        for start, chunk in array.chunks():
            mapped.check_finite_values(self.path, start, chunk)
            matrix[start : start + len(chunk)] = mapped.to_float32(chunk)
        return matrix

    def stored_text(self, name: str, advice: str) -> StoredText | None:
        """Return a one-dimensional array as text that stays in the file."""
        array = self._array(name)
        return mapped.ArrayText(array, name, advice) if len(array.shape) == 1 else None


class BareArray(TableFile):
    """An ``.npy`` file: one matrix of features, and nothing that could name a row."""

    has_columns = False
    names: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path, what := "an .npy file"), open_regular(path) as stream:
            header = arrays.read_header(stream, path, what)
            if stream.seek(0, 2) < header.size + header.n_bytes:
                raise broken(path, what, "it is cut short")
        self._fortran = header.fortran
        self._array = StoredArray(path, what, header.dtype, header.shape, header.size)

    def width(self, names: Sequence[str]) -> int | None:
        """Return the number of features."""
        mapped.check_shape(self.path, "the array", self._array)
        return self._array.shape[1]

    def features(self, names: Sequence[str], on_read: OnRead = ignore, fill: Fill = None) -> Matrix:
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
    raise InputError(f"{table.path}: no {kind} {name!r}; it has {listing(table.names)}{hint}")


def listing(names: Sequence[str], most: int = 8) -> str:
    """Join names for an error message, at most the first few."""
    some = ", ".join(map(shown, names[:most]))
    return some if len(names) <= most else f"{some}, ... ({len(names)} in all)"
