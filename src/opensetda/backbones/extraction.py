"""Image files to features: decoded, computed and cached in one stream.

torch, timm and ONNX Runtime are imported when the first image needs them: where every
image is in the cache, none of them is.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.backbones.cache import FeatureCache
from opensetda.backbones.extractor import TASK, Extractor, chunks, read_content, usable_cores
from opensetda.backbones.file_digests import FileDigests, Signature, read_signed
from opensetda.backbones.recipe import Recipe
from opensetda.data.images.decoding import BrokenImageError
from opensetda.rows import IntArray
from opensetda.system.files import new_array_file
from opensetda.system.team import ALONE, Team

__all__ = ["Broken", "Extraction", "Extractor", "extract"]

Features = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]

LARGE_BYTES = 2**28  # a larger float32 matrix goes to a file if there is a folder for it
_MOVED_ROWS = _LOOKED_UP = 4096


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
    team: Team = ALONE,
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
    team : Team
        Processes that share the work; all see `scratch`, and each gets all features.
    """
    started = time.perf_counter()
    mine = team.rows(len(paths))
    shared = SharedRows(len(paths), recipe.width, scratch, team)
    own = paths[mine.start : mine.stop]
    run = _Run(shared.own, own, cache, progress or (lambda done, total: None))
    memory = None if cache is None else cache.folder
    with FileDigests(memory) as digests:
        left = run.take_from_cache(digests)
        used, warnings = None, []
        if left:
            with Extractor(recipe, engine, memory=memory) as extractor:
                run.compute(extractor, left, digests)
                used, warnings = extractor.engine, extractor.warnings
    if cache is not None:
        cache.flush()
        warnings = [*warnings, *cache.warnings]
    own_part = {
        "reasons": {mine.start + row: reason for row, reason in run.reasons.items()},
        "cached": int(run.cached.sum()),
        "engine": used,
        "warnings": warnings,
    }
    gathered = team.gather_bytes(json.dumps(own_part).encode())
    everybody: list[dict[str, Any]] = [json.loads(part) for part in gathered]
    reasons = {int(row): reason for part in everybody for row, reason in part["reasons"].items()}
    rows = np.setdiff1d(np.arange(len(paths)), list(reasons), assume_unique=True).astype(np.intp)
    del run
    return Extraction(
        X=shared.take(rows),
        rows=rows,
        broken=[Broken(str(ids[row]), paths[row], reasons[row]) for row in sorted(reasons)],
        n_cached=sum(part["cached"] for part in everybody),
        seconds=time.perf_counter() - started,
        engine=next((part["engine"] for part in everybody if part["engine"]), None),
        warnings=list(dict.fromkeys(line for part in everybody for line in part["warnings"])),
    )


@dataclass
class _Outcome:
    """The result of a worker for one image."""

    row: int
    digest: str = ""
    signature: Signature | None = None
    features: Features | None = None
    reason: str | None = None
    cached: bool = False
    repeated: bool = False


