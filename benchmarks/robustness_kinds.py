"""Every kind of file that the program reads: seeds, grammar, and the readers in process.

A case is a kind and a number: `build` puts the mutated file into a copy of the scene, and the
kind's readers read it there.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import robustness_arrays as arrays
import robustness_mutators as mutators
import robustness_readers as readers
from opensetda.errors import InputError
from opensetda.runs import manifest
from opensetda.runs.checked import sealed
from opensetda.runs.manifest import MANIFEST
from robustness_mutators import Mutation, mutate
from robustness_scene import FORMATS, copy_tree

Reader = Callable[[Path, int], None]
GRAMMARS: dict[str, tuple[Mutation, ...]] = {
    ".json": mutators.JSON, ".jsonl": mutators.JSONL, ".csv": mutators.TEXT, ".txt": mutators.LIST,
    ".parquet": arrays.PARQUET, ".npz": arrays.NPZ, ".npy": arrays.NPY, ".tar": mutators.TAR,
    ".tsv": mutators.TEXT, ".xlsx": arrays.XLSX,
    ".sqlite3": mutators.BYTES, ".safetensors": mutators.SAFETENSORS, ".png": mutators.PNG,
}  # fmt: skip
IMAGES = tuple(f".{form}" for form in FORMATS)
# Pages and pictures for people, and locks: nothing reads them.
UNREAD = (".html", "lock")


@dataclass(frozen=True)
class Kind:
    """A kind of file: `seeds` are valid ones, `place` is where a mutated one goes.

    `folder` is restored after each case. All paths are relative to the scene.
    """

    name: str
    area: str
    seeds: tuple[str, ...]
    place: str
    folder: str
    read_by: tuple[Reader, ...]

    @property
    def grammar(self) -> tuple[Mutation, ...]:
        """The mutations of its files."""
        suffix = Path(self.place).suffix
        return GRAMMARS.get(suffix, mutators.IMAGE if suffix in IMAGES else mutators.BYTES)


# Things in the place of a file -----------------------------------------------------------------


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        place = os.open(path.parent, os.O_RDONLY)
        try:
            made.bind(f"/proc/self/fd/{place}/{path.name}")  # a long path does not fit
        finally:
            os.close(place)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "missing": lambda path: None,
    "empty": lambda path: path.touch(),
    "folder": lambda path: path.mkdir(),
    "fifo": lambda path: os.mkfifo(path),
    "socket": _socket,
    "loop": lambda path: path.symlink_to(path.name),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "null": lambda path: path.symlink_to("/dev/null"),
    "tty": lambda path: path.symlink_to("/dev/ptmx"),
    "memory": lambda path: path.symlink_to("/proc/self/mem"),
    "sparse": _sparse,
}


def build(kind: Kind, number: int, pristine: Path) -> str:
    """Put the case into the current folder, a copy of `pristine`; return what was done."""
    path, rng = Path(kind.place), random.Random(f"{kind.name}:{number}")
    path.unlink(missing_ok=True)
    if number < len(SPECIAL):
        name = list(SPECIAL)[number]
        SPECIAL[name](path)
        return name
    data = (pristine / rng.choice(kind.seeds)).read_bytes()
    data, done = mutate(rng, kind.grammar, data)
    path.write_bytes(data)
    if number % 2 and reseal(path):
        done += ", resealed"
    return done


def reseal(path: Path) -> bool:
    """Make the checksums of a changed file right again, as a stranger would; False if in vain."""
    if not path.is_file():  # nor a pipe, which would block
        return False
    with suppress(InputError, OSError, ValueError, RecursionError):
        if (path.parent / MANIFEST).is_file() and path.name != MANIFEST:
            manifest.reseal(path.parent)
            return True
        content = json.loads(path.read_bytes())
        if isinstance(content, dict) and content.pop("sha256", None):
            path.write_text(json.dumps(sealed(content)))
            return True
    return False


def restore(folder: Path, pristine: Path) -> None:
    """Make a folder of the current one as it was."""
    if _state(folder) != _state(pristine / folder):
        copy_tree(pristine / folder, folder)
    if folder.suffix == ".unfinished":
        # The run that was completed, and what it moved aside.
        for made in folder.parent.glob(f"*{folder.stem}*"):
            if not (pristine / made).exists():
                shutil.rmtree(made, ignore_errors=True)


def _state(folder: Path) -> list[tuple[str, int, int]]:
    if not folder.is_dir():
        return []
    found = []
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        is_folder = path.is_dir() and not path.is_symlink()
        # Copies keep the time of a file's content; opening a lock for writing changes it.
        time = 0 if is_folder or path.name == "lock" else status.st_mtime_ns
        found.append((str(path.relative_to(folder)), 0 if is_folder else status.st_size, time))
    return found


# All kinds -------------------------------------------------------------------------------------


def kinds(scene: Path) -> dict[str, Kind]:
    """Return all kinds that the scene has files of, by name."""
    found = (kind for kind in _kinds(scene) if all((scene / seed).exists() for seed in kind.seeds))
    return {kind.name: kind for kind in found}


def _kinds(scene: Path) -> Iterator[Kind]:
    for form in ("csv", "npz", "npy", "parquet", "tsv", "feather", "jsonl", "xlsx"):
        seeds = [f"tables/{name}.{form}" for name in ("source", "target", "source-packed")]
        there = tuple(seed for seed in seeds if (scene / seed).exists())
        more = (readers.as_if_large,) if form == "parquet" else ()
        read_by = (readers.as_source, readers.as_target, readers.as_samples, *more)
        yield Kind(form, "tables", there, f"input/input.{form}", "input", read_by)
    part, told = "tables/parts/0.parquet", "tables/corrections.csv"
    yield Kind("parts", "tables", (part,), part, "tables/parts", (readers.parts,))
    read_by = (readers.corrections_file,)
    yield Kind("corrections", "review", (told,), "input/c.csv", "input", read_by)
    for name in ("list.txt", "manifest.csv", "manifest.parquet", "shard.tar"):
        place = f"images/input/input{Path(name).suffix}"
        read_by = (readers.image_domains, *((readers.members,) if name == "shard.tar" else ()))
        yield Kind(name, "images", (f"images/{name}",), place, "images/input", read_by)
    for form in FORMATS:
        files = sorted((scene / "images/formats").glob(f"*.{form}"))
        own = tuple(f"images/formats/{path.name}" for path in files)
        read_by = (readers.decoded, readers.showable)
        yield Kind(form, "images", own, f"input/input.{form}", "input", read_by)
    for seed in ("weights.safetensors", "weights.pth"):
        yield Kind(seed, "cache", (seed,), f"input/{seed}", "input", (readers.state_file,))
    yield from _of_folders(scene)


def _of_folders(scene: Path) -> Iterator[Kind]:
    """Yield the files of runs, of the cache and of a benchmark: mutated in their place."""
    finished = (readers.run_folder, readers.evaluated, readers.reported, readers.reviewed)
    begun, made = (readers.unfinished, readers.resumed), readers.features_made
    runs = {"run": finished, "pictures-run": finished}
    runs |= {"left.unfinished": begun, "pictures-left.unfinished": begun}
    for folder, read_by in runs.items():
        for path in sorted((scene / folder).rglob("*")):
            if path.is_file() and not path.name.endswith(UNREAD):
                place = str(path.relative_to(scene))
                area = "review" if path.name in ("review.jsonl", "corrections.csv") else "runs"
                yield Kind(place, area, (place,), place, folder, read_by)
    cached: dict[str, tuple[Reader, ...]] = {
        "*.sqlite3": (readers.cached_features, made),
    }  # fmt: skip
    for pattern, reading in cached.items():
        for path in sorted((scene / "cache").rglob(pattern)):
            place = str(path.relative_to(scene))
            yield Kind(f"cache/{pattern.strip('*.')}", "cache", (place,), place, "cache", reading)
    for name, pattern in {"benchmark.json": "benchmark.json", "cell.json": "cells/*"}.items():
        for path in sorted((scene / "benchmark").glob(pattern))[:1]:
            place = str(path.relative_to(scene))
            yield Kind(f"benchmark/{name}", "runs", (place,), place, "benchmark", (readers.grid,))
