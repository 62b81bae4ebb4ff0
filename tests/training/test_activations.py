"""Stored activations: views of images, computed once per run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from backbone_helpers import tiny_backbone
from opensetda.errors import InputError
from opensetda.training import images as activations
from opensetda.training.images import FineTunedImages, store_activations
from opensetda.training.settings import FineTuneSettings

SIZE, N = 32, 5
ROWS = np.arange(N)


@pytest.fixture(scope="module")
def backbone():
    return tiny_backbone("test_efficientnet", SIZE, views=4)


@pytest.fixture
def paths(tmp_path):
    rng = np.random.default_rng(0)
    names = [str(tmp_path / f"{number}.png") for number in range(N)]
    for name in names:
        small = rng.integers(0, 256, (4, 6, 3)).astype(np.uint8)
        Image.fromarray(small).resize((60, 40)).save(name)
    return names


@pytest.fixture
def store(backbone, paths, tmp_path):
    """Store the activations of the images."""

    def run(paths=paths):
        scratch = tmp_path / str(len([*tmp_path.iterdir()]))
        scratch.mkdir()
        return store_activations(backbone, paths, FineTuneSettings(), scratch)

    return run


def test_the_plain_view_has_the_features_of_prediction(store, backbone, paths):
    stored, images = store(), FineTunedImages(backbone, paths, FineTuneSettings())
    with torch.no_grad():
        features = backbone.network(images.view(ROWS))
        found = stored.backbone(stored.view(ROWS))
    assert (found - features).norm() < 1e-2 * features.norm()
    assert not torch.equal(found, features)  # rounded to 16 bits


def test_views_are_drawn_by_image_and_number_alone(store, paths):
    stored = store()
    assert (stored.stored, stored.averaged) == (6, 4)
    views = [stored.view(ROWS, number) for number in range(stored.stored)]
    assert not any(torch.equal(views[0], view) for view in views[1:])
    one, other = (stored.augmented(ROWS, np.random.default_rng(7)) for _ in range(2))
    assert torch.equal(one, other)
    numbers = np.random.default_rng(7).integers(6, size=N)
    assert torch.equal(one, torch.stack([views[n][row] for row, n in enumerate(numbers)]))
    # The same for fewer images.
    alone = store(paths=paths[:2])
    assert torch.equal(alone.view(ROWS[:2], 5), views[5][:2])
    # The order of the images has no effect.
    backwards = store(paths=paths[::-1])
    assert torch.equal(backwards.view(ROWS[::-1].copy(), 5), views[5])


def test_a_full_disk_is_said_before(store, monkeypatch):
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(activations.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"^--finetune last: the activations need \d\.\d MB, but"):
        store()


def test_activations_that_16_bits_cannot_hold(store, monkeypatch):
    run = activations.TorchEngine.run
    monkeypatch.setattr(
        activations.TorchEngine, "run", lambda self, images: 1e6 + run(self, images)
    )
    with pytest.raises(InputError, match="exceed float16; take --finetune all"):
        store()


def test_an_image_that_is_gone_is_named(store, paths):
    with pytest.raises(InputError, match=r"gone\.jpg: readable when the run began"):
        store(paths=[*paths, "gone.jpg"])
