"""Backbones by name: recipes, weights that must fit, and a network that sees what is there."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from backbone_helpers import TINY, VIT, tiny_state
from extraction_helpers import load_image
from opensetda.backbones.model import (
    FixedView,
    ImageBackbone,
    load_backbone,
    normalise,
    resize_image,
)
from opensetda.backbones.networks import (
    ask_timm,
    build_network,
    load_state,
    read_state,
    rename_in_order,
)
from opensetda.backbones.recipe import Preprocessing, Recipe
from opensetda.backbones.registry import (
    BACKBONES,
    DEFAULT_BACKBONE,
    EMBEDDED,
    find_weights,
    resolve,
)
from opensetda.errors import InputError


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.safetensors"
    save_file(tiny_state(), path)
    return path


class TestRecipe:
    RECIPE = resolve()

    def test_survives_json(self):
        text = json.dumps(self.RECIPE.to_dict())
        assert Recipe.from_dict(json.loads(text)) == self.RECIPE

    @pytest.mark.parametrize(
        "change",
        [
            {"timm_name": "resnet50.tv_in1k"},
            {"weights_sha256": "0" * 64},
            {"width": 5},
            {"timm_version": "0"},
            {"preprocessing": dataclasses.replace(RECIPE.preprocessing, resize="crop")},
            {"preprocessing": dataclasses.replace(RECIPE.preprocessing, mean=(0.0, 0.5, 0.5))},
        ],
    )
    def test_key_changes_with_all_that_decides_a_feature(self, change):
        assert dataclasses.replace(self.RECIPE, **change).key != self.RECIPE.key

    @pytest.mark.parametrize(
        "damage",
        [
            {"width": "1280"},
            {"width": True},
            {"weights": None},
            {"preprocessing": []},
            {"preprocessing": {"size": 224}},
            {"surplus": 1},
            {"preprocessing": {**RECIPE.to_dict()["preprocessing"], "size": 0}},
            {"preprocessing": {**RECIPE.to_dict()["preprocessing"], "std": [0, 1, 1]}},
            {"preprocessing": {**RECIPE.to_dict()["preprocessing"], "mean": [1, 2]}},
        ],
    )
    def test_damage_is_found(self, damage):
        with pytest.raises(InputError):
            Recipe.from_dict({**self.RECIPE.to_dict(), **damage})


class TestRegistry:
    @pytest.mark.parametrize("name", BACKBONES)
    def test_facts_agree_with_timm(self, name):
        spec = BACKBONES[name]
        published = ask_timm(spec.timm_name, 224)
        assert spec.width == published.width
        assert spec.hub == published.hub
        assert published.hub_file is None
        assert spec.preprocessing.interpolation == published.preprocessing.interpolation
        if not spec.embedded:
            assert spec.preprocessing.mean == published.preprocessing.mean
            assert spec.preprocessing.std == published.preprocessing.std

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("resnet5", "did you mean 'resnet50'"),
            ("nonsense", "timm:NAME"),
            ("timm:restnet50", "did you mean timm:resnet50"),
            ("timm:resnet50.nonsense", "tv_in1k"),
        ],
    )
    def test_unknown_names_get_a_hint(self, name, hint):
        with pytest.raises(InputError, match=hint):
            resolve(name)

    @pytest.mark.parametrize(("name", "size"), [("dinov2-small", 225), ("resnet50", 8)])
    def test_sizes_that_cannot_work_are_refused(self, name, size):
        with pytest.raises(InputError, match=f"--image-size {size}"):
            resolve(name, size=size)

    def test_size_of_another_network_is_tried_out(self, tmp_path):
        path = tmp_path / "vit.safetensors"
        save_file(tiny_state(VIT), path)
        with pytest.raises(InputError, match="--image-size"):
            resolve(VIT, path, size=33)
        assert resolve(VIT, path, size=64).preprocessing.size == 64

    def test_size_scales_the_crop(self, weights):
        usual, large = resolve(TINY, weights), resolve(TINY, weights, size=320)
        assert large.preprocessing.size == 2 * usual.preprocessing.size
        assert large.preprocessing.shorter_side == 2 * usual.preprocessing.shorter_side
        assert large.key != usual.key


class TestModel:
    def test_only_the_connected_layers_of_vgg_train(self):
        with torch.device("meta"):
            network = build_network("vgg19.tv_in1k", 224)
        backbone = ImageBackbone(network, resolve())
        names = {n for n, p in backbone.named_parameters() if p.requires_grad}
        assert names == {f"network.pre_logits.fc{i}.{p}" for i in "12" for p in ("weight", "bias")}
        assert len(backbone.trainable_parameters()) == 4

    def test_fine_tuned_state_takes_the_place_of_the_weights(self, weights):
        recipe = resolve(TINY, weights)
        tuned = {n: v * 1.5 for n, v in load_backbone(recipe).state_dict().items()}
        weights.unlink()
        again = load_backbone(recipe, tuned)
        assert all(torch.equal(v, tuned[n]) for n, v in again.state_dict().items())

    def test_features_are_the_mean_over_the_views(self, weights):
        backbone = load_backbone(resolve(TINY, weights))
        images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        backbone.views = (FixedView(), FixedView(mirror=True), FixedView(grey=True))
        how = backbone.recipe.preprocessing
        grey = FixedView(grey=True).of(images, how)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (how.mean, how.std))
        brightness = (grey * std + mean).flatten(2)
        torch.testing.assert_close(brightness[:, 0], brightness[:, 2])
        torch.testing.assert_close(FixedView(grey=True).of(grey, how), grey)
        with torch.inference_mode():
            expected = sum(map(backbone.network, (images, images.flip(3), grey))) / 3
            torch.testing.assert_close(backbone(images), expected)
            again = load_backbone(backbone.recipe, backbone.saved_state())
            torch.testing.assert_close(again(images), expected)
        assert again.views == backbone.views


class TestPreprocessing:
    CROP = Preprocessing(32, "crop", 40, "bilinear", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    SQUASH = Preprocessing(32, "squash", 32, "bicubic", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))

    @pytest.mark.parametrize("shape", [(50, 80), (80, 50), (32, 32), (1, 1), (3, 20000), (7, 3)])
    @pytest.mark.parametrize("preprocessing", [CROP, SQUASH], ids=["crop", "squash"])
    def test_every_shape_becomes_the_square(self, preprocessing, shape):
        pixels = np.full((*shape, 3), 200, dtype=np.uint8)
        image = resize_image(pixels, preprocessing)
        assert image.shape == (3, 32, 32)
        assert image.dtype == torch.uint8
        assert image.eq(200).all()

    def test_crop_takes_the_middle_and_squash_the_whole(self):
        pixels = np.zeros((40, 120, 3), dtype=np.uint8)
        pixels[:, 40:80] = 255
        assert resize_image(pixels, self.CROP).eq(255).all()
        squashed = resize_image(pixels, self.SQUASH)[0, 16]
        assert squashed[0] == 0
        assert squashed[16] == 255

    def test_pillow_resizes(self):
        pixels = np.random.default_rng(0).integers(0, 256, (90, 70, 3)).astype(np.uint8)
        pillow = Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC)
        ours = resize_image(pixels, self.SQUASH).permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(ours, np.asarray(pillow))


def photographs() -> dict[str, tuple[Path, set[int]]]:
    import skimage.data
    import sklearn.datasets

    skimage_files = Path(skimage.data.__file__).parent
    sklearn_files = Path(sklearn.datasets.__file__).parent / "images"
    return {
        "cat": (skimage_files / "chelsea.png", {281, 282, 283, 284, 285}),
        "coffee": (skimage_files / "coffee.png", {967, 968, 504}),
        "rocket": (skimage_files / "rocket.jpg", {657, 744}),
        "temple": (sklearn_files / "china.jpg", {663, 698}),
        "flower": (sklearn_files / "flower.jpg", {985}),
    }


@pytest.fixture(scope="module")
def classifier() -> nn.Module:
    spec = BACKBONES[DEFAULT_BACKBONE]
    path, _ = find_weights(DEFAULT_BACKBONE, spec, EMBEDDED)
    network = build_network(spec.timm_name, spec.preprocessing.size, n_classes=1000)
    load_state(network, rename_in_order(read_state(path), network.state_dict(), path), path)
    return network.eval()


@pytest.mark.parametrize("name", ["cat", "coffee", "rocket", "temple", "flower"])
def test_the_embedded_network_recognises_photographs(name, classifier):
    path, classes = photographs()[name]
    preprocessing = resolve().preprocessing
    with torch.no_grad():
        image = normalise(load_image(path, preprocessing).unsqueeze(0), preprocessing)
        best = classifier(image)[0].topk(5).indices.tolist()
    assert classes & set(best), best


def test_features_of_the_shared_benchmark_are_reproduced():
    data = Path(__file__).resolve().parents[3] / "shared" / "data"
    if not data.is_dir():
        pytest.skip("needs the Office-31 images and features beside the project")
    recipe = resolve()
    backbone = load_backbone(recipe)
    with np.load(data / "office31-features" / "efficientnet-lite0" / "webcam.npz") as file:
        rows = slice(0, 795, 100)
        paths, expected = file["paths"][rows], torch.from_numpy(file["X"][rows])
    images = torch.stack([load_image(data / "office31" / p, recipe.preprocessing) for p in paths])
    with torch.no_grad():
        features = backbone(normalise(images, recipe.preprocessing))
    assert torch.cosine_similarity(features, expected).min() > 0.9999
