"""Images in folders: which files count, and which folder is the class."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from opensetda.data.images.decoding import IMAGE_SUFFIXES
from opensetda.data.images.lists import Entry, cannot_read, printable
from opensetda.data.images.tar_shards import ShardWalk, is_shard
from opensetda.data.tables.formats import listing

# Files of operating systems; names that begin with a dot are left out anyway.
_LITTER = frozenset({"thumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin"})

# Folders that link to each other would be walked in every order; allow no more links than
# this on the way to a file.
_MOST_LINKS = 3


@dataclass
class FolderWalk:
    """A walk through a folder, and a record of what it found.

    Attributes
    ----------
    left_out : Counter
        Number of files that are not images, by ending.
    classes : tuple of str
        Names of the class folders.
    wrapper : str or None
        The folder of the class folders, if they are not directly in the root.
    shards : ShardWalk
        The walk through tar shards, if the folder holds these.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    classes: tuple[str, ...] = ()
    wrapper: str | None = None
    shards: ShardWalk = field(default_factory=ShardWalk)

    def folder(self, root: Path, labelled: bool = False) -> Iterator[Entry]:
        """Yield the images below a folder, folder by folder, each sorted by name.

        If it holds tar shards, and neither images nor folders, their images are yielded, with
        classes if `labelled`.
        """
        found = scan_folder(str(root))
        if not any(is_folder or is_image(name) for name, is_folder, _ in found):
            shards = [name for name, _, _ in found if is_shard(name)]
            if shards:
                self.left_out.update(suffix_of(name) for name, _, _ in found if not is_shard(name))
                paths = [f"{root}{os.sep}{name}" for name in shards]
                yield from self.shards.images(paths, labelled)
                return
        wrapper, self.classes = _class_level(root, found)
        self.wrapper = None if wrapper is None else printable(str(root / wrapper))
        depth = 0 if wrapper is None else 1
        identity = _identity(str(root))
        for parts, path in self._files(str(root), (), (identity,), 0):
            label = printable(parts[depth]) if len(parts) > depth + 1 else None
            yield Entry(printable("/".join(parts)), path, label)

    def _files(
        self,
        folder: str,
        parts: tuple[str, ...],
        above: tuple[tuple[int, int], ...],
        links: int,
    ) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield images as (parts of the relative path, path); `above` are the parent folders."""
        for name, is_folder, is_link in scan_folder(folder):
            path = f"{folder}{os.sep}{name}"
            if not is_folder:
                if is_image(name):
                    yield (*parts, name), path
                else:
                    self.left_out[suffix_of(name)] += 1
                continue
            identity = _identity(path)
            if identity not in above and links + is_link <= _MOST_LINKS:
                inside = (*above, identity)
                yield from self._files(path, (*parts, name), inside, links + is_link)

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


def _class_level(
    root: Path, found: list[tuple[str, bool, bool]]
) -> tuple[str | None, tuple[str, ...]]:
    """Return the folder between the root and its class folders, and the names of these.

    Usually None. Office-31 as published has one, ``amazon/images/back_pack``: the root holds one
    folder and no image, and that folder holds folders.
    """
    folders = [name for name, is_folder, _ in found if is_folder]
    if len(folders) == 1 and not any(is_image(name) for name, is_dir, _ in found if not is_dir):
        within = scan_folder(str(root / folders[0]))
        inner = [name for name, is_folder, _ in within if is_folder]
        if inner:
            return folders[0], tuple(map(printable, inner))
    return None, tuple(map(printable, folders))


def is_image(name: str) -> bool:
    """Return whether a name ends like an image file."""
    return suffix_of(name) in IMAGE_SUFFIXES


def suffix_of(name: str) -> str:
    """Return the ending of a name in lower case; much faster than Path.suffix."""
    return os.path.splitext(name)[1].lower()  # noqa: PTH122


def scan_folder(folder: str) -> list[tuple[str, bool, bool]]:
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
                if is_folder or _is_plain_file(entry, is_link):
                    found.append((name, is_folder, is_link))
    except OSError as error:
        raise cannot_read(folder, error) from error
    return sorted(found)


def _is_plain_file(entry: os.DirEntry[str], is_link: bool) -> bool:
    """Return False for pipes and sockets, which would block a reader.

    A broken link counts as a file: opening it gives the error.
    """
    if not is_link:
        return entry.is_file()
    return os.path.isfile(entry.path) or not os.path.exists(entry.path)  # noqa: PTH110, PTH113


def _identity(folder: str) -> tuple[int, int]:
    try:
        status = os.stat(folder)  # noqa: PTH116
    except OSError as error:
        raise cannot_read(folder, error) from error
    return status.st_dev, status.st_ino