class _Run:
    """The state of one extraction."""

    def __init__(
        self, X: Features, paths: Sequence[str], cache: FeatureCache | None, progress: Progress
    ) -> None:
        self.X = X
        self.done, self.cached = np.zeros((2, len(paths)), dtype=np.bool_)
        self.reasons: dict[int, str] = {}
        self._paths, self._cache, self._progress = paths, cache, progress
        self._turn = threading.Lock()
        self._first: dict[str, int] = {}  # the first image of each content, by digest
        self._repeated: list[tuple[int, str]] = []

    def take_from_cache(self, digests: FileDigests) -> list[int]:
        """Fill in images whose unchanged files are in the cache; return the other rows."""
        left: list[int] = []
        for rows in chunks(range(len(self._paths)), _LOOKED_UP):
            if self._cache is None:
                left += rows
                continue
            known = digests.recall([self._paths[row] for row in rows])
            pairs = [(row, digest) for row, digest in zip(rows, known, strict=True) if digest]
            features, found = self._cache.read([digest for _, digest in pairs])
            there = [row for (row, _), is_there in zip(pairs, found, strict=True) if is_there]
            self.X[there] = features
            self.done[there] = True
            left += [row for row in rows if not self.done[row]]
        self.cached |= self.done
        self._tell()
        return left

    def compute(self, extractor: Extractor, rows: Sequence[int], digests: FileDigests) -> None:
        """Fill in the images of `rows`, and add them to the cache."""
        # Smaller tasks for few images, so that all cores get some.
        size = max(1, min(TASK, len(rows) // (4 * usable_cores())))
        work = partial(self._work, extractor)
        with closing(extractor.map(work, chunks(rows, size))) as results:
            for outcomes in results:
                for outcome in outcomes:
                    self._take(outcome, digests)
                self._tell()
        for row, digest in self._repeated:
            first = self._first[digest]
            if first in self.reasons:
                self.reasons[row] = self.reasons[first]
            else:
                self.X[row] = self.X[first]
                self.done[row], self.cached[row] = True, self.cached[first]
        self._tell()

    def _work(self, extractor: Extractor, rows: Sequence[int]) -> list[_Outcome]:
        """Read images and compute those not seen before; runs in the workers."""
        outcomes = [_Outcome(row) for row in rows]
        new: list[tuple[_Outcome, bytes]] = []
        for outcome in outcomes:
            try:
                content, outcome.signature = read_signed(self._paths[outcome.row], read_content)
            except BrokenImageError as error:
                outcome.reason = str(error)
                continue
            outcome.digest = hashlib.sha256(content).hexdigest()
            if not self._is_known(outcome):
                new.append((outcome, content))
        results = extractor.compute([content for _, content in new])
        for (outcome, _), result in zip(new, results, strict=True):
            if isinstance(result, str):
                outcome.reason = result
            else:
                outcome.features = result
        return outcomes

    def _is_known(self, outcome: _Outcome) -> bool:
        """Return whether the image's content was seen before, or is in the cache."""
        with self._turn:
            outcome.repeated = outcome.digest in self._first
            if not outcome.repeated:
                self._first[outcome.digest] = outcome.row
                if self._cache is not None:
                    features, found = self._cache.read([outcome.digest])
                    if found.all():
                        outcome.features, outcome.cached = features[0], True
        return outcome.repeated or outcome.cached

    def _take(self, outcome: _Outcome, digests: FileDigests) -> None:
        """Store the result of a worker."""
        row = outcome.row
        if outcome.reason is not None:
            self.reasons[row] = outcome.reason
            return
        digests.remember(self._paths[row], outcome.signature, outcome.digest)
        if outcome.repeated:
            self._repeated.append((row, outcome.digest))
            return
        assert outcome.features is not None
        self.X[row] = outcome.features
        self.done[row], self.cached[row] = True, outcome.cached
        if self._cache is not None and not outcome.cached:
            with self._turn:
                self._cache.add(outcome.digest, outcome.features)

    def _tell(self) -> None:
        self._progress(int(self.done.sum()) + len(self.reasons), len(self._paths))


class SharedRows:
    """A float32 matrix, in memory or in a file that all processes of a team fill together.

    Without a `scratch` folder for the file it is in memory, which only a team of one can use.
    """

    def __init__(self, n: int, width: int, scratch: Path | None, team: Team) -> None:
        self.team, self.shape = team, (n, width)
        self.path: Path | None = None
        if scratch is not None and n and (team.size > 1 or 4 * n * width > LARGE_BYTES):
            self.path = scratch / "features.npy"
            team.first_does(self._make)
            self._whole: Any = np.lib.format.open_memmap(self.path, mode="r+")
        else:
            assert team.size == 1, "a team needs a folder"
            self._whole = np.zeros(self.shape, dtype=np.float32)
        rows = team.rows(n)
        self.own: Features = self._whole[rows.start : rows.stop]

    def _make(self) -> None:
        assert self.path is not None
        new_array_file(self.path, np.float32, self.shape)

    def take(self, rows: IntArray) -> Features:
        """Return some rows, in ascending order, once every process has filled its own."""
        if self.path is None:
            return np.asarray(self._whole if len(rows) == len(self._whole) else self._whole[rows])
        self._whole.flush()
        self.team.wait()
        if len(rows) < self.shape[0] and self.team.is_first:
            # In place: rows only move up.
            for start in range(0, len(rows), _MOVED_ROWS):
                part = rows[start : start + _MOVED_ROWS]
                self._whole[start : start + len(part)] = self._whole[part]
            self._whole.flush()
        self.team.wait()
        del self._whole, self.own
        # Read-only, so that its pages can be released.
        rows_of_file: Features = np.load(self.path, mmap_mode="r")
        return rows_of_file[: len(rows)]
