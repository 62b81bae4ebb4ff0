"""Image files to features: decoded, computed and cached in one stream.

torch, timm and ONNX Runtime are imported when the first image needs them: where every
image is in the cache, none of them is.
"""

from __future__ import annotations

import math
import os
import sqlite3
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from opensetda.backbones.recipe import Recipe
from opensetda.data.images.decoding import BrokenImageError, decode_bytes, read_content
from opensetda.errors import one_line
from opensetda.rows import IntArray
from opensetda.system.files import new_array_file

if TYPE_CHECKING:
    from torch import Tensor

    from opensetda.backbones.engines import OnnxEngine, TorchEngine

Features = npt.NDArray[np.float32]
Item = TypeVar("Item")

LARGE_BYTES = 2**28  # a larger float32 matrix goes to a file if there is a folder for it
_TASK = 8  # images per task of a worker, at most
_WAITING = 4  # tasks per worker: enough to keep every core busy, few enough for little memory
_FLUSHED_ROWS = 256  # a crash loses at most this many rows of the cache
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


class _Outcome(NamedTuple):
    """Features of one image, or the reason why there are none."""

    features: Features | None
    reason: str | None = None
    was_cached: bool = False


def extract(
    recipe: Recipe,
    ids: Sequence[str],
    paths: Sequence[str],
    cache: FeatureCache | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    scratch: Path | None = None,
) -> Extraction:
    """Return the features of images, from the cache where possible; broken images are listed.

    `progress` is called with the number of finished images and of all. `scratch` is a folder for
    a matrix that is too large for memory; the caller removes it.
    """
    started = time.perf_counter()
    shape, file = (len(paths), recipe.width), None
    if scratch is not None and 4 * math.prod(shape) > LARGE_BYTES:
        file = scratch / "features.npy"
    X: Any = np.zeros(shape, np.float32) if file is None else new_array_file(file, "<f4", shape)
    rows: list[int] = []
    broken, n_cached = [], 0
    with Extractor(recipe) as extractor, closing(extractor.outcomes(paths, cache)) as outcomes:
        for row, (features, reason, was_cached) in enumerate(outcomes):
            n_cached += was_cached
            if reason is None:
                # Without gaps: rows of broken images are taken by the next.
                X[len(rows)] = features
                rows.append(row)
            else:
                broken.append(Broken(str(ids[row]), paths[row], reason))
            progress(row + 1, len(paths))
    warnings = extractor.warnings
    if cache is not None:
        cache.flush()
        warnings = [*warnings, *cache.warnings]
    if file is not None:
        X.flush()
        # Read-only, so that its pages can be released.
        X = np.load(file, mmap_mode="r")
    seconds, numbers = time.perf_counter() - started, np.array(rows, dtype=np.intp)
    return Extraction(X[: len(rows)], numbers, broken, n_cached, seconds, warnings)


class Extractor(AbstractContextManager["Extractor"]):
    """Computes features of image files on all cores. Use it as a context manager.

    `state` are fine-tuned weights instead of the recipe's.
    """

    def __init__(self, recipe: Recipe, state: Mapping[str, Tensor] | None = None) -> None:
        self.recipe, self._state = recipe, state
        self.warnings: list[str] = []
        self.engine: TorchEngine | OnnxEngine | None = None  # while nothing had to be computed
        self._building = threading.Lock()
        torch = sys.modules.get("torch")
        self._threads: int | None = None if torch is None else torch.get_num_threads()
        self._workers = usable_cores()
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
        good, reasons = [np.empty((0, self.recipe.width), np.float32)], []
        with closing(self.outcomes(paths)) as outcomes:
            for features, reason, _ in outcomes:
                reasons.append(reason)
                if features is not None:
                    good.append(features[None])
                progress(1)
        return np.concatenate(good), reasons

    def outcomes(
        self, paths: Sequence[str], cache: FeatureCache | None = None
    ) -> Generator[_Outcome, None, None]:
        """Yield what comes of each image, in order; few of them wait in memory."""
        # Smaller tasks for few images, so that all cores get some.
        size = max(1, min(_TASK, len(paths) // (4 * self._workers)))
        waiting: deque[Future[list[_Outcome]]] = deque()
        try:
            for some in chunks(paths, size):
                waiting.append(self._pool.submit(self._compute, some, cache))
                if len(waiting) >= _WAITING * self._workers:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def _compute(self, paths: Sequence[str], cache: FeatureCache | None) -> list[_Outcome]:
        outcomes: list[_Outcome] = []
        new: list[tuple[int, bytes, npt.NDArray[np.uint8]]] = []
        for number, path in enumerate(paths):
            try:
                content = read_content(path)
                digest = sha256(content).digest()
                found = None if cache is None else cache.get(digest)
                outcomes.append(_Outcome(found, was_cached=found is not None))
                if found is None:
                    new.append((number, digest, self._pixels(content)))
            except BrokenImageError as error:
                outcomes[number:] = [_Outcome(None, str(error))]
        if new:
            engine = self._ready_engine()
            batches = chunks([pixels for _, _, pixels in new], engine.batch)
            rows = [row for some in batches for row in engine.run(np.stack(some))]
            for (number, digest, _), row in zip(new, rows, strict=True):
                outcomes[number] = _Outcome(row)
                if cache is not None:
                    cache.add(digest, row)
        return outcomes

    def _pixels(self, content: bytes) -> npt.NDArray[np.uint8]:
        from opensetda.backbones.model import resize_image

        pixels = resize_image(decode_bytes(content), self.recipe.preprocessing)
        return pixels.permute(1, 2, 0).numpy()

    def _ready_engine(self) -> TorchEngine | OnnxEngine:
        with self._building:
            if self.engine is None:
                from opensetda.backbones.engines import make_engine

                made = make_engine(self.recipe, self._state, self._threads)
                self.engine, self.warnings = made
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
        self._pending: dict[bytes, Features] = {}
        self._turn = threading.RLock()
        self._database: sqlite3.Connection | None = None
        with self._using():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.parent.mkdir(exist_ok=True)
            self._database = sqlite3.connect(self.path, _LOCK_SECONDS, check_same_thread=False)
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS images "
                "(digest BLOB PRIMARY KEY, features BLOB NOT NULL, checksum INTEGER NOT NULL)"
            )

    def __exit__(self, *error: object) -> None:
        self.flush()
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

    def add(self, digest: bytes, row: Features) -> None:
        """Add the features of an image; the next `flush` writes them to disk."""
        with self._turn:
            self._pending[digest] = row
            if len(self._pending) >= _FLUSHED_ROWS:
                self.flush()

    def flush(self) -> None:
        """Write new features to disk."""
        with self._using() as database:
            contents = [(key, row.astype("<f4").tobytes()) for key, row in self._pending.items()]
            self._pending.clear()
            if database is not None and contents:
                rows = [(key, content, _checksum(key, content)) for key, content in contents]
                with database:
                    database.executemany("INSERT OR REPLACE INTO images VALUES (?,?,?)", rows)

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
