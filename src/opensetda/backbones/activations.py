"""Activations before the last stages of a backbone, on disk: what `--finetune last` trains on.

They are computed once, for some views of every image, image by image on one core each, so that
they depend on nothing but the image. One float16 ``.npy`` file holds them, (n, views, ...). In
the cache folder it serves every run on the same images and settings.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor, nn

from opensetda.backbones.engines import TorchEngine
from opensetda.backbones.extractor import chunks, read_content, usable_cores
from opensetda.backbones.file_digests import FileDigests
from opensetda.backbones.finetuning import (
    VIEW_COLOURS,
    decode_again,
    draw_view,
    fixed_views,
    prepare,
)
from opensetda.backbones.model import ImageBackbone
from opensetda.backbones.stages import EarlyStages, LastStages, cut
from opensetda.data.images.decoding import BrokenImageError
from opensetda.errors import InputError
from opensetda.nn.settings import FineTuneSettings
from opensetda.rows import IntArray, release_pages
from opensetda.system.files import claimed, is_partial, new_array_file, sweep
from opensetda.system.team import ALONE, Team

KEPT_BYTES = 10 * 10**9
"""Activations in the cache beyond so many bytes are removed, those used longest ago first."""

_READ_BYTES = 1 << 22
_VERSION = 2  # of the cuts, and of how views are drawn and stored

Progress = Callable[[int, int], None]
Counting = Callable[[str], AbstractContextManager[Progress]]


class StoredActivations:
    """Views of images as activations in a file, and the last stages, which learn from them.

    `TrainableImages` of `opensetda.nn.inputs`; row i of the file is image i.
    """

    def __init__(self, last: LastStages, path: Path, averaged: int) -> None:
        # Whether they were just computed or not: the layout of weights changes bits.
        self.backbone: nn.Module = last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._last = last
        self._store: Any = np.load(path, mmap_mode="r", allow_pickle=False)
        self.views, self.averaged = int(self._store.shape[1]), averaged

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters to train."""
        return self._last.trainable_parameters()

    def augmented(
        self, rows: IntArray, rng: np.random.Generator, settings: FineTuneSettings
    ) -> Tensor:
        """Return one of the stored views of each image, drawn at random."""
        return self.view(rows, rng.integers(self.views, size=len(rows)))

    def view(self, rows: IntArray, number: int | IntArray = 0) -> Tensor:
        """Return stored views, by their number or one number per row: (N, ...)."""
        activations = torch.from_numpy(self._store[rows, number].astype(np.float32))
        release_pages(self._store)
        if activations.ndim == 4:
            activations = activations.contiguous(memory_format=torch.channels_last)
        return activations


def store_activations(
    backbone: ImageBackbone,
    paths: Sequence[str],
    settings: FineTuneSettings,
    scratch: Path,
    cache: Path | None = None,
    team: Team = ALONE,
    note: Callable[[str], None] = lambda line: None,
    counting: Counting = lambda title: nullcontext(lambda done, total: None),
) -> StoredActivations:
    """Return the activations of images, computed unless the cache has them.

    Parameters
    ----------
    backbone : ImageBackbone
        The network, in evaluation mode; its last stages are to be trained.
    paths : sequence of str
        Image files.
    settings : FineTuneSettings
        Number and kind of the views.
    scratch : Path
        Folder for a file that is not to be kept; all of the team see it.
    cache : Path, optional
        Cache folder; not used by a team.
    note, counting : callable, optional
        Receive the size, and the progress.
    """
    early, last, shape = cut(backbone)
    averaged = len(fixed_views(settings))
    n_views = max(settings.views, averaged)
    whole = (len(paths), n_views, *shape)
    n_bytes = 2 * math.prod(whole)
    amount = f"{_amount(n_bytes)} of activations: {len(paths):,} images, {n_views} views"
    kept = None
    if cache is not None and team.size == 1:
        with suppress(OSError):
            (cache / "activations").mkdir(parents=True, exist_ok=True)
            if os.access(cache / "activations", os.W_OK | os.X_OK):
                kept = cache / "activations" / f"{_key(backbone, paths, settings, cache)}.npy"
    if kept is None:
        path = scratch / "activations.npy"
        note(f"{amount}, stored in {scratch}")
        team.first_does(lambda: _make(path, whole, n_bytes))
        with counting("store activations") as progress:
            _fill(path, early, paths, settings, team, progress)
        team.wait()
        return StoredActivations(last, path, averaged)
    for path in kept.parent.glob(f"{kept.stem}-*.npy"):
        if path == _named(kept, path) and _is_whole(path, whole):
            note(f"{amount}, from the cache")
            path.touch()
            return StoredActivations(last, path, averaged)
    note(f"{amount}, stored in {kept.parent}")
    _prune(kept, n_bytes)
    with claimed(kept, lambda aside: _make(aside, whole, n_bytes)) as aside:
        try:
            with counting("store activations") as progress:
                _fill(aside, early, paths, settings, team, progress)
            path = _named(kept, aside)
            os.replace(aside, path)  # noqa: PTH105 - known to be atomic
        finally:
            aside.unlink(missing_ok=True)
    return StoredActivations(last, path, averaged)


