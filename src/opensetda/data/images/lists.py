"""Images named in files: lists of ``path label`` lines, manifests, and WebDataset's tar shards.

The files of a sample in a shard share a key, the path up to the first dot of the file's name:
``a/0001.jpg`` and ``a/0001.cls``. Classes are read for a source only.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet

from opensetda.data.images.decoding import (
    IMAGE_SUFFIXES,
    BrokenImageError,
    archive_of,
    read_content,
)
from opensetda.data.names import label_problem
from opensetda.data.names import printable as printable
from opensetda.data.reading import reading
from opensetda.data.tables.formats import find_name, open_table
from opensetda.errors import InputError
from opensetda.system.files import open_regular

LIST_SUFFIXES = (".txt",)
LONGEST_LINE, MOST_LINES = 1 << 16, 50_000_000  # of a list; a line in characters
MANIFEST_SUFFIXES = (".csv", ".parquet")
_PATH_NAMES = ("path", "file", "image", "filename")
_LABEL_NAMES = ("label", "class", "y")
_ID_NAME = "id"
_BLANK = re.compile(r"[ \t]+")
_LONGEST_HEADER = 1 << 16

# Compressed shards are recognised so as to be refused with a clear message.
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
# Files that may hold the class, the first one counts.
_CLASS_ENDINGS = ("cls", "json", "txt")
_CLASS_KEYS = ("label", "class", "cls")
_BRACES = re.compile(r"(\{[^{}]*\})")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
_MOST_SHARDS = 100_000
_URL = re.compile(r"pipe:.*|[a-z][a-z0-9+.-]+:")


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
                most = f"{MOST_LINES:,} lines"
                most = f"{LONGEST_LINE:,} characters" if number <= MOST_LINES else most
                where = f"{printable(str(path))}, line {number}"
                raise InputError(f"{where}: more than {most}; divide it")
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
    label_column = columns.label or _first(names, _LABEL_NAMES)
    others = {path_column, label_column, _first(names, (_ID_NAME,))}
    return path_column is not None and {*names} <= others


def header_of(path: Path) -> Sequence[str]:
    """Return the names of the columns of a CSV or Parquet file."""
    with reading(path, "a table"), open_regular(path) as stream:
        if path.suffix.lower() == ".parquet":
            return tuple(pyarrow.parquet.read_schema(stream).names)
        lines = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
        return next(csv.reader([lines.readline(_LONGEST_HEADER)]), ())


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


def _first(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """Return the first name in `wanted` that is there, whatever its case."""
    by_lower = {name.strip().lower(): name for name in reversed(names)}
    return next((by_lower[name] for name in wanted if name in by_lower), None)


def is_shard(name: str) -> bool:
    """Return whether a name ends like a tar shard; compressed ones count, to be refused."""
    return name.lower().endswith((".tar", *_COMPRESSED))


def is_pattern(path: Path) -> bool:
    """Return whether a path is a pattern for several shards, ``train-{000..009}.tar``."""
    text = str(path)
    # Not Path.exists, which raises an error if a pattern is too long for a name.
    return is_shard(text) and bool(_BRACES.search(text)) and not os.path.exists(text)  # noqa: PTH110


def refuse_url(path: Path) -> None:
    """Raise an `InputError` for a URL."""
    # As a path, "https://host/a" is "https:/host/a".
    if any(_URL.fullmatch(part) for part in path.parts[:-1]) or path.name.startswith("pipe:"):
        advice = "download it and give the file or folder"
        raise InputError(f"{printable(str(path))}: URLs are not read; {advice}")


def expand(pattern: str) -> list[str]:
    """Expand ``{08..11}`` and ``{a,b}`` of a pattern as a shell does, in the same order."""
    choices: list[Sequence[str]] = []
    for part in _BRACES.split(pattern):
        inside = part[1:-1]
        numbers = _RANGE.fullmatch(inside)
        if part[:1] != "{" or (numbers is None and "," not in part):
            choices.append([part])
        elif numbers is None:
            choices.append(inside.split(","))
        else:
            first, last = map(int, numbers.groups())
            width = max(map(len, numbers.groups())) if re.search(r"\b0\d", inside) else 1
            step = 1 if first <= last else -1
            some = range(first, last + step, step)[: _MOST_SHARDS + 1]
            choices.append([f"{number:0{width}}" for number in some])
    if math.prod(map(len, choices)) > _MOST_SHARDS:
        raise InputError(f"{printable(pattern)}: more than {_MOST_SHARDS:,} shards; give fewer")
    return ["".join(parts) for parts in itertools.product(*choices)]


def shard_entries(
    shards: Sequence[str], folder: str, labelled: bool, left_out: Counter[str]
) -> Iterator[Entry]:
    """Yield the images of shards, named relative to a folder that they are in.

    `left_out` counts what is not used, by reason.
    """
    for shard in shards:
        # As if the shard were a folder; "a/0.tar" and "b/0.tar" get different names.
        name = Path(shard.removeprefix(folder).lstrip(os.sep)).as_posix()
        for files in _samples(shard, left_out):
            image = _image(shard, files, left_out)
            if image is not None:
                label = _class_of(shard, files) if labelled else None
                yield Entry(printable(f"{name}/{image}"), f"{shard}/{image}", label)


def _samples(shard: str, left_out: Counter[str]) -> Iterable[dict[str, str]]:
    """Return the files of each sample of a shard by their endings."""
    if not shard.lower().endswith(".tar"):
        raise InputError(f"{printable(shard)}: compressed, so it is not read; unpack it to a .tar")
    with reading(shard, "a tar shard"):
        archive = archive_of(shard)
    left_out["link, device or sparse file in a shard"] += archive.left_out
    samples: dict[str, dict[str, str]] = defaultdict(dict)
    for name in archive.files:
        # Not the files that macOS adds: "._0001.jpg", "__MACOSX/0001.jpg".
        if not any(part.startswith((".", "__MACOSX")) for part in name.split("/")):
            folder, _, base = name.rpartition("/")
            key, _, ending = base.partition(".")
            files = samples[f"{folder}/{key}"]
            left_out["further image of a sample"] += ending.lower() in files
            files[ending.lower()] = name
    return samples.values()


def _image(shard: str, files: dict[str, str], left_out: Counter[str]) -> str | None:
    """Return the image of a sample: of several the one without a second dot."""
    images = [e for e in files if f".{e.rpartition('.')[2]}" in IMAGE_SUFFIXES]
    plain = [ending for ending in images if "." not in ending]
    if len(images) > 1 and len(plain) != 1:
        first, second, *_ = (printable(files[ending]) for ending in plain or images)
        raise InputError(
            f"{printable(shard)}: {first!r} and {second!r} are images of one sample, "
            "as its name ends at the first dot; rename or remove one"
        )
    left_out["sample without an image"] += not images
    left_out["further image of a sample"] += max(0, len(images) - 1)
    return files[(plain or images)[0]] if images else None


def _class_of(shard: str, files: dict[str, str]) -> str | None:
    """Return the class of a sample; None if it has none."""
    for ending in filter(files.get, _CLASS_ENDINGS):
        try:
            text = read_content(f"{shard}/{files[ending]}").decode("utf-8-sig")
            if ending == "json":
                values = json.loads(text)
                found = [values.get(key) for key in _CLASS_KEYS if isinstance(values, dict)]
                text = next((str(value) for value in found if value is not None), "")
            if text.strip() and (problem := label_problem(text.strip())):
                raise ValueError(problem)
        except (ValueError, RecursionError, BrokenImageError) as error:
            reason = "not UTF-8" if isinstance(error, UnicodeError) else str(error)
            where = f"{printable(shard)}, {printable(files[ending])!r}"
            raise InputError(f"{where}: no class ({reason}); write a name or number") from error
        if text.strip():
            return text.strip()
    return None
