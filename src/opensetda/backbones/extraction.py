"""Image files to features: decoded, computed and cached in one stream.

torch, timm and ONNX Runtime are imported when the first image needs them: where every
image is in the cache, none of them is.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from opensetda.backbones.cache import FeatureCache
from opensetda.backbones.recipe import Recipe
from opensetda.data.images.decoding import BrokenImageError, decode_bytes, read_content
from opensetda.rows import IntArray
from opensetda.system.files import new_array_file

if TYPE_CHECKING:
    from torch import Tensor

    from opensetda.backbones.engines import OnnxEngine, TorchEngine

Features = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]
Item = TypeVar("Item")

LARGE_BYTES = 2**28  # a larger float32 matrix goes to a file if there is a folder for it
_TASK = 8  # images per task of a worker, at most
_WAITING = 4  # tasks per worker: enough to keep every core busy, few enough for little memory


@dataclass(frozen=True)
class Broken:
    """An image that could not be used, and the reason in a few words."""

    id: str
    path: str
    reason: str


@dataclass
class Extraction:
    """Features of many images."""

    X: Features  # of the usable images, (n_ok, width), in the order given
    rows: IntArray  # their numbers among the images given
    broken: list[Broken]
    n_cached: int
    seconds: float
    engine: str | None = None  # "onnx" or "torch"; None if nothing had to be computed
    warnings: list[str] = field(default_factory=list)


@dataclass
class _Outcome:
    """Features of one image, or the reason why there are none."""

    features: Features | None = None
    reason: str | None = None
    was_cached: bool = False


def extract(
    recipe: Recipe,
    ids: Sequence[str],
    paths: Sequence[str],
    cache: FeatureCache | None = None,
    progress: Progress | None = None,
    engine: str = "auto",
    scratch: Path | None = None,
) -> Extraction:
    """Return the features of images, from the cache where possible; broken images are listed.

    Parameters
    ----------
    recipe : Recipe
        From `registry.resolve`.
    ids, paths : sequence of str of length n
        Names and files of the images.
    cache : FeatureCache, optional
        Where features are looked up and stored; None: nowhere.
    progress : callable, optional
        Called with the number of finished images and of all images.
    engine : {"auto", "onnx", "torch"}
        See `engines.make_engine`.
    scratch : Path, optional
        Folder for a matrix that is too large for memory; the caller removes it.
    """
    started = time.perf_counter()
    shape = len(paths), recipe.width
    file = None
    if scratch is not None and 4 * math.prod(shape) > LARGE_BYTES:
        file = scratch / "features.npy"
    X: Any = np.zeros(shape, np.float32) if file is None else new_array_file(file, "<f4", shape)
    rows: list[int] = []
    broken, n_done, n_cached = [], 0, 0
    with Extractor(recipe, engine) as extractor, closing(extractor.outcomes(paths, cache)) as parts:
        for part in parts:
            for row, outcome in enumerate(part, start=n_done):
                n_cached += outcome.was_cached
                if outcome.reason is None:
                    # Without gaps: rows of broken images are taken by the next.
                    X[len(rows)] = outcome.features
                    rows.append(row)
                else:
                    broken.append(Broken(str(ids[row]), paths[row], outcome.reason))
            n_done += len(part)
            if progress is not None:
                progress(n_done, len(paths))
    warnings = extractor.warnings
    if cache is not None:
        cache.flush()
        warnings = [*warnings, *cache.warnings]
    if file is not None:
        X.flush()
        # Read-only, so that its pages can be released.
        X = np.load(file, mmap_mode="r")
    return Extraction(
        X=X[: len(rows)],
        rows=np.array(rows, dtype=np.intp),
        broken=broken,
        n_cached=n_cached,
        seconds=time.perf_counter() - started,
        engine=extractor.engine,
        warnings=list(dict.fromkeys(warnings)),
    )


class Extractor(AbstractContextManager["Extractor"]):
    """Computes features of image files on all cores. Use it as a context manager.

    Parameters
    ----------
    recipe : Recipe
        From `registry.resolve`.
    engine : {"auto", "onnx", "torch"}
        See `engines.make_engine`.
    state : mapping of str to Tensor, optional
        Fine-tuned weights instead of the recipe's.
    """

    def __init__(
        self,
        recipe: Recipe,
        engine: str = "auto",
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.recipe = recipe
        self.warnings: list[str] = []
        self._choice, self._state = engine, state
        self._engine: TorchEngine | OnnxEngine | None = None
        self._building = threading.Lock()
        torch = sys.modules.get("torch")
        self._threads: int | None = None if torch is None else torch.get_num_threads()
        self._workers = usable_cores()
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="features")

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._engine is not None:
            self._engine.release()

    @property
    def engine(self) -> str | None:
        """Return "onnx" or "torch"; None while nothing had to be computed."""
        return None if self._engine is None else self._engine.name

    def features(
        self, paths: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> tuple[Features, list[str | None]]:
        """Return the features of the usable images, (n_ok, width), and each image's problem.

        `progress` is called with the number of images, whenever some are finished.
        """
        outcomes: list[_Outcome] = []
        with closing(self.outcomes(paths)) as parts:
            for part in parts:
                outcomes += part
                if progress is not None:
                    progress(len(part))
        good = [outcome.features for outcome in outcomes if outcome.features is not None]
        features = np.array(good, dtype=np.float32).reshape(len(good), self.recipe.width)
        return features, [outcome.reason for outcome in outcomes]

    def outcomes(
        self, paths: Sequence[str], cache: FeatureCache | None = None
    ) -> Generator[list[_Outcome], None, None]:
        """Yield what comes of each image, in order and in parts; few parts wait in memory."""
        # Smaller tasks for few images, so that all cores get some.
        size = max(1, min(_TASK, len(paths) // (4 * self._workers)))
        waiting: deque[Future[list[_Outcome]]] = deque()
        try:
            for some in chunks(paths, size):
                waiting.append(self._pool.submit(self._compute, some, cache))
                if len(waiting) >= _WAITING * self._workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def _compute(self, paths: Sequence[str], cache: FeatureCache | None) -> list[_Outcome]:
        outcomes, new = [_Outcome() for _ in paths], []
        for path, outcome in zip(paths, outcomes, strict=True):
            try:
                content = read_content(path)
                digest = sha256(content).digest()
                outcome.features = None if cache is None else cache.get(digest)
                outcome.was_cached = outcome.features is not None
                if not outcome.was_cached:
                    new.append((outcome, digest, self._pixels(content)))
            except BrokenImageError as error:
                outcome.reason = str(error)
        if new:
            engine = self._ready_engine()
            batches = chunks([pixels for _, _, pixels in new], engine.batch)
            rows = [row for some in batches for row in engine.run(np.stack(some))]
            for (outcome, digest, _), row in zip(new, rows, strict=True):
                outcome.features = row
                if cache is not None:
                    cache.add(digest, row)
        return outcomes

    def _pixels(self, content: bytes) -> npt.NDArray[np.uint8]:
        from opensetda.backbones.model import resize_image

        pixels = resize_image(decode_bytes(content), self.recipe.preprocessing)
        return pixels.permute(1, 2, 0).numpy()

    def _ready_engine(self) -> TorchEngine | OnnxEngine:
        with self._building:
            if self._engine is None:
                from opensetda.backbones.engines import make_engine

                self._engine, self.warnings = make_engine(
                    self.recipe, self._choice, self._state, self._threads
                )
            return self._engine


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
