"""Images from folders (one folder per class, or flat), lists, manifests and tar shards.

Problems are found here, before anything is trained, and reported in one line. Target labels are
dropped here: `read_image_domains` never returns them, whatever the folders are called. Only
`read_image_truth`, for evaluation, reads them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.images import lists
from opensetda.data.images.decoding import IMAGE_SUFFIXES, is_member
from opensetda.data.images.lists import Entry, ImageColumns, is_shard
from opensetda.data.names import label_problem, printable, shown
from opensetda.data.reading import check_path, no_such, unreadable
from opensetda.data.tables.formats import SUFFIXES as TABLE_SUFFIXES
from opensetda.data.tables.formats import is_parts_folder
from opensetda.data.tables.loading import TruthTable, count_classes
from opensetda.data.tables.mapped import fixed_width
from opensetda.errors import InputError

Labels = npt.NDArray[np.str_]

_SUFFIXES = ", ".join(sorted(IMAGE_SUFFIXES))
# Files of operating systems; names that begin with a dot are left out anyway.
_LITTER = frozenset({"thumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin"})


@dataclass(frozen=True)
class ImageList:
    """Images of one domain.

    `paths` are the files, in a tar shard ``shard.tar/image.jpg``. `ids` are unique names: the path
    relative to the given folder, or to the folder of the given shards, with "/"; in lists and
    manifests the path as written, or the column "id". `labels` are None for everything but a
    source. `notes` tell of files left out, one line each.
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

    def select(self, rows: npt.ArrayLike) -> ImageList:
        """Return some of the images, by row numbers or a mask."""
        chosen: npt.NDArray[Any] = np.asarray(rows)
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.intp)
        labels = None if self.labels is None else self.labels[chosen]
        paths = tuple(self.paths[row] for row in chosen.tolist())
        return replace(self, paths=paths, ids=self.ids[chosen], labels=labels)


def is_image_data(path: str | Path, columns: ImageColumns | None = None) -> bool:
    """Return whether a path leads to images and not to a feature table."""
    path, columns = Path(path), columns or ImageColumns()
    suffix = path.suffix.lower()
    if is_shard(path.name):
        return True
    check_path(path)
    if is_parts_folder(path):
        return False
    if path.is_dir() or suffix in IMAGE_SUFFIXES or suffix in lists.LIST_SUFFIXES:
        return True
    if suffix in lists.MANIFEST_SUFFIXES:
        return path.is_file() and lists.is_manifest(path, columns)
    # A misspelt folder: its reader reports that it does not exist.
    return suffix not in TABLE_SUFFIXES and not path.exists()


def two_kinds(images: Path, other: Path) -> InputError:
    """Return the error for two domains of which one is images and the other not."""
    for path in (images, other):
        if not path.exists() and not is_shard(path.name):
            return no_such(path, lambda name: True)
    is_table = other.is_dir() or other.suffix.lower() in TABLE_SUFFIXES
    kind = (
        "a feature table" if is_table else f"neither that nor a table ({', '.join(TABLE_SUFFIXES)})"
    )
    return InputError(
        f"{images} holds images, but {other} is {kind}; both must be of one kind "
        "('osda features' makes tables of images)"
    )


def read_image_domains(
    source: str | Path, target: str | Path, columns: ImageColumns | None = None
) -> tuple[ImageList, ImageList]:
    """Find labelled images of at least two classes, and images to be labelled, without labels."""
    labelled = read_images(source, columns, labelled=True)
    classes = list(labelled.class_counts())
    if len(classes) < 2:
        problem = f"{_shown(labelled.origin)}: one class only ({classes[0]!r})"
        raise InputError(f"{problem}; give labelled images of at least two classes")
    return labelled, read_images(target, columns)


def read_images(
    path: str | Path, columns: ImageColumns | None = None, labelled: bool = False
) -> ImageList:
    """Find the images of one domain; with `labelled`, all of them must have a class."""
    path, columns, left_out = Path(path), columns or ImageColumns(), Counter[str]()
    entries = _checked_entries(path, columns, labelled, left_out)
    missing = [entry for entry in entries if not entry.there]
    if missing:
        first = missing[0]
        start = columns.root or "the folder of the list or the one above"
        problem = f"no such file {first.id!r} ({len(missing)} of {len(entries)} are missing)"
        raise InputError(f"{_shown(path)}, {first.place}: {problem}; paths start from {start}")
    labels = _labels(path, entries) if labelled else None
    ids = fixed_width([entry.id for entry in entries], path, "id")
    return ImageList(tuple(entry.path for entry in entries), ids, labels, path, _notes(left_out))


