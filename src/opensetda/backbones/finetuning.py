"""Images for fine-tuning a backbone: decoded once if they fit in memory, and augmented."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from opensetda.backbones.model import ImageBackbone, Pixels, normalise, resize_image
from opensetda.backbones.recipe import Preprocessing
from opensetda.data.images.decoding import BrokenImageError, decode_image
from opensetda.errors import InputError
from opensetda.nn.settings import FineTuneSettings
from opensetda.rows import IntArray

KEPT_BYTES = 2**30  # memory for decoded images; the others are decoded whenever they are needed
_MOST_OBLONG = 4 / 3


class FineTunedImages:
    """The image files behind feature rows, number i behind row i, and the backbone to fine-tune."""

    def __init__(self, backbone: ImageBackbone, paths: Sequence[str]) -> None:
        # Half the time of a training step on a processor; torch's types do not know it.
        self.backbone: nn.Module = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.preprocessing = backbone.recipe.preprocessing
        self._image_backbone = backbone
        self._paths = paths
        self._kept: dict[int, Pixels] = {}
        self._room = KEPT_BYTES

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters to train."""
        return self._image_backbone.trainable_parameters()

    def pixels(self, rows: IntArray) -> Tensor:
        """Return images preprocessed as in prediction: (N, 3, S, S)."""
        return self._batch(rows, self.preprocessing, None)

    def augmented(
        self, rows: IntArray, rng: np.random.Generator, settings: FineTuneSettings
    ) -> Tensor:
        """Return random crops of images, mirrored at random: (N, 3, S, S)."""
        # Draw here, in the order of the rows: threads have no order.
        views = [random_view(rng, settings) for _ in rows]
        # A crop is squashed to the square, as is usual in training.
        squashed = replace(self.preprocessing, resize="squash")
        return self._batch(rows, self.preprocessing if settings.crop == 1 else squashed, views)

    def _batch(self, rows: IntArray, how: Preprocessing, views: list[View] | None) -> Tensor:
        with ThreadPoolExecutor(2) as threads:
            decoded = list(threads.map(self._decoded, rows.tolist()))
            if views is not None:
                decoded = [view.of(image) for view, image in zip(views, decoded, strict=True)]
            resized = list(threads.map(resize_image, decoded, repeat(how)))
        batch = torch.stack([image.contiguous() for image in resized])
        return normalise(batch, self.preprocessing).contiguous(memory_format=torch.channels_last)

    def _decoded(self, row: int) -> Pixels:
        if row in self._kept:
            return self._kept[row]
        try:
            pixels = decode_image(self._paths[row])
        except BrokenImageError as error:
            problem = f"readable when the run began, but not any more ({error})"
            raise InputError(f"{self._paths[row]}: {problem}") from error
        if pixels.nbytes <= self._room:
            self._room -= pixels.nbytes
            self._kept[row] = pixels
        return pixels


class View(NamedTuple):
    """A part of an image, and whether it is mirrored.

    `height` and `width` are fractions of the image's, `top` and `left` of the space around.
    """

    height: float
    width: float
    top: float
    left: float
    mirror: bool

    def of(self, image: Pixels) -> Pixels:
        """Cut the part out: (H, W, 3) -> (h, w, 3)."""
        height = max(1, round(self.height * image.shape[0]))
        width = max(1, round(self.width * image.shape[1]))
        top = round(self.top * (image.shape[0] - height))
        left = round(self.left * (image.shape[1] - width))
        part = image[top : top + height, left : left + width]
        return np.ascontiguousarray(part[:, ::-1] if self.mirror else part)


def random_view(rng: np.random.Generator, settings: FineTuneSettings) -> View:
    """Draw a part of an image: at least `crop` of its area, of another shape, mirrored or not."""
    area, shape, top, left, mirror = rng.random(5)
    share = settings.crop + (1 - settings.crop) * area
    # Not so oblong that the part would exceed the image.
    most = min(np.log(_MOST_OBLONG), -np.log(share)) if share < 1 else 0.0
    oblong = np.exp(most * (2 * shape - 1) / 2)
    height, width = min(1.0, np.sqrt(share) * oblong), min(1.0, np.sqrt(share) / oblong)
    return View(height, width, top, left, bool(settings.flip and mirror < 0.5))
