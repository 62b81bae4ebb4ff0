"""Images for a backbone that learns: whole, and changed at random."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from backbone_helpers import tiny_backbone
from extraction_helpers import load_image
from opensetda.backbones.model import VIEWS, FixedView, normalise
from opensetda.backbones.registry import resolve
from opensetda.training.images import FineTunedImages, View, draw_view, random_view
from opensetda.training.settings import FineTuneSettings

SIZE = 32
ROWS = np.arange(3)


class Backbone(nn.Module):
    """Has a recipe, as the images want it, and nothing to learn."""

    recipe = resolve(size=SIZE)
    views = (FixedView(), FixedView(mirror=True), FixedView(grey=True))

    def __init__(self):
        super().__init__()
        self.network = nn.Identity()

    def trainable_parameters(self):
        return []


@pytest.fixture
def paths(tmp_path):
    rng = np.random.default_rng(0)
    names = [str(tmp_path / name) for name in ("a.jpg", "b.png", "c.jpg")]
    for name in names:
        small = rng.integers(0, 256, (4, 6, 3)).astype(np.uint8)
        Image.fromarray(small).resize((60, 40)).save(name)
    return names


@pytest.fixture
def images(paths):
    return FineTunedImages(Backbone(), paths, FineTuneSettings())


def test_pixels_are_those_of_prediction(images, paths):
    how = Backbone.recipe.preprocessing
    expected = normalise(torch.stack([load_image(path, how) for path in paths]), how)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(images.view(ROWS), expected)
        assert torch.equal(images.view(ROWS[::-1]), expected.flip(0))


def test_crops_are_drawn_by_the_generator_alone(images):
    images.settings = FineTuneSettings(crop=0.5)
    one, other, third = (images.augmented(ROWS, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert one.shape == (3, 3, SIZE, SIZE)
    assert torch.equal(one, other)
    assert not torch.equal(one, third)


@pytest.mark.parametrize("crop", [0.01, 0.5, 0.99, 1.0])
def test_views_lie_within_the_image_and_are_large_enough(crop):
    rng, settings = np.random.default_rng(0), FineTuneSettings(crop=crop)
    for _ in range(200):
        height, width, top, left, *_ = random_view(rng, settings)
        assert crop - 0.01 <= height * width <= 1
        assert max(height, width) <= 1
        assert 0 <= min(top, left) <= max(top, left) <= 1
        assert 3 / 4 - 0.02 <= height / width <= 4 / 3 + 0.02


def test_kinds_of_views():
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
    settings, how = FineTuneSettings(), tiny_backbone("odd", SIZE, torch.nn.Identity()).recipe
    rng = np.random.default_rng(0)
    assert draw_view(0, 4, rng, settings) == View()
    seen = [draw_view(n, 4, rng, settings).of(image, how.preprocessing) for n in range(8)]
    assert {view.shape for view in seen} == {(3, SIZE, SIZE)}
    for view, of_prediction in zip(seen, VIEWS, strict=False):
        one, whole = (normalise(pixels, how.preprocessing) for pixels in (view, seen[0]))
        torch.testing.assert_close(one, of_prediction.of(whole[None], how.preprocessing)[0])
    grey = [bool((view.float().std(dim=0) <= 1).all()) for view in seen]
    assert grey == [False, False, True, True, False, True, False, False]
    still = FineTuneSettings(colour=0.0)
    views = [draw_view(number, 1, rng, still) for number in range(1, 4)]
    assert {view[5:] for view in views} == {(1.0, 1.0, 1.0)}
