"""What the tests of feature extraction share: a tiny network, images, and one run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from backbone_helpers import TINY, tiny_state
from opensetda.backbones.extraction import Extraction, FeatureCache, extract
from opensetda.backbones.model import load_backbone, normalise, resize_image
from opensetda.backbones.recipe import Preprocessing, Recipe
from opensetda.backbones.registry import resolve
from opensetda.data.images.decoding import decode_image


def make_recipe(folder: Path, name: str = TINY) -> Recipe:
    path = folder / f"{name.partition(':')[2]}.safetensors"
    save_file(tiny_state(name), path)
    return resolve(name, path, size=32)


def make_images(folder: Path, n: int) -> list[str]:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    paths = []
    for number in range(n):
        # Smooth, so that JPEG keeps it; different, so that rows in the wrong order are found.
        small = rng.integers(0, 256, (4, 5, 3)).astype(np.uint8)
        path = folder / f"{number:03}.{'jpg' if number % 2 else 'png'}"
        Image.fromarray(small).resize((50, 40)).save(path)
        paths.append(str(path))
    return paths


def load_image(path: str | Path, preprocessing: Preprocessing) -> torch.Tensor:
    return resize_image(decode_image(path), preprocessing)


def eager(recipe: Recipe, paths: list[str]) -> np.ndarray:
    images = torch.stack([load_image(path, recipe.preprocessing) for path in paths])
    with torch.no_grad():
        return load_backbone(recipe)(normalise(images, recipe.preprocessing)).numpy()


def run(recipe: Recipe, paths: list[str], folder: Path | None, **options: object) -> Extraction:
    if folder is None:
        return extract(recipe, paths, paths, **options)
    with FeatureCache(folder, recipe.key, recipe.width) as cache:
        return extract(recipe, paths, paths, cache, **options)
