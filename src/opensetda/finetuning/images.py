"""Images for fine-tuning a backbone: their fixed views, and random ones for training."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from opensetda.backbones.extractor import usable_cores
from opensetda.backbones.model import (
    LUMA,
    FixedView,
    ImageBackbone,
    Pixels,
    normalise,
    resize_image,
)
from opensetda.backbones.recipe import Preprocessing
from opensetda.data.images.decoding import BrokenImageError, decode_image
from opensetda.errors import InputError
from opensetda.finetuning.settings import FineTuneSettings
from opensetda.rows import IntArray

_MOST_OBLONG = 4 / 3


class FineTunedImages:
    """The image files behind feature rows, number i behind row i, and the backbone to fine-tune."""

    def __init__(
        self, backbone: ImageBackbone, paths: Sequence[str], settings: FineTuneSettings
    ) -> None:
        # Half the time of a training step on a processor; torch's types do not know it.
        self.backbone: nn.Module = backbone.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.settings, self.averaged = settings, len(backbone.views)
        self._image_backbone, self._paths = backbone, paths
        self._preprocessing = backbone.recipe.preprocessing

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters to train."""
        return self._image_backbone.trainable_parameters()

    def view(self, rows: IntArray, number: int = 0) -> Tensor:
        """Return images preprocessed as in prediction: (N, 3, S, S)."""
        pixels = self._batch(rows, [WHOLE] * len(rows))
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


def decode_again(path: str) -> Pixels:
    """Decode an image whose features exist already; an `InputError` if it has gone since."""
    try:
        return decode_image(path)
    except BrokenImageError as error:
        problem = f"readable when the run began, but not any more ({error})"
        raise InputError(f"{path}: {problem}") from error


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
        """Return the view of a decoded image for the network: (3, S, S) of uint8."""
        height = max(1, round(self.height * image.shape[0]))
        width = max(1, round(self.width * image.shape[1]))
        top = round(self.top * (image.shape[0] - height))
        left = round(self.left * (image.shape[1] - width))
        part = image[top : top + height, left : left + width, :]
        part = np.ascontiguousarray(part[:, ::-1] if self.mirror else part)
        if self.height < 1 or self.width < 1:
            # A crop is squashed to the square, as is usual in training.
            preprocessing = replace(preprocessing, resize="squash")
        resized = resize_image(part, preprocessing)
        if self.brightness == self.contrast == self.saturation == 1:
            return resized
        pixels = resized.float()
        grey = (torch.tensor(LUMA).view(3, 1, 1) * pixels).sum(dim=0)
        mixed = grey + self.saturation * (pixels - grey)
        mixed = self.brightness * (grey.mean() + self.contrast * (mixed - grey.mean()))
        return mixed.round().clamp(0, 255).to(torch.uint8)


WHOLE = View()


def fixed_views(settings: FineTuneSettings) -> tuple[FixedView, ...]:
    """Return the views of an image whose features are averaged."""
    mirrored = (False, True) if settings.flip else (False,)
    colourless = (False, True) if settings.colour else (False,)
    views = [FixedView(mirror, grey) for grey in colourless for mirror in mirrored]
    return tuple(views[: settings.averaged])


def draw_view(number: int, rng: np.random.Generator, settings: FineTuneSettings) -> View:
    """Draw one of the stored views of an image: the fixed ones, then random ones.

    These are, over and over, of changed colours, grey, and of their own colours.
    """
    fixed = fixed_views(settings)
    if number < len(fixed):
        mirror, grey = fixed[number]
        return View(mirror=mirror, saturation=0.0 if grey else 1.0)
    view, kind = random_view(rng, settings), (number - len(fixed)) % 3
    if kind == 0:
        return View(*view[:5], *(1 + settings.colour * (2 * rng.random(3) - 1)).tolist())
    return view._replace(saturation=0.0) if kind == 1 and settings.colour else view


def random_view(rng: np.random.Generator, settings: FineTuneSettings) -> View:
    """Draw a part of an image: at least `crop` of its area, of another shape, mirrored or not."""
    area, shape, top, left, mirror = rng.random(5)
    share = settings.crop + (1 - settings.crop) * area
    # Not so oblong that the part would exceed the image.
    most = min(np.log(_MOST_OBLONG), -np.log(share)) if share < 1 else 0.0
    oblong = np.exp(most * (2 * shape - 1) / 2)
    height, width = min(1.0, np.sqrt(share) * oblong), min(1.0, np.sqrt(share) / oblong)
    return View(height, width, top, left, bool(settings.flip and mirror < 0.5))
