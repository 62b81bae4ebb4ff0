"""Lists of images in files: ``path label`` lines, and manifests in CSV or Parquet."""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet

from opensetda.data.images.decoding import IMAGE_SUFFIXES
from opensetda.data.limits import LONGEST_LINE, MOST_LINES
from opensetda.data.names import printable as printable
from opensetda.data.reading import reading
from opensetda.data.tables.formats import find_name, open_table
from opensetda.errors import InputError
from opensetda.system.files import open_regular

LIST_SUFFIXES = (".txt",)
MANIFEST_SUFFIXES = (".csv", ".parquet")
_PATH_NAMES = ("path", "file", "image", "filename")
_LABEL_NAMES = ("label", "class", "y")
_ID_NAME = "id"
_BLANK = re.compile(r"[ \t]+")
_LONGEST_HEADER = 1 << 16


@dataclass(frozen=True)
class ImageColumns:
    """Columns of manifests, and the folder that relative paths of lists and manifests start from.

    None stands for the columns "path", "file", "image" or "filename", and "label", "class" or "y",
    and for the folder of the list, then the one above it.
    """

    path: str | None = None
    label: str | None = None
    root: Path | None = None


class Entry(NamedTuple):
    """One image: its printable name, its file, its class if any, and whether the file exists.

    `place` is that in a list ("line 3"); empty for files found in a folder.
    """

    id: str
    path: str
    label: str | None
    place: str = ""
    there: bool = True


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
        for number in itertools.count(1):
            line = lines.readline(LONGEST_LINE + 1)
            if len(line) > LONGEST_LINE or number > MOST_LINES:
                most = f"more than {LONGEST_LINE:,} characters"
                most = most if number <= MOST_LINES else f"more than {MOST_LINES:,} lines"
                raise InputError(f"{printable(str(path))}, line {number}: {most}; divide it")
            if not line:
                return
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            written, label = parse_line(text, lambda name: find(name)[1])
            where, there = find(written)
            label = None if label is None else printable(label)
            yield Entry(printable(written), where, label, f"line {number}", there)


def manifest_entries(path: Path, columns: ImageColumns, labelled: bool) -> Iterator[Entry]:
    """Yield the images of a CSV or Parquet file; labels only if `labelled`."""
    names = header_of(path)
    path_column = columns.path or _first(names, _PATH_NAMES) or _PATH_NAMES[0]
    label_column = columns.label or _first(names, _LABEL_NAMES) or _LABEL_NAMES[0]
    id_column = _first(names, (_ID_NAME,))
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
        where, there = find(written)
        yield Entry(own or written, where, label, f"row {row}", there)


def is_manifest(path: Path, columns: ImageColumns) -> bool:
    """Return whether a table has a column of paths and otherwise at most a label and an id."""
    if columns.path is not None:
        return True
    try:
        names = header_of(path)
    except InputError:
        # The reader of the table reports the problem.
        return False
    path_column = _first(names, _PATH_NAMES)
    if path_column is None:
        return False
    label_column = columns.label or _first(names, _LABEL_NAMES)
    return {*names} <= {path_column, label_column, _first(names, (_ID_NAME,))}


def _finder(path: Path, columns: ImageColumns) -> Callable[[str], tuple[str, bool]]:
    """Return a function from a path in a list to the path of the file, and whether it exists."""
    roots = [path.parent, path.parent / ".."] if columns.root is None else [columns.root]
    # Not "./a.png" for a list in the current folder: the paths are shown to users.
    folders = ["" if root == Path() else str(root) for root in roots]

    def find(written: str) -> tuple[str, bool]:
        paths = [os.path.join(folder, written) for folder in folders]  # noqa: PTH118
        there = next(filter(os.path.isfile, paths), None)
        return there or paths[0], there is not None

    return find


def header_of(path: Path) -> Sequence[str]:
    """Return the names of the columns of a CSV or Parquet file."""
    with reading(path, "a table"), open_regular(path) as stream:
        if path.suffix.lower() == ".parquet":
            return tuple(pyarrow.parquet.read_schema(stream).names)
        lines = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
        return next(csv.reader([lines.readline(_LONGEST_HEADER)]), ())


def _first(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """Return the first name in `wanted` that is there, whatever its case."""
    by_lower = {name.strip().lower(): name for name in reversed(names)}
    return next((by_lower[name] for name in wanted if name in by_lower), None)
