"""Images to train a backbone on: as files (`--finetune all`), or as stored activations (`last`).

Activations are those before the last stages of the backbone, computed once per run, for some views
of every image. One float16 ``.npy`` file holds them, (n, views, ...).
"""

from __future__ import annotations

import math
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from opensetda.backbones.engines import TorchEngine
from opensetda.backbones.extraction import chunks, usable_cores
from opensetda.backbones.model import (
    LUMA,
    VIEWS,
    ImageBackbone,
    LastStages,
    Pixels,
    cut,
    load_backbone,
    normalise,
    resize_image,
)
from opensetda.backbones.recipe import Preprocessing, Recipe
from opensetda.context import TrainableImages
from opensetda.data.images.decoding import BrokenImageError, decode_image
from opensetda.errors import InputError, choice
from opensetda.rows import IntArray, release_pages
from opensetda.system.files import new_file
from opensetda.system.processes import this_process
from opensetda.training.settings import FineTuneSettings

_MOST_OBLONG = 4 / 3


class View(NamedTuple):
    """A part of an image, whether it is mirrored, and factors on its colours.

    `height` and `width` are fractions of the image's, `top` and `left` of the space around.
    """

    height: float = 1.0
    width: float = 1.0
    top: float = 0.0
    left: float = 0.0
    mirror: bool = False
    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0

    def of(self, image: Pixels, preprocessing: Preprocessing) -> Tensor:
        """Return the view of a decoded image, 0 to 255, fixed ones as `FixedView`: (3, S, S)."""
        height = max(1, round(self.height * image.shape[0]))
        width = max(1, round(self.width * image.shape[1]))
        top = round(self.top * (image.shape[0] - height))
        left = round(self.left * (image.shape[1] - width))
        part = np.ascontiguousarray(image[top : top + height, left : left + width, :])
        if self.height < 1 or self.width < 1:
            # A crop is squashed to the square, as is usual in training.
            preprocessing = replace(preprocessing, resize="squash")
        resized = resize_image(part, preprocessing)
        resized = resized.flip(2) if self.mirror else resized
        if self.brightness == self.contrast == self.saturation == 1:
            return resized
        pixels = resized.float()
        grey = (torch.tensor(LUMA).view(3, 1, 1) * pixels).sum(dim=0)
        mixed = grey + self.saturation * (pixels - grey)
        mixed = self.brightness * (grey.mean() + self.contrast * (mixed - grey.mean()))
        return mixed.clamp(0, 255)


def draw_view(
    number: int, n_fixed: int, rng: np.random.Generator, settings: FineTuneSettings
) -> View:
    """Draw one of the stored views of an image: the fixed ones, then random ones.

    These are, over and over, of changed colours, grey, and of their own colours.
    """
    if number < n_fixed:
        mirror, grey = VIEWS[number]
        return View(mirror=mirror, saturation=0.0 if grey else 1.0)
    view = random_view(rng, settings)
    kind = (number - n_fixed) % 3
    if kind == 0:
        brightness, contrast, saturation = 1 + settings.colour * (2 * rng.random(3) - 1)
        return view._replace(
            brightness=float(brightness), contrast=float(contrast), saturation=float(saturation)
        )
    return view._replace(saturation=0.0) if kind == 1 and settings.colour else view


def random_view(rng: np.random.Generator, settings: FineTuneSettings) -> View:
    """Draw a part of an image: at least `crop` of its area, of another shape, mirrored or not."""
    area, shape, top, left, mirror = rng.random(5)
    share = settings.crop + (1 - settings.crop) * area
    # Not so oblong that the part would exceed the image.
    most = min(np.log(_MOST_OBLONG), -np.log(share)) if share < 1 else 0.0
    oblong = np.exp(most * (2 * shape - 1) / 2)
    height = min(1.0, np.sqrt(share) * oblong)
    width = min(1.0, np.sqrt(share) / oblong)
    return View(height, width, top, left, bool(settings.flip and mirror < 0.5))


class FineTunedImages:
    """The image files behind feature rows, number i behind row i, and the backbone to fine-tune.

    `TrainableImages` of `opensetda.context`.
    """

    def __init__(
        self, backbone: ImageBackbone, paths: Sequence[str], settings: FineTuneSettings
    ) -> None:
        # Half the time of a training step on a processor; torch's types do not know it.
        self.backbone: nn.Module = backbone.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.settings = settings
        self.averaged = len(backbone.views)
        self.trainable_parameters = backbone.trainable_parameters
        self._image_backbone = backbone
        self._paths = paths
        self._preprocessing = backbone.recipe.preprocessing

    def view(self, rows: IntArray, number: int = 0) -> Tensor:
        """Return images preprocessed as in prediction: (N, 3, S, S)."""
        pixels = self._batch(rows, [View()] * len(rows))
        return self._image_backbone.views[number].of(pixels, self._preprocessing)

    def augmented(self, rows: IntArray, rng: np.random.Generator) -> Tensor:
        """Return random crops of images, mirrored at random: (N, 3, S, S)."""
        # Draw here, in the order of the rows: threads have no order.
        return self._batch(rows, [random_view(rng, self.settings) for _ in rows])

    def _batch(self, rows: IntArray, views: list[View]) -> Tensor:
        def prepared(row: int, view: View) -> Tensor:
            return view.of(decode_again(self._paths[row]), self._preprocessing).contiguous()

        with ThreadPoolExecutor(usable_cores()) as threads:
            batch = torch.stack(list(threads.map(prepared, rows.tolist(), views)))
        return normalise(batch, self._preprocessing).contiguous(memory_format=torch.channels_last)


