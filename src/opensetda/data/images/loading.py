"""Images from folders (one folder per class, or flat), lists, manifests and tar shards.

Problems are found here, before anything is trained, and reported in one line. Target labels are
dropped here: `read_image_domains` never returns them, whatever the folders are called. Only
`read_image_truth`, for evaluation, reads them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.images.decoding import IMAGE_SUFFIXES
from opensetda.data.images.folders import FolderWalk, scan_folder
from opensetda.data.images.lists import (
    LIST_SUFFIXES,
    MANIFEST_SUFFIXES,
    Entry,
    ImageColumns,
    is_manifest,
    list_entries,
    manifest_entries,
    printable,
)
from opensetda.data.images.tar_members import member_status
from opensetda.data.images.tar_shards import find_shards, is_pattern, is_shard, refuse_url
from opensetda.data.tables.formats import SUFFIXES as TABLE_SUFFIXES
from opensetda.data.tables.loading import TruthTable
from opensetda.data.tables.parquet_parts import is_parts_folder
from opensetda.errors import InputError

__all__ = [
    "ImageColumns",
    "ImageList",
    "is_image_data",
    "iterate_images",
    "read_image_domains",
    "read_image_truth",
    "read_images",
]

Labels = npt.NDArray[np.str_]


@dataclass(frozen=True)
class ImageList:
    """Images of one domain.

    Attributes
    ----------
    paths : tuple of str
        The files; in a tar shard ``shard.tar/image.jpg``.
    ids : array of str of shape (n,)
        Unique names: the path relative to the given folder, with "/"; in lists and manifests
        the path as written, or the manifest's column "id"; for tar shards given directly, the
        path relative to the folder of the shards.
    labels : array of str of shape (n,) or None
        Classes; None for everything but a source.
    origin : Path
        The folder or file that was given.
    notes : tuple of str
        Class folders without images, files left out, one line each.
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
        if self.labels is None:
            return {}
        names, counts = np.unique(self.labels, return_counts=True)
        return dict(zip(names.tolist(), counts.tolist(), strict=True))

    def select(self, rows: npt.ArrayLike) -> ImageList:
        """Return some of the images, by row numbers or a mask."""
        chosen: npt.NDArray[Any] = np.asarray(rows)
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.intp)
        labels = None if self.labels is None else self.labels[chosen]
        paths = tuple(self.paths[row] for row in chosen.tolist())
        return replace(self, paths=paths, ids=self.ids[chosen], labels=labels)


def is_image_data(path: str | Path, columns: ImageColumns | None = None) -> bool:
    """Return whether a path leads to images and not to a feature table.

    Images are folders, image files, tar shards, ``.txt`` lists, and ``.csv`` or ``.parquet``
    files with a column of paths and at most a label and an id besides.
    """
    path, columns = Path(path), columns or ImageColumns()
    suffix = path.suffix.lower()
    if is_shard(path.name):
        return True
    if is_parts_folder(path):
        return False
    if path.is_dir() or suffix in IMAGE_SUFFIXES or suffix in LIST_SUFFIXES:
        return True
    if suffix in MANIFEST_SUFFIXES:
        return path.is_file() and is_manifest(path, columns)
    # A misspelt folder: its reader reports that it does not exist.
    return suffix not in TABLE_SUFFIXES and not path.exists()


def read_image_domains(
    source: str | Path, target: str | Path, columns: ImageColumns | None = None
) -> tuple[ImageList, ImageList]:
    """Find labelled images of at least two classes, and images to be labelled.

    Labels of the target are not returned.
    """
    labelled = read_images(source, columns, labelled=True)
    assert labelled.labels is not None
    classes = np.unique(labelled.labels)
    if len(classes) < 2:
        raise InputError(
            f"{_shown(labelled.origin)}: one class only ({str(classes[0])!r}); "
            "give labelled images of at least two classes"
        )
    return labelled, read_images(target, columns)


def read_images(
    path: str | Path, columns: ImageColumns | None = None, labelled: bool = False
) -> ImageList:
    """Find the images of one domain; with `labelled`, all of them must have a class."""
    path, columns = Path(path), columns or ImageColumns()
    walk = FolderWalk()
    entries = list(_entries(path, columns, labelled, walk))
    _check(path, entries, walk)
    missing = [entry for entry in entries if not entry.there]
    if missing:
        first = missing[0]
        raise InputError(
            f"{_shown(path)}, {first.place}: no such file {first.id!r} ({len(missing)} of "
            f"{len(entries)} are missing); {_where_paths_start(columns)}"
        )
    labels = _labels(path, entries, walk) if labelled else None
    return ImageList(
        paths=tuple(entry.path for entry in entries),
        ids=np.array([entry.id for entry in entries], dtype=np.str_),
        labels=labels,
        origin=path,
        notes=walk.notes(None if labels is None else np.unique(labels).tolist()),
    )


