"""Images from folders (one folder per class, or flat), lists, manifests and tar shards.

Target labels are dropped here: `read_image_domains` never returns them, whatever the folders are
called. Only `read_image_truth`, for evaluation, reads them.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet

from opensetda.data.images.decoding import (
    IMAGE_SUFFIXES,
    Entry,
    is_member,
    is_shard,
    shard_entries,
)
from opensetda.data.names import (
    check_path,
    label_problem,
    no_such,
    printable,
    reading,
    shown,
    unreadable,
)
from opensetda.data.tables.formats import SUFFIXES as TABLE_SUFFIXES
from opensetda.data.tables.formats import find_name, is_parts_folder, open_table
from opensetda.data.tables.loading import TruthTable, count_classes
from opensetda.data.tables.mapped import Labels, fixed_width
from opensetda.errors import InputError
from opensetda.system.files import open_regular

LIST_SUFFIXES = (".txt",)
MANIFEST_SUFFIXES = (".csv", ".parquet")
_PATH_NAMES = ("path", "file", "image", "filename")
_LABEL_NAMES = ("label", "class", "y")
_BLANK = re.compile(r"[ \t]+")
_SUFFIXES = ", ".join(sorted(IMAGE_SUFFIXES))
# Files of operating systems; names that begin with a dot are left out anyway.
_LITTER = frozenset({"thumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin"})


@dataclass(frozen=True)
class ImageColumns:
    """Columns of manifests, and the folder that relative paths of lists and manifests start from.

    None stands for the usual names, and for the folder of the list, then the one above it.
    """

    path: str | None = None
    label: str | None = None
    root: Path | None = None


@dataclass(frozen=True)
class ImageList:
    """Images of one domain.

    `paths` are the files, in a tar shard ``shard.tar/image.jpg``, `ids` unique names: the path in
    the given folder or list, or a manifest's column "id". `labels` are those of a source.
    """

    paths: tuple[str, ...]
    ids: Labels
    labels: Labels | None
    origin: Path
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.paths)

    def class_counts(self) -> dict[str, int]:
        """Return the number of images per class; empty without labels."""
        return count_classes(self.labels)

    def select(self, rows: npt.NDArray[Any]) -> ImageList:
        """Return some of the images, by row numbers or a mask."""
        chosen = np.arange(len(self))[rows]
        labels = None if self.labels is None else self.labels[chosen]
        paths = tuple(self.paths[row] for row in chosen.tolist())
        return replace(self, paths=paths, ids=self.ids[chosen], labels=labels)


def is_image_data(path: str | Path, columns: ImageColumns | None = None) -> bool:
    """Return whether a path leads to images and not to a feature table."""
    path = Path(path)
    columns = columns or ImageColumns()
    suffix = path.suffix.lower()
    check_path(path)
    if path.is_dir() or suffix in (*IMAGE_SUFFIXES, *LIST_SUFFIXES, ".tar"):
        return not is_parts_folder(path)
    if suffix in MANIFEST_SUFFIXES:
        return path.is_file() and is_manifest(path, columns)
    # A misspelt folder: its reader reports that it does not exist.
    return suffix not in TABLE_SUFFIXES and not path.exists()


def two_kinds(images: Path, other: Path) -> InputError:
    """Return the error for two domains of which one is images and the other not."""
    return InputError(
        f"{images} holds images, but {other} does not; both must be images or tables "
        f"({', '.join(TABLE_SUFFIXES)}; 'osda features' makes tables of images)"
    )


def read_image_domains(
    source: str | Path, target: str | Path, columns: ImageColumns | None = None
) -> tuple[ImageList, ImageList]:
    """Find labelled images of at least two classes, and images to be labelled, without labels."""
    labelled = read_images(source, columns, labelled=True)
    if len(classes := [*labelled.class_counts()]) < 2:
        problem = f"{printable(labelled.origin)}: one class only ({classes[0]!r})"
        raise InputError(f"{problem}; give labelled images of at least two classes")
    return labelled, read_images(target, columns)


def read_images(
    path: str | Path, columns: ImageColumns | None = None, labelled: bool = False
) -> ImageList:
    """Find the images of one domain; with `labelled`, all of them must have a class."""
    path = Path(path)
    columns = columns or ImageColumns()
    left_out = Counter[str]()
    entries = _checked_entries(path, columns, labelled, left_out)
    missing = [e for e in entries if e.place and not os.path.isfile(e.path)]  # noqa: PTH113
    if missing:
        start = columns.root or "the folder of the list or the one above"
        problem = f"no such file {missing[0].id!r} ({len(missing)} of {len(entries)} are missing)"
        where = f"{printable(path)}, {missing[0].place}"
        raise InputError(f"{where}: {problem}; paths start from {start}")
    labels = _labels(path, entries) if labelled else None
    ids = fixed_width([entry.id for entry in entries], path, "id")
    return ImageList(tuple(entry.path for entry in entries), ids, labels, path, _notes(left_out))


def read_image_truth(path: str | Path, columns: ImageColumns | None = None) -> TruthTable:
    """Read the classes of images, some of which may have none; files of a list need not exist."""
    path = Path(path)
    entries = _checked_entries(path, columns or ImageColumns(), True, Counter())
    _labels(path, [entry for entry in entries if entry.label] or entries)
    labels = fixed_width([entry.label or "" for entry in entries], path, "class")
    return TruthTable(labels, fixed_width([entry.id for entry in entries], path, "id"), path)


def iterate_entries(
    paths: Sequence[Path], columns: ImageColumns, labelled: bool = False
) -> Iterator[Entry]:
    """Yield images one by one, with their classes, if there are any, if `labelled`.

    Ids are those of `read_images`; of several folders or lists, which may share names, the paths.
    """
    for given in paths:
        left_out = Counter[str]()
        entry = None
        for entry in _entries(given, columns, labelled, left_out):
            yield entry if len(paths) == 1 else entry._replace(id=printable(entry.path))
        if entry is None:
            raise _no_image(given, left_out)


def all_there(entries: Iterator[Entry], total: int, paths: Sequence[Path]) -> Iterator[Entry]:
    """Yield images that were counted before; an `InputError` if there are fewer by now."""
    missing = total
    for entry in entries:
        missing -= 1
        yield entry
    if missing > 0:
        problem = f"{missing:,} of {total:,} images are gone since the command began"
        more = " ..." if paths[1:] else ""
        again = "restore them, and give the command again"
        raise InputError(f"{printable(paths[0])}{more}: {problem}; {again}")


def _notes(left_out: Counter[str]) -> tuple[str, ...]:
    """Return a line about files that were left out, if any were."""
    parts = ", ".join(f"{n:,} x {suffix}" for suffix, n in left_out.most_common(9))
    return (printable(f"left out, as no images: {parts}"),) if parts else ()


def _entries(
    path: Path, columns: ImageColumns, labelled: bool, left_out: Counter[str]
) -> Iterator[Entry]:
    suffix = path.suffix.lower()
    check_path(path)
    if path.is_dir():
        yield from _folder_entries(str(path), labelled, left_out)
    elif suffix in IMAGE_SUFFIXES and (path.exists() or is_member(str(path))):
        yield Entry(printable(path.as_posix()), str(path), None)
    elif not path.exists():
        raise no_such(path, lambda name: not name.startswith("."))
    elif suffix in LIST_SUFFIXES:
        for entry in list_entries(path, columns):
            is_there = is_shard(entry.path) and os.path.isfile(entry.path)  # noqa: PTH113
            inside = shard_entries(entry.path, entry.id, labelled)
            yield from inside if is_there else [entry]
    elif suffix in MANIFEST_SUFFIXES:
        yield from manifest_entries(path, columns, labelled)
    elif is_shard(path.name):
        yield from shard_entries(str(path), path.name, labelled)
    else:
        kinds = "an image, a list (.txt), a manifest (.csv, .parquet) nor a tar shard (.tar)"
        raise InputError(f"{printable(path)}: neither a folder, {kinds}; convert it")


def _folder_entries(root: str, labelled: bool, left_out: Counter[str]) -> Iterator[Entry]:
    """Yield the images of a folder and all below it, or of the tar shards in it.

    The folder of an image below the root is its class. Office-31 as published has one folder
    between, which holds folders: ``amazon/images/back_pack``.
    """
    depth = 0
    for place, folders, files in _walk(root):
        parts = Path(place).relative_to(root).parts
        images = [name for name in files if _suffix(name) in IMAGE_SUFFIXES]
        if not parts and not images:
            for shard in [name for name in files if is_shard(name) and not folders]:
                files.remove(shard)
                where = os.path.join(root, shard)  # noqa: PTH118
                yield from shard_entries(where, shard, labelled)
            if len(folders) == 1:
                inside = next(os.walk(os.path.join(root, folders[0])), ("", [], []))[1]  # noqa: PTH118
                depth = int(any(not name.startswith(".") for name in inside))
        left_out.update(_suffix(name) or "no ending" for name in {*files} - {*images})
        label = printable(parts[depth]) if len(parts) > depth else None
        for name in images:
            path = os.path.join(place, name)  # noqa: PTH118
            yield Entry(printable("/".join((*parts, name))), path, label)


def _walk(root: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as `os.walk` does, sorted, without litter; a link to a folder is followed once."""

    def fail(error: OSError) -> None:
        raise unreadable(error.filename, error) from error

    linked: set[str] = set()
    for place, folders, files in os.walk(root, onerror=fail, followlinks=True):
        if place != root and os.path.islink(place):  # noqa: PTH114
            real = os.path.realpath(place)
            above = os.path.realpath(Path(place).parent)
            if real in linked or f"{above}/".startswith(f"{real}/"):
                folders.clear()
                continue
            linked.add(real)
        for names in (folders, files):
            kept = [n for n in names if not n.startswith(".") and n.lower() not in _LITTER]
            names[:] = sorted(kept)
        yield place, folders, files


