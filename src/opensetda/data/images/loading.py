"""Images from folders (one folder per class, or flat), lists, manifests and tar shards.

Problems are found here, before anything is trained, and reported in one line. Target labels are
dropped here: `read_image_domains` never returns them, whatever the folders are called. Only
`read_image_truth`, for evaluation, reads them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.images import lists, tar_shards
from opensetda.data.images.decoding import IMAGE_SUFFIXES, is_member
from opensetda.data.images.lists import Entry, ImageColumns
from opensetda.data.images.tar_shards import ShardWalk, is_shard
from opensetda.data.names import label_problem, printable, shown
from opensetda.data.reading import check_path, no_such, unreadable
from opensetda.data.tables.formats import SUFFIXES as TABLE_SUFFIXES
from opensetda.data.tables.formats import listing
from opensetda.data.tables.loading import TruthTable, count_classes
from opensetda.data.tables.mapped import fixed_width
from opensetda.data.tables.parquet_parts import is_parts_folder
from opensetda.errors import InputError

Labels = npt.NDArray[np.str_]
FolderItem = tuple[str, bool, bool]
"""Name, whether it is a folder, whether it is a link."""

_SUFFIXES = ", ".join(sorted(IMAGE_SUFFIXES))

# Files of operating systems; names that begin with a dot are left out anyway.
_LITTER = frozenset({"thumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin"})

# Most links on the way to a file: folders that link to each other would be walked in every order.
_MOST_LINKS = 3


@dataclass(frozen=True)
class ImageList:
    """Images of one domain.

    `paths` are the files, in a tar shard ``shard.tar/image.jpg``. `ids` are unique names: the path
    relative to the given folder, or to the folder of the given shards, with "/"; in lists and
    manifests the path as written, or the column "id". `labels` are None for everything but a
    source. `notes` tell of class folders without images and of files left out, one line each.
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
    assert labelled.labels is not None
    classes = np.unique(labelled.labels)
    if len(classes) < 2:
        problem = f"{_shown(labelled.origin)}: one class only ({str(classes[0])!r})"
        raise InputError(f"{problem}; give labelled images of at least two classes")
    return labelled, read_images(target, columns)


def read_images(
    path: str | Path, columns: ImageColumns | None = None, labelled: bool = False
) -> ImageList:
    """Find the images of one domain; with `labelled`, all of them must have a class."""
    path, columns = Path(path), columns or ImageColumns()
    entries, walk = _checked_entries(path, columns, labelled)
    missing = [entry for entry in entries if not entry.there]
    if missing:
        first = missing[0]
        start = columns.root or "the folder of the list or the one above"
        problem = f"no such file {first.id!r} ({len(missing)} of {len(entries)} are missing)"
        raise InputError(f"{_shown(path)}, {first.place}: {problem}; paths start from {start}")
    labels = _labels(path, entries, walk) if labelled else None
    notes = walk.notes(None if labels is None else np.unique(labels).tolist())
    ids = fixed_width([entry.id for entry in entries], path, "id")
    return ImageList(tuple(entry.path for entry in entries), ids, labels, path, notes)


def read_image_truth(path: str | Path, columns: ImageColumns | None = None) -> TruthTable:
    """Read the classes of images for evaluation; some may have none.

    The files of a list need not exist.
    """
    path = Path(path)
    entries, walk = _checked_entries(path, columns or ImageColumns(), labelled=True)
    ids = fixed_width([entry.id for entry in entries], path, "id")
    _labels(path, [entry for entry in entries if entry.label] or entries, walk)
    labels = fixed_width([entry.label or "" for entry in entries], path, "class")
    return TruthTable(labels, ids, path)


def iterate_images(
    paths: Sequence[str | Path], columns: ImageColumns | None = None
) -> Iterator[tuple[str, str]]:
    """Yield (id, path) of images one by one: files, folders, lists and manifests, in this order.

    Memory holds the names of one folder or tar shard at a time. Of several paths, ids of images in
    folders and shards begin with the path as given. Missing files of a list are yielded, too.
    """
    columns = columns or ImageColumns()
    several = len(paths) > 1
    for given in map(Path, paths):
        walk, found = FolderWalk(), False
        is_folder = not tar_shards.is_pattern(given) and given.is_dir()
        prefix = f"{printable(given.as_posix())}/" if several and is_folder else ""
        for entry in _entries(given, columns, False, walk):
            found = True
            in_shard = several and not is_folder and walk.shards.n_shards
            yield printable(entry.path) if in_shard else prefix + entry.id, entry.path
        if not found:
            raise _no_image(given, walk)