def read_image_truth(path: str | Path, columns: ImageColumns | None = None) -> TruthTable:
    """Read the classes of images for evaluation; the files of a list need not exist."""
    path = Path(path)
    walk = FolderWalk()
    entries = list(_entries(path, columns or ImageColumns(), True, walk))
    _check(path, entries, walk)
    ids = np.array([entry.id for entry in entries], dtype=np.str_)
    return TruthTable(_labels(path, entries, walk), ids, path)


def iterate_images(
    paths: Sequence[str | Path], columns: ImageColumns | None = None
) -> Iterator[tuple[str, str]]:
    """Yield (id, path) of images one by one: files, folders, lists and manifests, in this order.

    Memory holds the names of one folder or tar shard at a time. If several paths are given,
    ids of images in folders and shards begin with the path as given. Files of a list that do
    not exist are yielded, too.
    """
    columns = columns or ImageColumns()
    several = len(paths) > 1
    for given in map(Path, paths):
        walk, found = FolderWalk(), False
        is_folder = not is_pattern(given) and given.is_dir()
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
    if is_pattern(path):
        refuse_url(path)
        yield from walk.shards.images(find_shards(path), labelled)
    elif path.is_dir():
        yield from walk.folder(path, labelled)
    elif not path.exists():
        refuse_url(path)
        if suffix in IMAGE_SUFFIXES and member_status(str(path)) is not None:
            yield Entry(printable(path.as_posix()), str(path), None)
            return
        kind = "file" if suffix else "folder"
        raise InputError(f"{_shown(path)}: no such {kind}{_neighbour(path)}")
    elif suffix in IMAGE_SUFFIXES:
        yield Entry(printable(path.as_posix()), str(path), None)
    elif suffix in LIST_SUFFIXES:
        yield from list_entries(path, columns)
    elif suffix in MANIFEST_SUFFIXES:
        yield from manifest_entries(path, columns, labelled)
    elif is_shard(path.name):
        yield from walk.shards.images([str(path)], labelled)
    else:
        raise InputError(
            f"{_shown(path)}: neither a folder nor an image ({_suffixes()}), a list "
            "(.txt), a manifest (.csv, .parquet) or a tar shard (.tar); convert it or give another"
        )


def _check(path: Path, entries: list[Entry], walk: FolderWalk) -> None:
    """Raise an `InputError` unless there are images with unique names."""
    if not entries:
        raise _no_image(path, walk)
    ids: dict[str, str] = {}
    files: dict[str, str] = {}
    for entry in entries:
        # "a.jpg" and "./a.jpg" are one file; the id of one file may be the name of another.
        file = os.path.normpath(entry.path) if entry.place else entry.path
        earlier = ids.get(entry.id, files.get(file))
        if earlier is not None:
            places = f", {earlier} and {entry.place}" if entry.place else ""
            raise InputError(f"{_shown(path)}{places}: {entry.id!r} is there twice; remove one")
        ids[entry.id] = entry.place
        if entry.place:
            files[file] = entry.place


def _labels(path: Path, entries: list[Entry], walk: FolderWalk) -> Labels:
    without = [entry for entry in entries if not entry.label]
    if not without:
        return np.array([entry.label for entry in entries], dtype=np.str_)
    first = without[0]
    if walk.shards.n_shards:
        file = first.id.rpartition("/")[2].partition(".")[0] + ".cls"
        raise InputError(
            f"{_shown(path)}: no class for {first.id!r} ({len(without):,} of {len(entries):,} "
            f"without); write it to {file!r} beside the image"
        )
    if path.is_dir():
        count = "an image" if len(without) == 1 else f"{len(without):,} images"
        raise InputError(
            f"{_shown(path)}: {count} directly in the folder, without a class (for example "
            f"{first.id!r}); put each image into a folder named after its class"
        )
    if not first.place:
        raise InputError(f"{_shown(path)}: one image has no class; give a folder per class")
    raise InputError(
        f"{_shown(path)}, {first.place}: no label for {first.id!r} ({len(without)} without); "
        "write the class after the path"
    )


def _no_image(path: Path, walk: FolderWalk) -> InputError:
    if walk.shards.n_shards:
        kind = "this shard" if walk.shards.n_shards == 1 else "these shards"
        return InputError(f"{_shown(path)}: no image in {kind}; images end in {_suffixes()}")
    if not path.is_dir():
        return InputError(f"{_shown(path)}: no image in this file; write one path per line or row")
    besides = f"; {walk.other_files()}" if walk.left_out else ""
    return InputError(
        f"{_shown(path)}: no image in this folder or below{besides}; images end in {_suffixes()}"
    )


def _shown(path: Path) -> str:
    return printable(str(path))


def _suffixes() -> str:
    return ", ".join(sorted(IMAGE_SUFFIXES))


def _where_paths_start(columns: ImageColumns) -> str:
    if columns.root is not None:
        return f"paths start from {columns.root}"
    return "paths start from the folder of the list or the one above"


def _neighbour(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (nor a folder {printable(str(path.parent))})"
    names = [name for name, _, _ in scan_folder(str(path.parent))]
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {printable(str(path.parent / close[0]))}?" if close else ""
