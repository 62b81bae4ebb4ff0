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
from dataclasses import dataclass, field, replace
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

LARGE_BYTES = 2**28
"""A larger float32 matrix goes to a file if there is a folder for it."""

_MOVED_ROWS = 4096
_MATRIX_FILE = "features.npy"
_LOOKED_UP = 4096


@dataclass(frozen=True)
class Broken:
    """An image that could not be used, and the reason in a few words."""

    id: str
    path: str
    reason: str


@dataclass
class Extraction:
    """Features of many images.

    Attributes
    ----------
    X : array of float32 of shape (n_ok, width)
        Features of the usable images, in the order given.
    rows : array of int of shape (n_ok,)
        Their numbers among the images given.
    broken : list of Broken
        The others.
    n_cached : int
        Images whose features were in the cache.
    seconds : float
        Duration.
    engine : str or None
        "onnx" or "torch"; None if nothing had to be computed.
    warnings : list of str
        One line each.
    """

    X: Features
    rows: npt.NDArray[np.intp]
    broken: list[Broken]
    n_cached: int
    seconds: float
    engine: str | None = None
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
    """Return the features of images, from the cache where possible.

    Images with the same content are computed once. Broken images are listed and do not stop
    the others.

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
    everybody = _exchange(run, mine.start, used, warnings, team)
    reasons = {int(row): reason for part in everybody for row, reason in part["reasons"].items()}
    left_out = np.array(sorted(reasons), dtype=np.intp)
    rows = np.setdiff1d(np.arange(len(paths)), left_out, assume_unique=True)
    del run
    return Extraction(
        X=shared.take(rows),
        rows=rows,
        broken=[Broken(str(ids[row]), paths[row], reasons[row]) for row in left_out.tolist()],
        n_cached=sum(part["cached"] for part in everybody),
        seconds=time.perf_counter() - started,
        engine=next((part["engine"] for part in everybody if part["engine"]), None),
        warnings=list(dict.fromkeys(line for part in everybody for line in part["warnings"])),
    )


def _exchange(
    run: _Run, first: int, engine: str | None, warnings: list[str], team: Team
) -> list[dict[str, Any]]:
    """Return the results of every process except the features."""
    mine = {
        "reasons": {first + row: reason for row, reason in run.reasons.items()},
        "cached": int(run.cached.sum()),
        "engine": engine,
        "warnings": warnings,
    }
    return [json.loads(part) for part in team.gather_bytes(json.dumps(mine).encode())]


@dataclass(frozen=True)
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
        self,
        X: Features,
        paths: Sequence[str],
        cache: FeatureCache | None,
        progress: Progress,
    ) -> None:
        self.X = X
        self.done = np.zeros(len(paths), dtype=np.bool_)
        self.reasons: dict[int, str] = {}
        self.cached = np.zeros(len(paths), dtype=np.bool_)
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

        def work(some: Sequence[int]) -> list[_Outcome]:
            return self._work(extractor, some)

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
                self.done[row] = True
                self.cached[row] = self.cached[first]
        self._tell()

    def _work(self, extractor: Extractor, rows: Sequence[int]) -> list[_Outcome]:
        """Read images and compute those not seen before; runs in the workers."""
        outcomes: list[_Outcome] = []
        new: list[_Outcome] = []
        contents: list[bytes] = []
        for row in rows:
            try:
                content, signature = read_signed(self._paths[row], read_content)
            except BrokenImageError as error:
                outcomes.append(_Outcome(row, reason=str(error)))
                continue
            outcome = self._look_up(row, hashlib.sha256(content).hexdigest(), signature)
            if outcome.repeated or outcome.cached:
                outcomes.append(outcome)
            else:
                new.append(outcome)
                contents.append(content)
        for outcome, result in zip(new, extractor.compute(contents), strict=True):
            if isinstance(result, str):
                outcomes.append(replace(outcome, reason=result))
            else:
                outcomes.append(replace(outcome, features=result))
        return outcomes

    def _look_up(self, row: int, digest: str, signature: Signature | None) -> _Outcome:
        with self._turn:
            if digest in self._first:
                return _Outcome(row, digest, signature, repeated=True)
            self._first[digest] = row
            if self._cache is not None:
                features, found = self._cache.read([digest])
                if found.all():
                    return _Outcome(row, digest, signature, features[0], cached=True)
        return _Outcome(row, digest, signature)

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
        self.done[row] = True
        if outcome.cached:
            self.cached[row] = True
        elif self._cache is not None:
            with self._turn:
                self._cache.add(outcome.digest, outcome.features)

    def _tell(self) -> None:
        self._progress(int(self.done.sum()) + len(self.reasons), len(self._paths))


class SharedRows:
    """A float32 matrix, in memory or in a file that all processes of a team fill together.

    Parameters
    ----------
    n, width : int
        Its shape.
    scratch : Path or None
        Folder of the file; None: in memory, which only a team of one can use.
    """

    def __init__(self, n: int, width: int, scratch: Path | None, team: Team) -> None:
        self.team, self.shape = team, (n, width)
        self.path: Path | None = None
        if scratch is not None and n and (team.size > 1 or 4 * n * width > LARGE_BYTES):
            self.path = scratch / _MATRIX_FILE
            team.first_does(self._make)
            self._whole: Any = np.lib.format.open_memmap(self.path, mode="r+")
        else:
            assert team.size == 1, "a team needs a folder"
            self._whole = np.zeros(self.shape, dtype=np.float32)
        rows = team.rows(n)
        self.own: npt.NDArray[np.float32] = self._whole[rows.start : rows.stop]

    def _make(self) -> None:
        assert self.path is not None
        new_array_file(self.path, np.float32, self.shape)

    def take(self, rows: IntArray) -> npt.NDArray[np.float32]:
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
        rows_of_file: npt.NDArray[np.float32] = np.load(self.path, mmap_mode="r")
        return rows_of_file[: len(rows)]
