"""Activations before the last stages of a backbone, on disk: what `--finetune last` trains on.

They are computed once per run, for some views of every image, image by image on one core each, so
that they depend on nothing but the image. One float16 ``.npy`` file holds them, (n, views, ...).
"""

from __future__ import annotations

import math
import shutil
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor, nn

from opensetda.backbones.engines import TorchEngine
from opensetda.backbones.extractor import chunks, usable_cores
from opensetda.backbones.model import ImageBackbone
from opensetda.backbones.stages import LastStages, cut
from opensetda.errors import InputError
from opensetda.finetuning.images import decode_again, draw_view, fixed_views
from opensetda.finetuning.settings import FineTuneSettings
from opensetda.rows import IntArray, release_pages

Progress = Callable[[int, int], None]
Counting = Callable[[str], AbstractContextManager[Progress]]


class StoredActivations:
    """Views of images as activations in a file, and the last stages, which learn from them.

    `TrainableImages` of `opensetda.context`; row i of the file is image i.
    """

    def __init__(self, last: LastStages, path: Path, settings: FineTuneSettings) -> None:
        # The layout of weights changes bits.
        self.backbone: nn.Module = last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._last = last
        self._store: Any = np.load(path, mmap_mode="r", allow_pickle=False)
        self.settings, self.averaged = settings, len(fixed_views(settings))
        self.views = int(self._store.shape[1])

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters to train."""
        return self._last.trainable_parameters()

    def augmented(self, rows: IntArray, rng: np.random.Generator) -> Tensor:
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
    note: Callable[[str], None] = lambda line: None,
    counting: Counting = lambda title: nullcontext(lambda done, total: None),
) -> StoredActivations:
    """Compute the activations of image files before the last stages of a backbone.

    They go into a file in `scratch`; `note` receives its size, `counting` the progress.
    """
    early, last, shape = cut(backbone)
    n_views = max(settings.views, len(fixed_views(settings)))
    whole = (len(paths), n_views, *shape)
    needed, free = 2 * math.prod(whole), shutil.disk_usage(scratch).free
    if free < needed:
        raise InputError(
            f"--finetune last: the activations need {_amount(needed)}, but {scratch} has "
            f"{_amount(free)} left; choose another --out or a smaller --image-size"
        )
    images = f"{len(paths):,} images, {n_views} views"
    note(f"{_amount(needed)} of activations: {images}, stored in {scratch}")
    engine, how = TorchEngine(early, PartialState().device), early.recipe.preprocessing

    def compute(path: str) -> bytes:
        image = decode_again(path)
        # By what the image shows: the order of the rows must not matter.
        seeds = ([zlib.crc32(image.tobytes()), number] for number in range(n_views))
        views = (draw_view(seed[1], np.random.default_rng(seed), settings) for seed in seeds)
        pixels = [view.of(image, how).permute(1, 2, 0).numpy() for view in views]
        parts = [engine.run(np.stack(some)) for some in chunks(pixels, engine.batch)]
        with np.errstate(over="ignore"):
            found = np.concatenate(parts).astype(np.float16)
        if not np.isfinite(found).all():
            name = early.recipe.timm_name
            raise InputError(
                f"--finetune last: activations of {name} exceed float16; take --finetune all"
            )
        return found.tobytes()

    file, header = scratch / "activations.npy", {"descr": "<f2", "fortran_order": False}
    try:
        with (
            file.open("wb") as stream,
            ThreadPoolExecutor(usable_cores()) as workers,
            counting("store activations") as progress,
        ):
            np.lib.format.write_array_header_1_0(stream, {**header, "shape": whole})
            for done, content in enumerate(workers.map(compute, paths), start=1):
                stream.write(content)
                progress(done, len(paths))
    finally:
        engine.release()
    return StoredActivations(last, file, settings)


def _amount(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{max(1, round(n_bytes / 1e6))} MB"