def _entries(
    path: Path, columns: ImageColumns, labelled: bool, walk: FolderWalk
) -> Iterator[Entry]:
    suffix = path.suffix.lower()
    itself = Entry(printable(path.as_posix()), str(path), None)
    if tar_shards.is_pattern(path):
        tar_shards.refuse_url(path)
        yield from walk.shards.images(tar_shards.find_shards(path), labelled)
        return
    check_path(path)
    if path.is_dir():
        yield from walk.folder(path, labelled)
    elif not path.exists():
        tar_shards.refuse_url(path)
        if suffix in IMAGE_SUFFIXES and is_member(str(path)):
            yield itself
            return
        raise no_such(path, lambda name: not name.startswith("."))
    elif suffix in IMAGE_SUFFIXES:
        yield itself
    elif suffix in lists.LIST_SUFFIXES:
        yield from lists.list_entries(path, columns)
    elif suffix in lists.MANIFEST_SUFFIXES:
        yield from lists.manifest_entries(path, columns, labelled)
    elif is_shard(path.name):
        yield from walk.shards.images([str(path)], labelled)
    else:
        raise InputError(
            f"{_shown(path)}: neither a folder nor an image ({_SUFFIXES}), a list "
            "(.txt), a manifest (.csv, .parquet) or a tar shard (.tar); convert it or give another"
        )


def _checked_entries(
    path: Path, columns: ImageColumns, labelled: bool
) -> tuple[list[Entry], FolderWalk]:
    """Return at least one image, all with unique names."""
    walk = FolderWalk()
    entries: list[Entry] = []
    ids: dict[str, str] = {}
    files: dict[str, str] = {}
    for entry in _entries(path, columns, labelled, walk):
        entries.append(entry)
        # "a.jpg" and "./a.jpg" are one file; the id of one file may be the name of another.
        file = os.path.normpath(entry.path) if entry.place else entry.path
        earlier = ids.get(entry.id, files.get(file))
        if earlier is not None:
            places = f", {earlier} and {entry.place}" if entry.place else ""
            raise InputError(f"{_shown(path)}{places}: {entry.id!r} is there twice; remove one")
        ids[entry.id] = entry.place
        if entry.place:
            files[file] = entry.place
    if not entries:
        raise _no_image(path, walk)
    return entries, walk


def _labels(path: Path, entries: list[Entry], walk: FolderWalk) -> Labels:
    without = [entry for entry in entries if not entry.label]
    if not without:
        labels = [str(entry.label) for entry in entries]
        problems = {label: why for label in {*labels} if (why := label_problem(label))}
        if problems:
            entry = next(entry for entry in entries if entry.label in problems)
            what = f"class of {entry.place or shown(entry.id)}: {problems[str(entry.label)]}"
            raise InputError(f"{_shown(path)}, {what}; rename it")
        return fixed_width(labels, path, "class")
    first, place = without[0], ""
    if walk.shards.n_shards:
        file = first.id.rpartition("/")[2].partition(".")[0] + ".cls"
        problem = f"no class for {first.id!r} ({len(without):,} of {len(entries):,} without)"
        advice = f"write it to {file!r} beside the image"
    elif path.is_dir():
        count = "an image" if len(without) == 1 else f"{len(without):,} images"
        problem = f"{count} directly in the folder, without a class (for example {first.id!r})"
        advice = "put each image into a folder named after its class"
        advice += " (of two folders, the labelled one comes first)"
    elif not first.place:
        problem, advice = "one image has no class", "give a folder per class"
    else:
        place = f", {first.place}"
        problem = f"no label for {first.id!r} ({len(without)} without)"
        advice = "write the class after the path"
    raise InputError(f"{_shown(path)}{place}: {problem}; {advice}")


def _no_image(path: Path, walk: FolderWalk) -> InputError:
    if not path.is_dir() and not walk.shards.n_shards:
        return InputError(f"{_shown(path)}: no image in this file; write one path per line or row")
    place = "this folder or below" + (f"; {walk.other_files()}" if walk.left_out else "")
    convert = "; convert other pictures first" if walk.left_out else ""
    if walk.shards.n_shards:
        place = "this shard" if walk.shards.n_shards == 1 else "these shards"
    return InputError(f"{_shown(path)}: no image in {place}; images end in {_SUFFIXES}{convert}")


def _shown(path: Path) -> str:
    return printable(str(path))


