"""Readers of the files of runs: one per kind of file, each names the file and the field at fault.

A run folder may be damaged, or come from a stranger: nothing in it is believed before it is
checked. Checksums (`opensetda.runs.manifest`) find what was damaged, the readers what never fitted.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pydantic import TypeAdapter, ValidationError
from safetensors.numpy import load

from opensetda.data.limits import LONGEST_ROW
from opensetda.errors import InputError, one_line
from opensetda.system.memory import check_free

T = TypeVar("T")

FIT_AGAIN = "fit again"
_LONGEST_REASON = 160
# Settings are nested three deep.
_DEEPEST = 32
_SEAL = "sha256"
# A cell of text as a Python object, and its place in a list.
_BYTES_OF_TEXT = 100

_TEXT_IN_CSV = ("id", "path", "label", "nearest_class", *(f"top_{n}" for n in range(1, 1001)))

TEXT, NUMBERS, COUNTS, BYTES, FLAGS = "text", "numbers", "whole numbers", "bytes", "true or false"


@contextmanager
def reading(path: Path, advice: str = FIT_AGAIN) -> Iterator[Path]:
    """Turn whatever goes wrong while a file is read into an `InputError` that names it."""
    try:
        yield path
    except (InputError, MemoryError):
        raise
    except Exception as error:
        # Libraries raise errors of their own for damaged files, and ours may not fit them.
        what = "no " if isinstance(error, KeyError) else ""
        raise damaged(path, f"{what}{one_line(error, _LONGEST_REASON)}", advice) from error


def damaged(path: Path, reason: str, advice: str = FIT_AGAIN) -> InputError:
    """Return the error for a file that is not as it was written."""
    return InputError(f"{path}: damaged ({reason}); {advice}")


def parse_json(content: bytes, kind: type[T], path: Path, advice: str = FIT_AGAIN) -> T:
    """Return JSON as a `kind` that pydantic checks: a model, a dataclass or a type."""
    with reading(path, advice):
        return check_value(json.loads(content, parse_constant=_refused), kind, path, advice)


def check_value(value: Any, kind: type[T], path: Path, advice: str = FIT_AGAIN) -> T:
    """Return a value of JSON as a `kind`; an error names the file and the first wrong field."""
    if not _is_shallow(value, _DEEPEST):
        raise damaged(path, "nested too deep", advice)
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(str(part) for part in first["loc"])[:_LONGEST_REASON] or "content"
        raise damaged(path, f"{name}: {first['msg']}", advice) from None


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON file with a checksum of itself."""
    return {**content, _SEAL: _checksum(content)}


def unsealed(content: Any, path: Path, advice: str = FIT_AGAIN) -> dict[str, Any]:
    """Return what `sealed` was given, or raise an `InputError` if that is not so."""
    if not isinstance(content, dict):
        raise damaged(path, "not an object", advice)
    rest = {name: value for name, value in content.items() if name != _SEAL}
    if content.get(_SEAL) != _checksum(rest):
        raise damaged(path, "its checksum differs", advice)
    return rest


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _is_shallow(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_shallow(entry, levels - 1) for entry in inner)


class CheckedTable:
    """A Parquet file of a run: its columns by name, of the kind that is asked for."""

    def __init__(
        self,
        stream: IO[bytes],
        path: Path,
        columns: Sequence[str] | None = None,
        advice: str = FIT_AGAIN,
    ) -> None:
        with reading(path, advice):
            file = pyarrow.parquet.ParquetFile(stream)
            found = file.schema_arrow.names if columns is None else list(columns)
            rows, declared = file.metadata.num_rows, file.metadata.num_rows * len(found)
            # A column of one repeated value takes no space on disk, whatever its length.
            check_free(declared * _BYTES_OF_TEXT, f"{path}: reading {rows:,} rows", "use fewer")
            table = file.read(None if columns is None else found)
            table.validate(full=True)
        self._take(table, path, advice)

    @classmethod
    def of_csv(cls, stream: IO[bytes], path: Path, advice: str = FIT_AGAIN) -> Self:
        """Return the content of a CSV file of predictions."""
        made = cls.__new__(cls)
        with reading(path, advice):
            size = os.fstat(stream.fileno()).st_size
            check_free(12.0 * size, f"{path}: in memory it", "write it as Parquet")
            # A class may be named 007.
            kinds = dict.fromkeys(_TEXT_IN_CSV, pa.string())
            table = pyarrow.csv.read_csv(
                stream,
                pyarrow.csv.ReadOptions(block_size=min(max(size, 1 << 16), LONGEST_ROW)),
                pyarrow.csv.ParseOptions(newlines_in_values=True),
                pyarrow.csv.ConvertOptions(column_types=kinds),
            )
            # 0 and 1 alone are read as whole numbers.
            for place, column in enumerate(table.schema):
                if pa.types.is_integer(column.type):
                    numbers = table[place].cast(pa.float64())
                    table = table.set_column(place, column.name, numbers)
        made._take(table, path, advice)
        return made

    def _take(self, table: Any, path: Path, advice: str) -> None:
        self._table, self.path, self.advice = table, path, advice
        self.names: list[str] = table.column_names
        if len(set(self.names)) < len(self.names):
            raise self._damaged("a column is there twice")

    def _damaged(self, reason: str) -> InputError:
        return damaged(self.path, reason, self.advice)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def text(self, name: str) -> npt.NDArray[np.str_]:
        """Return a column of text."""
        return np.array(self._column(name, TEXT).to_pylist(), dtype=np.str_)

    def numbers(self, name: str, low: float = -np.inf, high: float = np.inf) -> Any:
        """Return a column of finite numbers, all from `low` to `high`."""
        values = self._column(name, NUMBERS).to_numpy()
        if not (np.isfinite(values) & (values >= low) & (values <= high)).all():
            raise self._damaged(f"column {name!r} holds a number that cannot be")
        return values

    def counts(self, name: str) -> list[int]:
        """Return a column of whole numbers from 0 on."""
        values: list[int] = self._column(name, COUNTS).to_pylist()
        if min(values, default=0) < 0:
            raise self._damaged(f"column {name!r} holds a negative number")
        return values

    def content(self, name: str) -> list[bytes]:
        """Return a column of bytes."""
        return list(self._column(name, BYTES).to_pylist())

    def flags(self, name: str) -> npt.NDArray[np.bool_]:
        """Return a column of truth values."""
        return np.array(self._column(name, FLAGS).to_pylist(), dtype=bool)

    def _column(self, name: str, kind: str) -> Any:
        if name not in self.names:
            raise self._damaged(f"no column {name!r}")
        column = self._table[name]
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if not _KINDS[kind](column.type) or column.null_count:
            raise self._damaged(f"column {name!r} is not {kind} throughout")
        return column


_KINDS: Mapping[str, Any] = {
    TEXT: pa.types.is_string,
    NUMBERS: pa.types.is_floating,
    COUNTS: pa.types.is_integer,
    BYTES: pa.types.is_binary,
    FLAGS: pa.types.is_boolean,
}


def parse_tensors(content: bytes, path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a safetensors file; all numbers must be finite."""
    with reading(path):
        arrays = load(content)
    for name, values in arrays.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise damaged(path, f"{name!r} holds a number that is not finite")
    return arrays