def read_image_truth(path: str | Path, columns: ImageColumns | None = None) -> TruthTable:
    """Read the classes of images for evaluation; some may have none.

    The files of a list need not exist.
    """
    path = Path(path)
    entries = _checked_entries(path, columns or ImageColumns(), True, Counter())
    _labels(path, [entry for entry in entries if entry.label] or entries)
    labels = fixed_width([entry.label or "" for entry in entries], path, "class")
    return TruthTable(labels, fixed_width([entry.id for entry in entries], path, "id"), path)


def iterate_images(
    paths: Sequence[str | Path], columns: ImageColumns | None = None
) -> Iterator[tuple[str, str]]:
    """Yield (id, path) of images one by one: files, folders, lists and manifests, in this order.

    Memory holds the names of one folder or tar shard at a time. Of several paths, ids of images in
    folders and shards begin with the path as given. Missing files of a list are yielded, too.
    """
    for given in map(Path, paths):
        left_out, found = Counter[str](), False
        for entry in _entries(given, columns or ImageColumns(), False, left_out):
            found = True
            is_own = len(paths) == 1 or entry.place
            yield entry.id if is_own else printable(Path(entry.path).as_posix()), entry.path
        if not found:
            raise _no_image(given, left_out)


def _notes(left_out: Counter[str]) -> tuple[str, ...]:
    """Return a line about what was left out, if anything was."""
    parts = [f"{n:,} x {what}" for what, n in left_out.most_common(9) if n]
    return (printable(f"left out: {', '.join(parts)}"),) if parts else ()


def _entries(
    path: Path, columns: ImageColumns, labelled: bool, left_out: Counter[str]
) -> Iterator[Entry]:
    suffix = path.suffix.lower()
    if lists.is_pattern(path):
        lists.refuse_url(path)
        pattern = str(path)
        folder = os.path.dirname(pattern.partition("{")[0])  # noqa: PTH120
        yield from lists.shard_entries(lists.expand(pattern), folder, labelled, left_out)
        return
    check_path(path)
    if path.is_dir():
        yield from _folder_entries(str(path), labelled, left_out)
    elif suffix in IMAGE_SUFFIXES and (path.exists() or is_member(str(path))):
        yield Entry(printable(path.as_posix()), str(path), None)
    elif not path.exists():
        lists.refuse_url(path)
        raise no_such(path, lambda name: not name.startswith("."))
    elif suffix in lists.LIST_SUFFIXES:
        yield from lists.list_entries(path, columns)
    elif suffix in lists.MANIFEST_SUFFIXES:
        yield from lists.manifest_entries(path, columns, labelled)
    elif is_shard(path.name):
        yield from lists.shard_entries([str(path)], str(path.parent), labelled, left_out)
    else:
        raise InputError(
            f"{_shown(path)}: neither a folder nor an image ({_SUFFIXES}), a list "
            "(.txt), a manifest (.csv, .parquet) or a tar shard (.tar); convert it or give another"
        )


def _folder_entries(root: str, labelled: bool, left_out: Counter[str]) -> Iterator[Entry]:
    """Yield the images of a folder and all below it, or of the tar shards in it.

    The folder of an image below the root is its class. Office-31 as published has one folder
    between, ``amazon/images/back_pack``: the root holds one folder and no image, and that folder
    holds folders.
    """
    depth = 0
    for place, folders, files in _walk(root):
        parts = Path(place).relative_to(root).parts
        images = [name for name in files if _suffix(name) in IMAGE_SUFFIXES]
        if not parts and not images:
            shards = [os.path.join(root, name) for name in files if is_shard(name)]  # noqa: PTH118
            if shards and not folders:
                yield from lists.shard_entries(shards, root, labelled, left_out)
                files = [name for name in files if not is_shard(name)]
            if len(folders) == 1:
                inside = next(os.walk(os.path.join(root, folders[0])), ("", [], []))[1]  # noqa: PTH118
                depth = int(any(not name.startswith(".") for name in inside))
        others = [_suffix(n) or "no ending" for n in files if _suffix(n) not in IMAGE_SUFFIXES]
        left_out.update(f"file that is not an image ({suffix})" for suffix in others)
        label = printable(parts[depth]) if len(parts) > depth else None
        for name in images:
            path = os.path.join(place, name)  # noqa: PTH118
            yield Entry(printable("/".join((*parts, name))), path, label)


