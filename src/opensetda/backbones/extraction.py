"""Image files to features: decoded, computed and cached in one stream.

torch, timm and ONNX Runtime are imported when the first image needs them: where every
image is in the cache, none of them is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.backbones.cache import FeatureCache
from opensetda.backbones.extractor import Extractor
from opensetda.backbones.recipe import Recipe
from opensetda.rows import IntArray
from opensetda.system.files import new_array_file

__all__ = ["Broken", "Extraction", "Extractor", "extract"]

Features = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]

LARGE_BYTES = 2**28  # a larger float32 matrix goes to a file if there is a folder for it
_MOVED_ROWS = 4096


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
    X: Any = (
        np.zeros(shape, np.float32) if file is None else new_array_file(file, np.float32, shape)
    )
    reasons: dict[int, str] = {}
    n_done = n_cached = 0
    with Extractor(recipe, engine) as extractor, closing(extractor.outcomes(paths, cache)) as parts:
        for part in parts:
            for row, (found, was_cached) in enumerate(part, start=n_done):
                n_cached += was_cached
                if isinstance(found, str):
                    reasons[row] = found
                else:
                    X[row] = found
            n_done += len(part)
            if progress is not None:
                progress(n_done, len(paths))
    warnings = extractor.warnings
    if cache is not None:
        cache.flush()
        warnings = [*warnings, *cache.warnings]
    rows = np.setdiff1d(np.arange(len(paths)), list(reasons), assume_unique=True).astype(np.intp)
    if reasons:
        # In place: rows only move up.
        for start in range(0, len(rows), _MOVED_ROWS):
            moved = rows[start : start + _MOVED_ROWS]
            X[start : start + len(moved)] = X[moved]
    if file is not None:
        X.flush()
        # Read-only, so that its pages can be released.
        X = np.load(file, mmap_mode="r")
    return Extraction(
        X=X[: len(rows)],
        rows=rows,
        broken=[Broken(str(ids[row]), paths[row], reasons[row]) for row in sorted(reasons)],
        n_cached=n_cached,
        seconds=time.perf_counter() - started,
        engine=extractor.engine,
        warnings=list(dict.fromkeys(warnings)),
    )
