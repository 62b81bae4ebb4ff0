"""The worker threads that turn image files into features; heavy imports wait for an image."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from opensetda.backbones.cache import FeatureCache
from opensetda.backbones.recipe import Recipe
from opensetda.data.images.decoding import BrokenImageError, decode_bytes, open_image

if TYPE_CHECKING:
    from torch import Tensor

    from opensetda.backbones.engines import OnnxEngine, TorchEngine

Features = npt.NDArray[np.float32]
Item = TypeVar("Item")
Result = TypeVar("Result")

TASK = 8  # images per task of a worker, at most
_WAITING = 4  # tasks per worker: enough to keep every core busy, few enough for little memory


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
        self.close()

    @property
    def engine(self) -> str | None:
        """Return "onnx" or "torch"; None while nothing had to be computed."""
        return None if self._engine is None else self._engine.name

    def close(self) -> None:
        """End the worker threads."""
        self._pool.shutdown(cancel_futures=True)
        if self._engine is not None:
            self._engine.release()

    def features(
        self, paths: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> tuple[Features, list[str | None]]:
        """Return the features of the usable images, (n_ok, width), and each image's problem.

        `progress` is called with the number of images, whenever some are finished.
        """
        outcomes: list[Features | str] = []
        with closing(self.outcomes(paths)) as parts:
            for part in parts:
                outcomes += [outcome for outcome, _ in part]
                if progress is not None:
                    progress(len(part))
        good = [outcome for outcome in outcomes if not isinstance(outcome, str)]
        features = np.array(good, dtype=np.float32).reshape(len(good), self.recipe.width)
        return features, [outcome if isinstance(outcome, str) else None for outcome in outcomes]

    def outcomes(
        self, paths: Sequence[str], cache: FeatureCache | None = None
    ) -> Generator[list[tuple[Features | str, bool]], None, None]:
        """Yield features or reasons why there are none, and whether they were cached: in parts."""
        # Smaller tasks for few images, so that all cores get some.
        size = max(1, min(TASK, len(paths) // (4 * self._workers)))
        return self.map(partial(self._read_and_compute, cache), chunks(paths, size))

    def map(
        self, task: Callable[[Item], Result], items: Iterable[Item]
    ) -> Generator[Result, None, None]:
        """Run a task for every item in the workers; yield the results in order."""
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(task, item))
                if len(waiting) >= _WAITING * self._workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def compute(self, contents: Sequence[bytes]) -> list[Features | str]:
        """Return the features of each image file's content, or the reason why there are none."""
        images = [self._pixels(content) for content in contents]
        features = self._run([pixels for pixels in images if not isinstance(pixels, str)])
        return [pixels if isinstance(pixels, str) else next(features) for pixels in images]

    def _read_and_compute(
        self, cache: FeatureCache | None, paths: Sequence[str]
    ) -> list[tuple[Features | str, bool]]:
        outcomes: list[tuple[Features | str, bool]] = []
        new: dict[int, bytes] = {}
        for place, path in enumerate(paths):
            try:
                content = read_content(path)
            except BrokenImageError as error:
                outcomes.append((str(error), False))
                continue
            known = None if cache is None else cache.get(sha256(content).digest())
            outcomes.append(("", False) if known is None else (known, True))
            if known is None:
                new[place] = content
        for place, result in zip(new, self.compute([*new.values()]), strict=True):
            if cache is not None and not isinstance(result, str):
                cache.add(sha256(new[place]).digest(), result)
            outcomes[place] = result, False
        return outcomes

    def _pixels(self, content: bytes) -> npt.NDArray[np.uint8] | str:
        from opensetda.backbones.model import resize_image

        try:
            pixels = decode_bytes(content)
        except BrokenImageError as error:
            return str(error)
        return resize_image(pixels, self.recipe.preprocessing).permute(1, 2, 0).numpy()

    def _run(self, images: Sequence[npt.NDArray[np.uint8]]) -> Iterator[Features]:
        if images:
            engine = self._ready_engine()
            for some in chunks(images, engine.batch):
                yield from engine.run(np.stack(some))

    def _ready_engine(self) -> TorchEngine | OnnxEngine:
        with self._building:
            if self._engine is None:
                from opensetda.backbones.engines import make_engine

                self._engine, warnings = make_engine(
                    self.recipe, self._choice, self._state, self._threads
                )
                self.warnings += warnings
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


def read_content(path: str) -> bytes:
    """Return the content of an image file, or raise a `BrokenImageError`."""
    try:
        with open_image(path) as stream:
            return stream.read()
    except FileNotFoundError as error:
        raise BrokenImageError("no such file") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BrokenImageError(f"cannot be read ({reason})") from error
