"""Images for fine-tuning a backbone: decoded once if they fit in memory, and augmented."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

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
from opensetda.nn.settings import FineTuneSettings
from opensetda.rows import IntArray

KEPT_BYTES = 2**30  # memory for decoded images; the others are decoded whenever they are needed
_MOST_OBLONG = 4 / 3

Colours = Literal["kept", "grey", "changed"]
# What becomes of the colours in the random views of an image, over and over.
VIEW_COLOURS: tuple[Colours, ...] = ("changed", "grey", "kept")


class FineTunedImages:
    """The image files behind feature rows, number i behind row i, and the backbone to fine-tune."""

    def __init__(self, backbone: ImageBackbone, paths: Sequence[str]) -> None:
        # Half the time of a training step on a processor; torch's types do not know it.
        self.backbone: nn.Module = backbone.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.averaged = len(backbone.views)
        self.preprocessing = backbone.recipe.preprocessing
        self._image_backbone = backbone
        self._paths = paths
        self._kept: dict[int, Pixels] = {}
        self._room = KEPT_BYTES

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters to train."""
        return self._image_backbone.trainable_parameters()

    def view(self, rows: IntArray, number: int = 0) -> Tensor:
        """Return images preprocessed as in prediction: (N, 3, S, S)."""
        pixels = self._batch(rows, [WHOLE] * len(rows))
        return self._image_backbone.views[number].of(pixels, self.preprocessing)

    def augmented(
        self, rows: IntArray, rng: np.random.Generator, settings: FineTuneSettings
    ) -> Tensor:
        """Return random crops of images, mirrored at random: (N, 3, S, S)."""
        # Draw here, in the order of the rows: threads have no order.
        return self._batch(rows, [random_view(rng, settings) for _ in rows])

    def _batch(self, rows: IntArray, views: list[View]) -> Tensor:
        with ThreadPoolExecutor(2) as threads:
            decoded = list(threads.map(self._decoded, rows.tolist()))
            prepared = list(threads.map(prepare, decoded, views, repeat(self.preprocessing)))
        batch = torch.stack([image.contiguous() for image in prepared])
        return normalise(batch, self.preprocessing).contiguous(memory_format=torch.channels_last)

    def _decoded(self, row: int) -> Pixels:
        if row in self._kept:
            return self._kept[row]
        pixels = decode_again(self._paths[row])
        if pixels.nbytes <= self._room:
            self._room -= pixels.nbytes
            self._kept[row] = pixels
        return pixels


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

    height: float
    width: float
    top: float
    left: float
    mirror: bool
    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0

    def of(self, image: Pixels) -> Pixels:
        """Cut the part out: (H, W, 3) -> (h, w, 3)."""
        height = max(1, round(self.height * image.shape[0]))
        width = max(1, round(self.width * image.shape[1]))
        top = round(self.top * (image.shape[0] - height))
        left = round(self.left * (image.shape[1] - width))
        part = image[top : top + height, left : left + width]
        return np.ascontiguousarray(part[:, ::-1] if self.mirror else part)

    def coloured(self, image: Tensor) -> Tensor:
        """Change the colours of uint8 pixels, (3, S, S)."""
        if self.brightness == self.contrast == self.saturation == 1:
            return image
        pixels = image.float()
        grey = (torch.tensor(LUMA).view(3, 1, 1) * pixels).sum(dim=0)
        mixed = grey + self.saturation * (pixels - grey)
        mixed = self.brightness * (grey.mean() + self.contrast * (mixed - grey.mean()))
        return mixed.round().clamp(0, 255).to(torch.uint8)


WHOLE = View(1.0, 1.0, 0.0, 0.0, mirror=False)


def prepare(image: Pixels, view: View, preprocessing: Preprocessing) -> Tensor:
    """Return the view of a decoded image for the network: (3, S, S) of uint8."""
    is_whole = view.height == view.width == 1
    # A crop is squashed to the square, as is usual in training.
    how = preprocessing if is_whole else replace(preprocessing, resize="squash")
    return view.coloured(resize_image(view.of(image), how))


def fixed_views(settings: FineTuneSettings) -> tuple[FixedView, ...]:
    """Return the views of an image whose features are averaged."""
    mirrored = (False, True) if settings.flip else (False,)
    colourless = (False, True) if settings.colour else (False,)
    views = [FixedView(mirror, grey) for grey in colourless for mirror in mirrored]
    return tuple(views[: settings.averaged])


def draw_view(number: int, rng: np.random.Generator, settings: FineTuneSettings) -> View:
    """Draw one of the stored views of an image: the fixed ones, then random ones."""
    fixed = fixed_views(settings)
    if number < len(fixed):
        mirror, grey = fixed[number]
        return WHOLE._replace(mirror=mirror, saturation=0.0 if grey else 1.0)
    view, changes = random_view(rng, settings), 2 * rng.random(3) - 1
    colours = VIEW_COLOURS[(number - len(fixed)) % len(VIEW_COLOURS)]
    if colours == "kept" or not settings.colour:
        return view
    if colours == "grey":
        return view._replace(saturation=0.0)
    names = ("brightness", "contrast", "saturation")
    return view._replace(**dict(zip(names, 1 + settings.colour * changes, strict=True)))


def random_view(rng: np.random.Generator, settings: FineTuneSettings) -> View:
    """Draw a part of an image: at least `crop` of its area, of another shape, mirrored or not."""
    area, shape, top, left, mirror = rng.random(5)
    share = settings.crop + (1 - settings.crop) * area
    # Not so oblong that the part would exceed the image.
    most = min(np.log(_MOST_OBLONG), -np.log(share)) if share < 1 else 0.0
    oblong = np.exp(most * (2 * shape - 1) / 2)
    height, width = min(1.0, np.sqrt(share) * oblong), min(1.0, np.sqrt(share) / oblong)
    return View(height, width, top, left, bool(settings.flip and mirror < 0.5))
