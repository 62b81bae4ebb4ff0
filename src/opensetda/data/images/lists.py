"""Images named in files: lists of ``path label`` lines, manifests, and WebDataset's tar shards.

The files of a sample in a shard share a key, the path up to the first dot of the file's name:
``a/0001.jpg`` and ``a/0001.cls``. Classes are read for a source only.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet

from opensetda.data.images.decoding import IMAGE_SUFFIXES, archive_of, read_content
from opensetda.data.names import printable as printable
from opensetda.data.names import reading
from opensetda.data.tables.formats import find_name, open_table
from opensetda.errors import InputError
from opensetda.system.files import open_regular

LIST_SUFFIXES = (".txt",)
MANIFEST_SUFFIXES = (".csv", ".parquet")
_PATH_NAMES = ("path", "file", "image", "filename")
_LABEL_NAMES = ("label", "class", "y")
_BLANK = re.compile(r"[ \t]+")

# Files that may hold the class, the first one counts.
_CLASS_ENDINGS = ("cls", "json", "txt")
_CLASS_KEYS = ("label", "class", "cls")


@dataclass(frozen=True)
class ImageColumns:
    """Columns of manifests, and the folder that relative paths of lists and manifests start from.

    None stands for the usual names, and for the folder of the list, then the one above it.
    """

    path: str | None = None
    label: str | None = None
    root: Path | None = None


class Entry(NamedTuple):
    """One image: its printable name, its file, its class if any, its place in a list ("line 3")."""

    id: str
    path: str
    label: str | None
    place: str = ""


def parse_line(text: str, is_file: Callable[[str], bool]) -> tuple[str, str | None]:
    """Split a line of a list, without white space around it, into path and perhaps label.

    Paths may hold blanks, labels may not. `is_file`, whether a path leads to a file, decides how
    a line with blanks is read. Without a file, a line that ends like an image has no label.
    """
    blanks = list(_BLANK.finditer(text))
    if not blanks or is_file(text):
        return text, None
    path, label = text[: blanks[-1].start()], text[blanks[-1].end() :]
    if not is_file(path) and text.lower().endswith(tuple(IMAGE_SUFFIXES)):
        return text, None
    return path, label


def list_entries(path: Path, columns: ImageColumns) -> Iterator[Entry]:
    """Yield the images of a list of ``path label`` or ``path`` lines."""
    find = _finder(path, columns)
    with reading(path, "a list"), open_regular(path) as stream:
        # Keep bytes that are not UTF-8: on Linux they may be part of a file name.
        lines = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape")
        for number, text in enumerate(map(str.strip, lines), start=1):
            if text and not text.startswith("#"):
                written, label = parse_line(text, lambda name: os.path.isfile(find(name)))  # noqa: PTH113
                label = None if label is None else printable(label)
                yield Entry(printable(written), find(written), label, f"line {number}")


def manifest_entries(path: Path, columns: ImageColumns, labelled: bool) -> Iterator[Entry]:
    """Yield the images of a CSV or Parquet file; labels only if `labelled`."""
    path_column, label_column, id_column = _columns_of(header_of(path), columns)
    path_column, label_column = path_column or _PATH_NAMES[0], label_column or _LABEL_NAMES[0]
    table = open_table(path, filter(None, (path_column, label_column, id_column)))
    paths = table.text(find_name(table, path_column, "--path-column")).tolist()
    labels = ids = [None] * len(paths)
    if labelled:
        labels = table.labels(find_name(table, label_column, "--label-column")).tolist()
    if id_column:
        ids = table.text(id_column).tolist()
    find = _finder(path, columns)
    for row, (written, label, own) in enumerate(zip(paths, labels, ids, strict=True), start=1):
        if written is None:
            raise InputError(f"{path}: {path_column!r}, row {row}: empty; write the path")
        yield Entry(own or written, find(written), label, f"row {row}")


def is_manifest(path: Path, columns: ImageColumns) -> bool:
    """Return whether a table has a column of paths and otherwise at most a label and an id."""
    with suppress(InputError):  # which the reader of the table reports
        names = header_of(path)
        found = _columns_of(names, columns)
        return columns.path is not None or (found[0] is not None and {*names} <= {*found})
    return columns.path is not None


def header_of(path: Path) -> Sequence[str]:
    """Return the names of the columns of a CSV or Parquet file."""
    with reading(path, "a table"), open_regular(path) as stream:
        if path.suffix.lower() == ".parquet":
            return tuple(pyarrow.parquet.read_schema(stream).names)
        lines = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
        return next(csv.reader([lines.readline()]), ())


def _columns_of(names: Sequence[str], columns: ImageColumns) -> tuple[str | None, ...]:
    """Return the columns of path, label and id: as given, or the first of the usual names."""
    by_lower = {name.strip().lower(): name for name in reversed(names)}
    usual = (_PATH_NAMES, _LABEL_NAMES, ("id",))
    found = [next((by_lower[n] for n in some if n in by_lower), None) for some in usual]
    return columns.path or found[0], columns.label or found[1], found[2]


def _finder(path: Path, columns: ImageColumns) -> Callable[[str], str]:
    """Return a function from a path in a list to the path of the file, which need not exist."""
    roots = [path.parent, path.parent / ".."] if columns.root is None else [columns.root]
    # Not "./a.png" for a list in the current folder: the paths are shown to users.
    folders = ["" if root == Path() else str(root) for root in roots]

    def find(written: str) -> str:
        paths = [os.path.join(folder, written) for folder in folders]  # noqa: PTH118
        return next(filter(os.path.isfile, paths), paths[0])

    return find


def is_shard(name: str) -> bool:
    """Return whether a name ends like a tar shard."""
    return name.lower().endswith(".tar")


def shard_entries(shard: str, name: str, labelled: bool) -> Iterator[Entry]:
    """Yield the images of a shard, as if it were a folder of that name."""
    samples: dict[str, dict[str, str]] = defaultdict(dict)
    with reading(shard, "a tar shard"):
        for member in archive_of(shard):
            # Not the files that macOS adds: "._0001.jpg", "__MACOSX/0001.jpg".
            if not any(part.startswith((".", "__MACOSX")) for part in member.split("/")):
                folder, _, base = member.rpartition("/")
                key, _, ending = base.partition(".")
                samples[f"{folder}/{key}"][ending.lower()] = member
    for files in samples.values():
        images = [e for e in files if f".{e.rpartition('.')[2]}" in IMAGE_SUFFIXES]
        # Of several, those without a second dot: "1.jpg" and not "1.depth.png".
        plain = [ending for ending in images if "." not in ending] or images
        label = _class_of(shard, files) if labelled and images else None
        for image in [files[ending] for ending in plain]:
            yield Entry(printable(f"{name}/{image}"), f"{shard}/{image}", label)


def _class_of(shard: str, files: dict[str, str]) -> str | None:
    """Return the class of a sample; None if it has none."""
    for ending in filter(files.get, _CLASS_ENDINGS):
        place = f"{shard}/{files[ending]}"
        with reading(place, "the class"):
            text = read_content(place).decode("utf-8-sig")
            if ending == "json":
                values = json.loads(text)
                found = [values.get(key) for key in _CLASS_KEYS if isinstance(values, dict)]
                text = next((str(value) for value in found if value is not None), "")
        if text.strip():
            return text.strip()
    return None