@dataclass
class FolderWalk:
    """A walk through a folder, and a record of what it found.

    `left_out` counts other files by ending; `wrapper` holds the class folders if the root does not.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    classes: tuple[str, ...] = ()
    wrapper: str | None = None
    shards: ShardWalk = field(default_factory=ShardWalk)

    def folder(self, root: Path, labelled: bool = False) -> Iterator[Entry]:
        """Yield the images below a folder, folder by folder, each sorted by name.

        Or those of its tar shards, with classes if `labelled`, if it holds nothing else to read.
        """
        found = scan_folder(root)
        if not any(is_folder or _is_image(name) for name, is_folder, _ in found):
            shards = [f"{root}{os.sep}{name}" for name, _, _ in found if is_shard(name)]
            if shards:
                self.left_out.update(_suffix_of(name) for name, _, _ in found if not is_shard(name))
                yield from self.shards.images(shards, labelled)
                return
        wrapper, self.classes = _class_level(root, found)
        self.wrapper = None if wrapper is None else printable(str(root / wrapper))
        depth = 0 if wrapper is None else 1
        for parts, path in self._files(str(root), (), (_identity(str(root)),), 0):
            label = printable(parts[depth]) if len(parts) > depth + 1 else None
            yield Entry(printable("/".join(parts)), path, label)

    def _files(
        self, folder: str, parts: tuple[str, ...], above: tuple[tuple[int, int], ...], links: int
    ) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield images as (parts of the relative path, path); `above` are the parent folders."""
        for name, is_folder, is_link in scan_folder(folder):
            path = f"{folder}{os.sep}{name}"
            if not is_folder:
                if _is_image(name):
                    yield (*parts, name), path
                else:
                    self.left_out[_suffix_of(name)] += 1
                continue
            identity = _identity(path)
            if identity not in above and links + is_link <= _MOST_LINKS:
                above_it = (*above, identity)
                yield from self._files(path, (*parts, name), above_it, links + is_link)

    def notes(self, classes: Iterable[str] | None) -> tuple[str, ...]:
        """Return one line per thing to know; `classes` are those of the images, if they count."""
        notes = []
        if self.wrapper is not None and classes is not None:
            notes.append(f"classes are the folders below {self.wrapper}")
        empty = [] if classes is None else sorted({*self.classes} - {*classes})
        if empty:
            notes.append(f"class folders without an image, left out: {listing(empty)}")
        if self.left_out:
            notes.append(self.other_files())
        return (*notes, *self.shards.notes())

    def other_files(self) -> str:
        """Return a line about files that are not images."""
        suffixes = [suffix or "no ending" for suffix, _ in self.left_out.most_common(5)]
        n = self.left_out.total()
        files = "1 file that is not an image" if n == 1 else f"{n:,} files that are not images"
        return f"{files} left out ({', '.join(map(printable, suffixes))})"


def _class_level(root: Path, found: list[FolderItem]) -> tuple[str | None, tuple[str, ...]]:
    """Return the folder between the root and its class folders, and the names of these.

    Usually None. Office-31 as published has one, ``amazon/images/back_pack``: the root holds one
    folder and no image, and that folder holds folders.
    """
    folders = [name for name, is_folder, _ in found if is_folder]
    if len(folders) == 1 and not any(_is_image(name) for name, is_dir, _ in found if not is_dir):
        inner = [name for name, is_folder, _ in scan_folder(root / folders[0]) if is_folder]
        if inner:
            return folders[0], tuple(map(printable, inner))
    return None, tuple(map(printable, folders))


def _is_image(name: str) -> bool:
    return _suffix_of(name) in IMAGE_SUFFIXES


def _suffix_of(name: str) -> str:
    """Return the ending of a name in lower case; much faster than Path.suffix."""
    return os.path.splitext(name)[1].lower()  # noqa: PTH122


def scan_folder(folder: str | Path) -> list[FolderItem]:
    """Return (name, is a folder, is a link) of what a folder holds, sorted by name."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith(".") or name.lower() in _LITTER:
                    continue
                is_link = entry.is_symlink()
                is_folder = os.path.isdir(entry.path) if is_link else entry.is_dir()  # noqa: PTH112
                # Not pipes and sockets, which would block a reader. A broken link counts as a
                # file: opening it gives the error.
                is_broken = is_link and not os.path.exists(entry.path)  # noqa: PTH110
                if is_folder or is_broken or entry.is_file():
                    found.append((name, is_folder, is_link))
    except OSError as error:
        raise unreadable(folder, error) from error
    return sorted(found)


def _identity(folder: str) -> tuple[int, int]:
    try:
        status = os.stat(folder)  # noqa: PTH116
    except OSError as error:
        raise unreadable(folder, error) from error
    return status.st_dev, status.st_ino
