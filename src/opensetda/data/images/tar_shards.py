"""Images in WebDataset's tar shards: shards, samples and classes.

The files of a sample share a key, the path up to the first dot of the file's name:
``a/0001.jpg`` and ``a/0001.cls``. Classes are read for a source only.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from opensetda.data.images import decoding
from opensetda.data.images.decoding import Archive, Member, TarError, clean_name
from opensetda.data.images.lists import Entry
from opensetda.data.names import label_problem, printable
from opensetda.data.reading import unreadable
from opensetda.errors import InputError
from opensetda.system.files import open_regular

# Compressed ones are recognised so as to be refused with a clear message.
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")

# Files that may hold the class, the first one counts.
_CLASS_ENDINGS = ("cls", "json", "txt")
_CLASS_KEYS = ("label", "class", "cls")
_LARGEST_CLASS_FILE = 1 << 20
_BRACES = re.compile(r"(\{[^{}]*\})")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
_MOST_SHARDS = 100_000
_URL = re.compile(r"pipe:.*|[a-z][a-z0-9+.-]+:")


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
    # Text and braces take turns.
    parts = enumerate(_BRACES.split(pattern))
    choices = [_choices(part) if place % 2 else [part] for place, part in parts]
    if math.prod(map(len, choices)) > _MOST_SHARDS:
        raise InputError(f"{printable(pattern)}: more than {_MOST_SHARDS:,} shards; give fewer")
    return ["".join(parts) for parts in itertools.product(*choices)]


def find_shards(path: Path) -> list[str]:
    """Return the shards of a pattern; all must exist."""
    shards = expand(str(path))
    missing = [shard for shard in shards if not os.path.isfile(shard)]  # noqa: PTH113
    if missing:
        count = f"{len(missing):,} of {len(shards):,} are missing"
        problem = f"{path}: no such shard {missing[0]} ({count}); give the numbers that are there"
        raise InputError(printable(problem))
    return shards


@dataclass
class ShardWalk:
    """A walk through shards, and a record of what it left out.

    `left_out` counts files by reason, `first` has an example of each.
    """

    n_shards: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def images(self, shards: Sequence[str], labelled: bool) -> Iterator[Entry]:
        """Yield the images of shards, shard by shard; classes only if `labelled`."""
        self.n_shards += len(shards)
        try:
            folder = os.path.commonpath([os.path.dirname(shard) for shard in shards])  # noqa: PTH120
        except ValueError:  # some are absolute paths, some are not
            folder = ""
        for shard in shards:
            # As if the shard were a folder; "a/0.tar" and "b/0.tar" get different names.
            name = printable(Path(shard[len(folder) :].lstrip(os.sep)).as_posix())
            for member, label in self._shard(shard, labelled):
                yield Entry(f"{name}/{printable(member)}", f"{shard}/{member}", label)

    def _shard(self, shard: str, labelled: bool) -> list[tuple[str, str | None]]:
        shown = printable(shard)
        try:
            with open_regular(shard) as stream:
                archive = decoding.archive_of(shard, stream)
                found = []
                for key, sample in self._samples(shown, archive).items():
                    image = self._image(shown, key, sample)
                    if image is not None:
                        label = _class_of(shown, stream, sample) if labelled else None
                        found.append((image, label))
                return found
        except decoding.CompressedTarError as error:
            raise InputError(f"{shown}: {error}; unpack it to a .tar") from error
        except TarError as error:
            raise InputError(f"{shown}: {error}; write it again") from error
        except OSError as error:
            raise unreadable(shard, error) from error

    def _samples(self, shown: str, archive: Archive) -> dict[str, _Sample]:
        """Return the samples of a shard by their keys."""
        samples: dict[str, _Sample] = {}
        seen: set[str] = set()
        for member in archive.members:
            name = clean_name(member.name)
            if name is None:
                self._leave_out("file whose name leads out of the shard", shown, member.name)
                continue
            folder, _, base = name.rpartition("/")
            # Files that macOS adds: "._0001.jpg", "__MACOSX/0001.jpg".
            if any(part.startswith((".", "__MACOSX")) for part in name.split("/")):
                continue
            if not member.is_plain:
                self._leave_out("link, device or sparse file", shown, name)
                continue
            key, dot, ending = base.partition(".")
            if not dot:
                continue
            if name in seen:
                raise InputError(f"{shown}: {printable(name)!r} is there twice; remove one")
            seen.add(name)
            sample = samples.setdefault(f"{folder}/{key}".lstrip("/"), _Sample())
            ending = ending.lower()
            if f".{ending.rpartition('.')[2]}" in decoding.IMAGE_SUFFIXES:
                sample.images[name] = ending
            elif ending in _CLASS_ENDINGS:
                sample.classes[ending] = member
        return samples

    def _image(self, shown: str, key: str, sample: _Sample) -> str | None:
        """Return the image of a sample: of several the one without a second dot."""
        if len(sample.images) < 2:
            if not sample.images:
                self._leave_out("sample without an image", shown, key)
            return next(iter(sample.images), None)
        plain = [name for name, ending in sample.images.items() if "." not in ending]
        if len(plain) != 1:
            first, second, *_ = plain or sample.images
            raise InputError(
                f"{shown}: {printable(first)!r} and {printable(second)!r} are images of one "
                "sample, as its name ends at the first dot; rename or remove one"
            )
        for other in sample.images:
            if other != plain[0]:
                self._leave_out("further image of a sample", shown, other)
        return plain[0]

    def _leave_out(self, what: str, shown: str, name: str) -> None:
        self.left_out[what] += 1
        # Quoted: a name may hold control characters of a terminal.
        self.first.setdefault(what, repr(f"{shown}/{printable(name)}"))

    def notes(self) -> list[str]:
        """Return one line per kind of file that was left out."""
        return [
            f"left out of the shards: {what}, {n:,} in all, such as {self.first[what]}"
            for what, n in self.left_out.items()
        ]


@dataclass(slots=True)
class _Sample:
    """The files of one key: endings of images by name, and files that may hold the class."""

    images: dict[str, str] = field(default_factory=dict)
    classes: dict[str, Member] = field(default_factory=dict)


def _class_of(shown: str, stream: IO[bytes], sample: _Sample) -> str | None:
    """Return the class of a sample; None if it has none."""
    for ending in _CLASS_ENDINGS:
        member = sample.classes.get(ending)
        if member is None:
            continue
        try:
            if member.size > _LARGEST_CLASS_FILE:
                raise ValueError(f"{member.size:,} bytes")
            text = decoding.read_member(stream, member).decode("utf-8-sig")
            label = _class_in_json(text) if ending == "json" else text.strip()
            if label and (problem := label_problem(label)):
                raise ValueError(problem)
        except (ValueError, RecursionError, TarError) as error:
            reason = "not UTF-8" if isinstance(error, UnicodeError) else str(error)
            raise InputError(
                f"{shown}, {printable(member.name)!r}: no class ({reason}); write a name or number"
            ) from error
        if label:
            return label
    return None


def _class_in_json(text: str) -> str | None:
    values = json.loads(text)
    if not isinstance(values, dict):
        return None
    for key in _CLASS_KEYS:
        value = values.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value).strip()
        if value is not None:
            raise ValueError(f"{key!r} is neither text nor a whole number")
    return None


def _choices(braces: str) -> Sequence[str]:
    """Return what a part of a pattern stands for, cut off above the largest number of shards."""
    inside = braces[1:-1]
    if "," in inside:
        return inside.split(",")
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        return [braces]
    first, last = int(numbers[1]), int(numbers[2])
    zeros = any(text.startswith("0") and len(text) > 1 for text in numbers.groups())
    width = max(map(len, numbers.groups())) if zeros else 1
    step = 1 if first <= last else -1
    some = range(first, last + step, step)[: _MOST_SHARDS + 1]
    return [f"{number:0{width}}" for number in some]