def _walk(root: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (folder, folders in it, files in it) as `os.walk` does, sorted and without litter.

    Links are followed, but not to a folder above, and to each folder once.
    """

    def fail(error: OSError) -> None:
        raise unreadable(error.filename, error) from error

    linked: set[str] = set()
    for place, folders, files in os.walk(root, onerror=fail, followlinks=True):
        for names in (folders, files):
            kept = [n for n in names if not n.startswith(".") and n.lower() not in _LITTER]
            names[:] = sorted(kept)
        for name in [n for n in folders if os.path.islink(os.path.join(place, n))]:  # noqa: PTH114, PTH118
            real = os.path.realpath(os.path.join(place, name))  # noqa: PTH118
            if real in linked or f"{os.path.realpath(place)}/".startswith(f"{real}/"):
                folders.remove(name)
            linked.add(real)
        yield place, folders, files


def _checked_entries(
    path: Path, columns: ImageColumns, labelled: bool, left_out: Counter[str]
) -> list[Entry]:
    """Return at least one image, all with unique names."""
    entries: list[Entry] = []
    seen: dict[tuple[str, str], str] = {}
    for entry in _entries(path, columns, labelled, left_out):
        entries.append(entry)
        # "a.jpg" and "./a.jpg" are one file; the id of one file may be the name of another.
        for key in (("id", entry.id), ("file", os.path.normpath(entry.path))):
            if key in seen:
                places = f", {seen[key]} and {entry.place}" if entry.place else ""
                raise InputError(f"{_shown(path)}{places}: {entry.id!r} is there twice; remove one")
            seen[key] = entry.place
    if not entries:
        raise _no_image(path, left_out)
    return entries


def _labels(path: Path, entries: list[Entry]) -> Labels:
    without = [entry for entry in entries if not entry.label]
    if without:
        first = without[0]
        place = f", {first.place}" if first.place else ""
        what = "one image" if len(without) == 1 else f"{len(without):,} images"
        problem = f"{what} without a class (for example {first.id!r})"
        advice = "give a folder per class"
        if place:
            advice = "write the class after the path"
        elif ".tar/" in first.path.lower():
            file = first.id.rpartition("/")[2].partition(".")[0] + ".cls"
            advice = f"write it to {file!r} beside the image"
        elif path.is_dir():
            problem = problem.replace("without", "directly in the folder, without")
            advice = "put each image into a folder named after its class"
            advice += " (of two folders, the labelled one comes first)"
        raise InputError(f"{_shown(path)}{place}: {problem}; {advice}")
    labels = [str(entry.label) for entry in entries]
    problems = {label: why for label in {*labels} if (why := label_problem(label))}
    if problems:
        entry = next(entry for entry in entries if entry.label in problems)
        what = f"class of {entry.place or shown(entry.id)}: {problems[str(entry.label)]}"
        raise InputError(f"{_shown(path)}, {what}; rename it")
    return fixed_width(labels, path, "class")


def _no_image(path: Path, left_out: Counter[str]) -> InputError:
    if path.suffix.lower() in (*lists.LIST_SUFFIXES, *lists.MANIFEST_SUFFIXES):
        return InputError(f"{_shown(path)}: no image in this file; write one path per line or row")
    place = "this folder or below" if path.is_dir() else "this shard"
    notes = "".join(f"; {note}" for note in _notes(left_out))
    return InputError(f"{_shown(path)}: no image in {place}{notes}; images end in {_SUFFIXES}")


def _suffix(name: str) -> str:
    """Return the ending of a name in lower case; much faster than Path.suffix."""
    return os.path.splitext(name)[1].lower()  # noqa: PTH122


def _shown(path: Path) -> str:
    return printable(str(path))
