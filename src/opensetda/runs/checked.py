"""Readers of the files of runs: one per kind of file, each names the file and the field at fault.

Checksums (`opensetda.runs.manifest`) find what was damaged; the readers find what is not of the
kind that is asked for, such as a file of another program.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pydantic import TypeAdapter, ValidationError
from safetensors.numpy import load

from opensetda.data.tables.formats import LONGEST_ROW
from opensetda.errors import InputError, one_line

T = TypeVar("T")

FIT_AGAIN = "fit again"
_LONGEST_REASON = 160
_SEAL = "sha256"
_TEXT_IN_CSV = ("id", "path", "label", "nearest_class", *(f"top_{n}" for n in range(1, 1001)))


@contextmanager
def reading(path: Path, advice: str = FIT_AGAIN) -> Iterator[None]:
    """Turn whatever goes wrong while a file is read into an `InputError` that names it."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        # Libraries raise errors of their own for damaged files.
        what = "no " if isinstance(error, KeyError) else ""
        raise damaged(path, f"{what}{one_line(error, _LONGEST_REASON)}", advice) from error


def damaged(path: Path, reason: str, advice: str = FIT_AGAIN) -> InputError:
    """Return the error for a file that is not as it was written."""
    return InputError(f"{path}: damaged ({reason}); {advice}")


def parse_json(content: bytes, kind: type[T], path: Path, advice: str = FIT_AGAIN) -> T:
    """Return JSON as a `kind` that pydantic checks: a model, a dataclass or a type."""
    with reading(path, advice):
        return check_value(json.loads(content), kind, path, advice)


def check_value(value: Any, kind: type[T], path: Path, advice: str = FIT_AGAIN) -> T:
    """Return a value of JSON as a `kind`; an error names the file and the first wrong field."""
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
    rest = dict(check_value(content, dict[str, Any], path, advice))
    if rest.pop(_SEAL, None) != _checksum(rest):
        raise damaged(path, "its checksum differs", advice)
    return rest


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class CheckedTable:
    """A Parquet or CSV file of a run: its columns by name, of the kind that is asked for."""

    def __init__(
        self,
        stream: IO[bytes],
        path: Path,
        columns: Sequence[str] | None = None,
        advice: str = FIT_AGAIN,
    ) -> None:
        self.path, self.advice = path, advice
        with reading(path, advice):
            if path.suffix.lower() == ".csv":
                self._table = _read_csv(stream, columns)
            else:
                self._table = pyarrow.parquet.ParquetFile(stream).read(columns)
        self.names: list[str] = self._table.column_names

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def text(self, name: str) -> npt.NDArray[np.str_]:
        """Return a column of text."""
        return np.array(self.column(name, pa.string()).to_pylist(), dtype=np.str_)

    def numbers(self, name: str, low: float = -np.inf, high: float = np.inf) -> Any:
        """Return a column of finite numbers, all from `low` to `high`."""
        values = self.column(name, pa.float64()).to_numpy()
        if not (np.isfinite(values) & (values >= low) & (values <= high)).all():
            raise damaged(self.path, f"column {name!r} holds a number that cannot be", self.advice)
        return values

    def flags(self, name: str) -> npt.NDArray[np.bool_]:
        """Return a column of truth values."""
        return np.array(self.column(name, pa.bool_()).to_pylist(), dtype=bool)

    def column(self, name: str, kind: Any) -> Any:
        """Return a column without gaps, of an Arrow type."""
        if self.names.count(name) != 1:
            raise damaged(self.path, f"not one column {name!r}", self.advice)
        with reading(self.path, self.advice):
            column = self._table[name].cast(kind)
        if column.null_count:
            raise damaged(self.path, f"column {name!r} has gaps", self.advice)
        return column


def _read_csv(stream: IO[bytes], columns: Sequence[str] | None) -> Any:
    """Read a CSV file of predictions."""
    size = os.fstat(stream.fileno()).st_size
    return pyarrow.csv.read_csv(
        stream,
        # With many classes, the header alone may be longer than a block of the default size.
        pyarrow.csv.ReadOptions(block_size=min(max(size, 1 << 16), LONGEST_ROW)),
        pyarrow.csv.ParseOptions(newlines_in_values=True),
        pyarrow.csv.ConvertOptions(
            # A class may be named 007.
            column_types=dict.fromkeys(_TEXT_IN_CSV, pa.string()),
            include_columns=columns,
        ),
    )


def parse_tensors(content: bytes, path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a safetensors file."""
    with reading(path):
        return load(content)