class StoredActivations:
    """Views of images as activations in a file, and the last stages, which learn from them.

    `TrainableImages` of `opensetda.context`; row i of the file is image i.
    """

    def __init__(
        self, last: LastStages, path: Path, settings: FineTuneSettings, averaged: int
    ) -> None:
        # The layout of weights changes bits.
        self.backbone: nn.Module = last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.trainable_parameters = last.trainable_parameters
        self._store: Any = np.load(path, mmap_mode="r", allow_pickle=False)
        self.settings = settings
        self.averaged = averaged
        self.stored = int(self._store.shape[1])

    def augmented(self, rows: IntArray, rng: np.random.Generator) -> Tensor:
        """Return one of the stored views of each image, drawn at random."""
        return self.view(rows, rng.integers(self.stored, size=len(rows)))

    def view(self, rows: IntArray, number: int | IntArray = 0) -> Tensor:
        """Return stored views, by their number or one number per row: (N, ...)."""
        activations = torch.from_numpy(self._store[rows, number].astype(np.float32))
        release_pages(self._store)
        if activations.ndim == 4:
            activations = activations.contiguous(memory_format=torch.channels_last)
        return activations


def open_images(
    recipe: Recipe,
    paths: Sequence[str],
    settings: FineTuneSettings,
    trained: str,
    scratch: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[ImageBackbone, TrainableImages]:
    """Return a backbone, and the images to train all of it on, or its last stages."""
    backbone = load_backbone(recipe)
    choose_stages(backbone, settings.stages if trained == "all" else "")
    if trained == "all":
        return backbone, FineTunedImages(backbone, paths, settings)
    return backbone, store_activations(backbone, paths, settings, scratch, progress)


def choose_stages(backbone: ImageBackbone, stages: str) -> None:
    """Freeze all but the modules whose names begin with one of `stages`, if any are named."""
    names = tuple(part for part in stages.replace(",", " ").split())
    there = [name for name, _ in backbone.network.named_parameters()]
    for name in names:
        if not any(own.startswith(name) for own in there):
            modules = [own for own, _ in backbone.network.named_children()]
            raise InputError(f"finetune.stages {name!r}: no such module; {choice(name, modules)}")
    if names:
        for own, parameter in backbone.network.named_parameters():
            parameter.requires_grad_(own.startswith(names))
    if not backbone.trainable_parameters():
        name = backbone.recipe.backbone
        raise InputError(f"--finetune: {name} has no parameters to train; leave out --finetune")


def store_activations(
    backbone: ImageBackbone,
    paths: Sequence[str],
    settings: FineTuneSettings,
    scratch: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> StoredActivations:
    """Compute the activations of image files before the last stages, into a file in `scratch`.

    If it is there already, it is of the same images.
    """
    early, last, shape = cut(backbone)
    n_fixed = len(backbone.views)
    n_views = max(settings.stored, n_fixed)
    whole = (len(paths), n_views, *shape)
    file = scratch / "activations.npy"
    if file.exists():
        return StoredActivations(last, file, settings, n_fixed)
    needed = 2e-6 * math.prod(whole)
    free = shutil.disk_usage(scratch).free / 1e6
    if free < needed:
        raise InputError(
            f"--finetune last: the activations need {needed:,.1f} MB, but {scratch} has "
            f"{free:,.1f} MB left; choose another --out or a smaller --image-size"
        )
    engine = TorchEngine(early, this_process().device)
    how = early.recipe.preprocessing

    def compute(path: str) -> bytes:
        image = decode_again(path)
        # By what the image shows: the order of the rows must not matter.
        seeds = ([zlib.crc32(image.tobytes()), number] for number in range(n_views))
        views = (
            draw_view(seed[1], n_fixed, np.random.default_rng(seed), settings) for seed in seeds
        )
        pixels = [view.of(image, how).permute(1, 2, 0).numpy() for view in views]
        parts = [engine.run(np.stack(some)) for some in chunks(pixels, engine.batch)]
        with np.errstate(over="ignore"):
            found = np.concatenate(parts).astype(np.float16)
        if not np.isfinite(found).all():
            problem = f"activations of {early.recipe.timm_name} exceed float16"
            raise InputError(f"--finetune last: {problem}; take --finetune all")
        return found.tobytes()

    # Another process may store the same.
    own = file.with_suffix(f".{os.getpid()}")
    header = {"descr": "<f2", "fortran_order": False}
    try:
        with new_file(own) as aside, aside.open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, {**header, "shape": whole})
            with ThreadPoolExecutor(usable_cores()) as workers:
                for done, content in enumerate(workers.map(compute, paths), start=1):
                    stream.write(content)
                    progress(done, len(paths))
    finally:
        engine.release()
    own.replace(file)
    return StoredActivations(last, file, settings, n_fixed)


def decode_again(path: str) -> Pixels:
    """Decode an image whose features exist already; an `InputError` if it has gone since."""
    try:
        return decode_image(path)
    except BrokenImageError as error:
        problem = f"readable when the run began, but not any more ({error})"
        raise InputError(f"{path}: {problem}") from error
