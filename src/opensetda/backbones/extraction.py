"""Image files to features: decoded, computed and cached in one stream.

torch, timm and ONNX Runtime are imported when the first image needs them: where every
image is in the cache, none of them is.
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from opensetda.backbones.recipe import Recipe
from opensetda.data.images.decoding import NO_FILE, BrokenImageError, decode_bytes, read_content
from opensetda.data.names import gone
from opensetda.errors import InputError, one_line
from opensetda.rows import IntArray
from opensetda.system.files import new_array_file, own_folder

if TYPE_CHECKING:
    from torch import Tensor

    from opensetda.backbones.engines import OnnxEngine, TorchEngine

Features = npt.NDArray[np.float32]
Item = TypeVar("Item")
# Features of one image, or the reason why there are none; and whether they come from the cache.
Outcome = tuple[Features | None, str | None, bool]

LARGE_BYTES = 2**28  # a larger float32 matrix goes to a file if there is a folder for it
_TASK = 8  # images per task of a worker, at most; a crash loses so many rows of the cache
_WAITING = 4096  # images that are given to the workers at once: the results are in memory
_LOCK_SECONDS = 60.0
# Names in a damaged file that are no text are a ValueError.
_FAILURES = (OSError, sqlite3.Error, ValueError)


@dataclass(frozen=True)
class Broken:
    """An image that could not be used, and the reason in a few words."""

    id: str
    path: str
    reason: str


@dataclass(frozen=True)
class Extraction:
    """Features of many images."""

    X: Features  # of the usable images, (n_ok, width), in the order given
    rows: IntArray  # their numbers among the images given
    broken: list[Broken]
    n_cached: int
    seconds: float
    warnings: list[str]


def extract(
    recipe: Recipe,
    ids: Sequence[str],
    paths: Sequence[str],
    cache: FeatureCache | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    scratch: Path | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> Extraction:
    """Return the features of images, from the cache where possible; broken images are listed.

    One that was listed and has been deleted since is not a broken one, but an `InputError`.
    `progress` is called with the number of finished images and of all. `scratch` is a folder for
    a matrix that is too large for memory; the caller removes it. `state` are fine-tuned weights.
    """
    started = time.perf_counter()
    shape = (len(paths), recipe.width)
    file = None
    if scratch is not None and 4 * math.prod(shape) > LARGE_BYTES:
        file = scratch / "features.npy"
    X: Any = np.zeros(shape, np.float32) if file is None else new_array_file(file, "<f4", shape)
    rows: list[int] = []
    broken = []
    n_cached = 0
    with Extractor(recipe, state) as extractor:
        for row, (features, reason, was_cached) in enumerate(extractor.outcomes(paths, cache)):
            n_cached += was_cached
            if reason is None:
                # Without gaps: rows of broken images are taken by the next.
                X[len(rows)] = features
                rows.append(row)
            else:
                check_there(paths[row], reason)
                broken.append(Broken(str(ids[row]), paths[row], reason))
            progress(row + 1, len(paths))
    warnings = extractor.warnings + ([] if cache is None else cache.warnings)
    if file is not None:
        X.flush()
        # Read-only, so that its pages can be released.
        X = np.load(file, mmap_mode="r")
    seconds = time.perf_counter() - started
    numbers = np.array(rows, dtype=np.intp)
    return Extraction(X[: len(rows)], numbers, broken, n_cached, seconds, warnings)


def check_there(path: str, reason: str | None) -> None:
    """Raise an `InputError` if an image is not broken, but deleted; a broken link is broken."""
    if reason == NO_FILE and not os.path.lexists(path):
        raise gone(path)


class Extractor(AbstractContextManager["Extractor"]):
    """Computes features of image files in `workers` threads. Use it as a context manager.

    `state` are fine-tuned weights instead of the recipe's.
    """

    def __init__(
        self, recipe: Recipe, state: Mapping[str, Tensor] | None = None, workers: int | None = None
    ) -> None:
        self.recipe = recipe
        self._state = state
        self.warnings: list[str] = []
        self.engine: TorchEngine | OnnxEngine | None = None  # while nothing had to be computed
        self._building = threading.Lock()
        self._workers = workers or usable_cores()
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="features")

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self.engine is not None:
            self.engine.release()

    def features(
        self, paths: Sequence[str], progress: Callable[[int], None] = lambda more: None
    ) -> tuple[Features, list[str | None]]:
        """Return the features of the usable images, (n_ok, width), and each image's problem.

        `progress` is called with the number of images, whenever some are finished.
        """
        good = [np.empty((0, self.recipe.width), np.float32)]
        reasons = []
        for features, reason, _ in self.outcomes(paths):
            reasons.append(reason)
            if features is not None:
                good.append(features[None])
            progress(1)
        return np.concatenate(good), reasons

    def outcomes(
        self, paths: Sequence[str], cache: FeatureCache | None = None
    ) -> Iterator[Outcome]:
        """Yield what comes of each image, in order."""
        # Smaller tasks for few images, so that all cores get some.
        size = max(1, min(_TASK, len(paths) // (4 * self._workers)))
        compute = partial(self._compute, cache=cache)
        for some in chunks(paths, _WAITING):
            for done in self._pool.map(compute, chunks(some, size)):
                yield from done

    def _compute(self, paths: Sequence[str], cache: FeatureCache | None) -> list[Outcome]:
        outcomes: list[Outcome] = []
        new: dict[int, tuple[bytes, npt.NDArray[np.uint8]]] = {}
        for number, path in enumerate(paths):
            try:
                content = read_content(path)
                digest = sha256(content).digest()
                found = None if cache is None else cache.get(digest)
                if found is None:
                    from opensetda.backbones.model import resize_image

                    image = resize_image(decode_bytes(content), self.recipe.preprocessing)
                    new[number] = digest, image.permute(1, 2, 0).numpy()
                outcomes.append((found, None, found is not None))
            except BrokenImageError as error:
                outcomes.append((None, str(error), False))
        if new:
            engine = self._ready_engine()
            digests, pixels = zip(*new.values(), strict=True)
            batches = chunks(pixels, engine.batch)
            rows = [row for some in batches for row in engine.run(np.stack(some))]
            for number, row in zip(new, rows, strict=True):
                outcomes[number] = row, None, False
            if cache is not None:
                cache.add(digests, rows)
        return outcomes

    def _ready_engine(self) -> TorchEngine | OnnxEngine:
        with self._building:
            if self.engine is None:
                from opensetda.backbones.engines import make_engine

                self.engine, self.warnings = make_engine(self.recipe, self._state)
            return self.engine


class FeatureCache(AbstractContextManager["FeatureCache"]):
    """Features on disk, by the content of the image file. Use it as a context manager.

    One SQLite file per recipe, in a folder that all recipes share, which any number of threads
    and processes may use at once. Whatever is wrong with it costs a warning and time, never a
    run: the features, `width` of each image, are computed again.
    """

    def __init__(self, folder: Path, recipe_key: str, width: int) -> None:
        self.width = width
        self.warnings: list[str] = []  # one line per problem
        self.path = folder / "features" / f"{recipe_key}.sqlite3"
        self._turn = threading.Lock()
        self._database: sqlite3.Connection | None = None
        with self._using():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            own_folder(self.path.parent)
            if self.path.is_symlink():
                # SQLite would follow it, and write into the file that it leads to.
                raise InputError("a link, where a file of ours should be; remove the link")
            self._database = sqlite3.connect(self.path, _LOCK_SECONDS, check_same_thread=False)
            # Without waiting for the disk: what a power failure damages is found by checksums.
            self._database.execute("PRAGMA synchronous = OFF")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS images "
                "(digest BLOB PRIMARY KEY, features BLOB NOT NULL, checksum INTEGER NOT NULL)"
            )

    def __exit__(self, *error: object) -> None:
        if self._database is not None:
            self._database.close()

    def get(self, digest: bytes) -> Features | None:
        """Return the features of an image by the SHA-256 of its file; None if there are none."""
        found = None
        with self._using() as database:
            if database is not None:
                query = "SELECT features, checksum FROM images WHERE digest = ?"
                found = database.execute(query, (digest,)).fetchone()
        if found is None:
            return None
        content, checksum = found
        is_row = isinstance(content, bytes) and len(content) == 4 * self.width
        if not is_row or _checksum(digest, content) != checksum:
            self._warn("damaged rows are computed again; remove the file")
            return None
        return np.frombuffer(content, dtype="<f4")

    def add(self, digests: Iterable[bytes], rows: Iterable[Features]) -> None:
        """Write the features of images to disk."""
        contents = [row.astype("<f4").tobytes() for row in rows]
        checked = [(of, row, _checksum(of, row)) for of, row in zip(digests, contents, strict=True)]
        with self._using() as database:
            if database is not None:
                with database:
                    database.executemany("INSERT OR REPLACE INTO images VALUES (?,?,?)", checked)

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection | None]:
        """Yield the database to one thread at a time; after an error, go on without it."""
        with self._turn:
            try:
                yield self._database
            except _FAILURES as error:
                self._warn(f"features cannot be kept ({one_line(error)}); continuing without")
                if self._database is not None:
                    self._database.close()
                    self._database = None

    def _warn(self, problem: str) -> None:
        warning = f"{self.path}: {problem}"
        if warning not in self.warnings:
            self.warnings.append(warning)


def _checksum(digest: bytes, content: bytes) -> int:
    # With the digest: a damaged index may lead to the row of another image.
    return zlib.crc32(content, zlib.crc32(digest))


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of `size`; the last one may be shorter."""
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some