def _checked_entries(
    path: Path, columns: ImageColumns, labelled: bool, left_out: Counter[str]
) -> list[Entry]:
    """Return at least one image, all with unique names."""
    entries: list[Entry] = []
    seen: dict[tuple[str, str], Entry] = {}
    for entry in _entries(path, columns, labelled, left_out):
        entries.append(entry)
        # "a.jpg" and "./a.jpg" are one file; the id of one file may be the name of another.
        for key in (("id", entry.id), ("file", os.path.normpath(entry.path))):
            if seen.setdefault(key, entry) is not entry:
                where = f"{printable(path)}, {seen[key].place} and {entry.place}"
                raise InputError(f"{where}: {entry.id!r} is there twice; remove one")
    if not entries:
        raise _no_image(path, left_out)
    return entries


def _labels(path: Path, entries: list[Entry]) -> Labels:
    without = [entry for entry in entries if not entry.label]
    if without:
        first = without[0]
        where = f"{printable(path)}, {first.place}".removesuffix(", ")
        problem = f"images without a class: {len(without):,} (for example {first.id!r})"
        advice = "give each a folder named after its class, or a class in the list, or a .cls file"
        raise InputError(f"{where}: {problem}; {advice} (of two, the labelled one comes first)")
    labels = [str(entry.label) for entry in entries]
    for label in dict.fromkeys(labels):
        if why := label_problem(label):
            raise InputError(f"{printable(path)}: class {shown(label)}: {why}; rename it")
    return fixed_width(labels, path, "class")


def _no_image(path: Path, left_out: Counter[str]) -> InputError:
    notes = "".join(f"; {note}" for note in _notes(left_out))
    return InputError(f"{printable(path)}: no image in it{notes}; images end in {_SUFFIXES}")


def _suffix(name: str) -> str:
    """Return the ending of a name in lower case; much faster than Path.suffix."""
    return os.path.splitext(name)[1].lower()  # noqa: PTH122


def parse_line(text: str, is_file: Callable[[str], bool]) -> tuple[str, str | None]:
    """Split a line of a list, without white space around it, into path and perhaps label.

    Paths may hold blanks, labels may not. `is_file`, whether a path leads to a file, decides how
    a line with blanks is read. Without a file, a line that ends like an image has no label.
    """
    blanks = list(_BLANK.finditer(text))
    if not blanks or is_file(text):
        return text, None
    path = text[: blanks[-1].start()]
    label = text[blanks[-1].end() :]
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
    path_column = path_column or _PATH_NAMES[0]
    label_column = label_column or _LABEL_NAMES[0]
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
        return next(csv.reader([lines.readline(2**20)]), ())


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
