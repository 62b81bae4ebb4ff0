"""Files of runs that are checked when they are read: the manifest, and a reader per kind of file.

The manifest has a checksum of each file, so that a damaged one is named and never used. A file
that is replaced later, by an evaluation or a report, is not listed while it is replaced: a process
that dies at any moment leaves a run that can be read, without that file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pydantic import TypeAdapter, ValidationError
from safetensors.numpy import load

from opensetda.data.tables.delimited import LONGEST_ROW
from opensetda.errors import InputError, one_line
from opensetda.system.files import new_file, open_regular, write_json

T = TypeVar("T")

MANIFEST = "manifest.json"
FIT_AGAIN = "fit again"
_LONGEST_REASON = 160
_SEAL = "sha256"
# A class may be named 007.
_TEXT_IN_CSV = ("id", "path", "label", "nearest_class", *(f"top_{n}" for n in range(1, 1001)))


@contextmanager
def reading(path: Path, advice: str = FIT_AGAIN) -> Iterator[None]:
    """Turn whatever goes wrong while a file is read into an `InputError` that names it."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: missing; the run is not complete, {advice}") from None
    except Exception as error:
        # Libraries raise errors of their own for damaged files.
        raise damaged(path, one_line(error, _LONGEST_REASON), advice) from error


def damaged(path: Path, reason: str, advice: str = FIT_AGAIN) -> InputError:
    """Return the error for a file that is not as it was written."""
    return InputError(f"{path}: damaged ({reason}); {advice}")


def check_value(value: Any, kind: type[T], path: Path) -> T:
    """Return a value of JSON as a `kind`; an error names the file and the first wrong field."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(str(part) for part in first["loc"])[:_LONGEST_REASON] or "content"
        raise damaged(path, f"{name}: {first['msg']}") from None


def read_json(path: Path) -> Any:
    """Read JSON, or raise an `InputError` that names the file."""
    with reading(path), open_regular(path) as stream:
        return json.load(stream)


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file with a checksum of its content in it."""
    with new_file(path) as aside:
        write_json(aside, {**content, _SEAL: _checksum(content)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Read what `write_sealed` wrote, or raise an `InputError` that names the file."""
    content = check_value(read_json(path), dict[str, Any], path)
    if content.pop(_SEAL, None) != _checksum(content):
        raise damaged(path, "its checksum differs")
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class CheckedTable:
    """A Parquet or CSV file of a run: its columns by name, of the kind that is asked for."""

    def __init__(
        self,
        content: bytes,
        path: Path,
        columns: Sequence[str] | None = None,
        advice: str = FIT_AGAIN,
    ) -> None:
        self.path = path
        self.advice = advice
        with reading(path, advice):
            if path.suffix.lower() == ".csv":
                # With many classes, the header alone may be longer than a block of the usual size.
                size = min(max(len(content), 1 << 16), LONGEST_ROW)
                types = dict.fromkeys(_TEXT_IN_CSV, pa.string())
                # Not from a stream of Python, which a thread of Arrow may still hold at the end.
                self._table = pyarrow.csv.read_csv(
                    pa.BufferReader(content),
                    pyarrow.csv.ReadOptions(block_size=size, use_threads=False),
                    pyarrow.csv.ParseOptions(newlines_in_values=True),
                    pyarrow.csv.ConvertOptions(column_types=types, include_columns=columns),
                )
            else:
                self._table = pyarrow.parquet.read_table(pa.BufferReader(content), columns=columns)
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

    def column(self, name: str, kind: Any) -> Any:
        """Return a column without gaps, of an Arrow type."""
        if self.names.count(name) != 1:
            raise damaged(self.path, f"not one column {name!r}", self.advice)
        with reading(self.path, self.advice):
            column = self._table[name].cast(kind)
        if column.null_count:
            raise damaged(self.path, f"column {name!r} has gaps", self.advice)
        return column


class Manifest:
    """The sizes and checksums (``size:digest``) of the files of a run, and their contents."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.folder = folder
        self.files = files

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a run."""
        return cls(folder, read_sealed(folder / MANIFEST)["files"])

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return a manifest of all files that are in a folder."""
        files = {path.name: _digest(path.read_bytes()) for path in folder.iterdir()}
        files.pop(MANIFEST, None)
        return cls(folder, files)

    def write(self) -> None:
        """Write ``manifest.json``."""
        write_sealed(self.folder / MANIFEST, {"files": dict(sorted(self.files.items()))})

    def content(self, name: str) -> bytes:
        """Return the content of a file whose checksum is right, or name it in an `InputError`."""
        path = self.folder / name
        listed = self.files.get(name, "0:")
        with reading(path), open_regular(path) as stream:
            # A larger file need not fit into memory.
            content = stream.read(int(listed.partition(":")[0]) + 1)
        if _digest(content) != listed:
            raise damaged(path, f"its checksum is not that of {MANIFEST}")
        return content

    def json(self, name: str, kind: type[T]) -> T:
        """Return a JSON file as a `kind` that pydantic checks: a dataclass or a type."""
        path = self.folder / name
        with reading(path):
            return check_value(json.loads(self.content(name)), kind, path)

    def tensors(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of a safetensors file."""
        with reading(self.folder / name):
            return load(self.content(name))

    def replace(self, contents: Mapping[str, bytes]) -> None:
        """Write files into the run, in the place of earlier ones."""
        with ExitStack() as moves:
            # First all that may fail on a full disk.
            for name, content in contents.items():
                moves.enter_context(new_file(self.folder / name)).write_bytes(content)
            found = Manifest.read(self.folder).files
            self.files = {name: digest for name, digest in found.items() if name not in contents}
            self.write()
            moves.close()
        self.files |= {name: _digest(content) for name, content in contents.items()}
        self.write()


def _digest(content: bytes) -> str:
    return f"{len(content)}:{hashlib.sha256(content).hexdigest()}"