def _named(kept: Path, file: Path) -> Path:
    """Return the name of a file of activations, which has the checksum of its content."""
    checksum = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_READ_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return kept.with_name(f"{kept.stem}-{checksum:08x}.npy")


def _fill(
    file: Path,
    early: EarlyStages,
    paths: Sequence[str],
    settings: FineTuneSettings,
    team: Team,
    progress: Progress,
) -> None:
    """Compute this process's images and write them to the file."""
    preprocessing, n_views = early.recipe.preprocessing, np.load(file, mmap_mode="r").shape[1]
    engine = TorchEngine(early, PartialState().device)
    # Not through the map: its pages would count as memory of this process.
    start = int(np.load(file, mmap_mode="r").offset)

    def store(row: int) -> None:
        image = decode_again(paths[row])
        # By what the image shows: the order of the rows must not matter.
        content = zlib.crc32(image.tobytes())
        views = (
            draw_view(number, np.random.default_rng([content, number]), settings)
            for number in range(n_views)
        )
        pixels = [prepare(image, view, preprocessing).permute(1, 2, 0).numpy() for view in views]
        parts = [engine.run(np.stack(some)) for some in chunks(pixels, engine.batch)]
        with np.errstate(over="ignore"):
            stored = np.concatenate(parts).astype(np.float16)
        if not np.isfinite(stored).all():
            name = early.recipe.timm_name
            raise InputError(
                f"--finetune last: activations of {name} exceed float16; take --finetune all"
            )
        with turn:
            stream.seek(start + row * stored.nbytes)
            stream.write(stored.tobytes())

    rows, turn = range(len(paths))[team.rank :: team.size], threading.Lock()
    try:
        with file.open("r+b") as stream:
            with ThreadPoolExecutor(usable_cores()) as workers:
                for done, _ in enumerate(workers.map(store, rows), start=1):
                    progress(done, len(rows))
            stream.flush()
            os.fsync(stream.fileno())
    finally:
        engine.release()


def _key(
    backbone: ImageBackbone, paths: Sequence[str], settings: FineTuneSettings, cache: Path
) -> str:
    """Return a digest of everything that changes the activations."""
    decisive = {
        "version": _VERSION,
        "recipe": backbone.recipe.key,
        "device": PartialState().device.type,
        "colours": VIEW_COLOURS,
        **{
            name: asdict(settings)[name] for name in ("views", "averaged", "crop", "flip", "colour")
        },
    }
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode())
    with FileDigests(cache) as digests:
        known = digests.recall(paths)
    for path, content in zip(paths, known, strict=True):
        digest.update(bytes.fromhex(content or _content_digest(path)))
    return digest.hexdigest()[:32]


def _content_digest(path: str) -> str:
    try:
        return hashlib.sha256(read_content(path)).hexdigest()
    except BrokenImageError as error:
        raise InputError(f"{path}: {error}") from error


def _is_whole(path: Path, shape: tuple[int, ...]) -> bool:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return False
    return bool(found.shape == shape and found.dtype == np.float16)


def _make(path: Path, shape: tuple[int, ...], n_bytes: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < n_bytes:
        raise InputError(
            f"--finetune last: the activations need {_amount(n_bytes)}, but {path.parent} has "
            f"{_amount(free)} left; give another --cache or a smaller --image-size"
        )
    new_array_file(path, np.float16, shape)


def _prune(kept: Path, n_bytes: int) -> None:
    """Remove what killed processes left, and old files until there is room for a new one."""
    sweep(kept.parent)
    with suppress(OSError):
        whole = [path for path in kept.parent.glob("*.npy") if not is_partial(path.name)]
        for path in sorted(whole, key=lambda path: path.stat().st_mtime, reverse=True):
            n_bytes += path.stat().st_size
            if n_bytes > KEPT_BYTES:
                # Processes that have it open keep it.
                path.unlink(missing_ok=True)


def _amount(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{max(1, round(n_bytes / 1e6))} MB"
