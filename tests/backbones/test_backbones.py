"""Backbones by name: recipes, weights that fit, and a network that sees what is there."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from backbone_helpers import TINY, VIT, same_features, tiny_state
from extraction_helpers import load_image
from opensetda.backbones.model import (
    FixedView,
    ImageBackbone,
    load_backbone,
    load_state,
    normalise,
    read_state,
    resize_image,
)
from opensetda.backbones.recipe import Preprocessing, Recipe
from opensetda.backbones.registry import (
    BACKBONES,
    BUNDLED,
    EMBEDDED,
    ask_timm,
    build_network,
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
            {"timm_version": "0"},
            {"preprocessing": dataclasses.replace(RECIPE.preprocessing, resize="crop")},
        ],
    )
    def test_key_changes_with_all_that_decides_a_feature(self, change):
        assert dataclasses.replace(self.RECIPE, **change).key != self.RECIPE.key

    @pytest.mark.parametrize(
        "damage",
        [
            {"width": "1280"},
            {"surplus": 1},
            {"preprocessing": {"size": 224}},
            {"preprocessing": {**RECIPE.to_dict()["preprocessing"], "std": [0, 1, 1]}},
        ],
    )
    def test_damage_is_found(self, damage):
        with pytest.raises(InputError, match="the file is damaged"):
            Recipe.from_dict({**self.RECIPE.to_dict(), **damage})


class TestRegistry:
    @pytest.mark.parametrize("name", BACKBONES)
    def test_facts_agree_with_timm(self, name):
        timm_name, width, how = BACKBONES[name]
        _, published_width, published = ask_timm(timm_name, 224)
        assert width == published_width
        assert how.interpolation == published.interpolation
        if name not in BUNDLED:
            assert (how.mean, how.std) == (published.mean, published.std)

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("resnet5", "did you mean 'resnet50'"),
            ("nonsense", "timm:NAME"),
            ("timm:restnet50", "did you mean .*timm:resnet50"),
            ("timm:resnet50.tv1", "tv_in1k"),
        ],
    )
    def test_unknown_names_get_a_hint(self, name, hint):
        with pytest.raises(InputError, match=hint):
            resolve(name)

    def test_sizes_that_cannot_work_are_refused(self, weights):
        for name, size in [("dinov2-small", 225), ("resnet50", 8), (VIT, 33)]:
            with pytest.raises(InputError, match="--image-size"):
                resolve(name, weights, size)

    def test_size_scales_the_crop(self, weights):
        usual, large = resolve(TINY, weights), resolve(TINY, weights, size=320)
        assert large.preprocessing.size == 2 * usual.preprocessing.size
        assert large.preprocessing.shorter_side == 2 * usual.preprocessing.shorter_side
        assert large.key != usual.key


class TestBundled:
    @pytest.mark.parametrize("name", BUNDLED)
    def test_every_tensor_goes_where_its_shape_fits(self, name):
        recipe = resolve(name)
        assert recipe.weights == EMBEDDED
        features = load_backbone(recipe)(torch.zeros(1, 3, 96, 96))
        assert features.shape == (1, recipe.width)

    @pytest.mark.parametrize(
        ("package", "told"), [("no_such_package", "not installed"), (None, "SHA-256 differs")]
    )
    def test_another_file_is_refused(self, monkeypatch, package, told):
        own, holder, _ = BUNDLED["efficientnet-lite0"]
        monkeypatch.setitem(BUNDLED, "efficientnet-lite0", (package or own, holder, "0" * 64))
        with pytest.raises(InputError, match=f"{told}.*--weights hub"):
            resolve("efficientnet-lite0")


class TestWeights:
    def test_safetensors_load(self, weights):
        assert same_features(resolve(TINY, weights), tiny_state())

    @pytest.mark.parametrize(("wrapper", "prefix"), [("state_dict", ""), ("teacher", "module.")])
    def test_torch_files_load_wrapped_or_not(self, tmp_path, wrapper, prefix):
        state = tiny_state()
        renamed = {prefix + name: value for name, value in state.items()}
        torch.save({wrapper: renamed, "epoch": 3}, tmp_path / "tiny.pth")
        assert same_features(resolve(TINY, tmp_path / "tiny.pth"), state)

    def test_positions_are_adapted_to_the_size(self, tmp_path):
        save_file(tiny_state(VIT), tmp_path / "w.safetensors")
        backbone = load_backbone(resolve(VIT, tmp_path / "w.safetensors", size=96))
        assert backbone(torch.zeros(1, 3, 96, 96)).shape == (1, 64)

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            (b"no weights at all", "cannot be read as weights"),
            ({"state_dict": Path("evil")}, "never unpickled"),
            ([1], "Missing key"),
            (tiny_state() | {"conv_stem.weight": torch.zeros(1, 3)}, "mismatch for conv_stem"),
            (tiny_state() | {"bn1.weight": torch.full((24,), torch.nan)}, "NaN"),
            (tiny_state(VIT), "do not fit the network"),
        ],
    )
    def test_files_that_are_refused(self, tmp_path, content, told):
        path = tmp_path / "w.pth"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            torch.save(content, path)
        with pytest.raises(InputError, match=told) as caught:
            load_backbone(resolve(TINY, path))
        assert str(caught.value).startswith(str(path))

    def test_wrong_names_of_files(self, tmp_path):
        (tmp_path / "weights.zip").touch()
        for name in ("missing.pth", "weights.zip"):
            with pytest.raises(InputError, match="no such file, or not one in"):
                resolve(TINY, tmp_path / name)
        with pytest.raises(InputError, match="no embedded weights"):
            resolve("resnet50", "embedded")

    def test_changed_weights_are_noticed(self, weights):
        recipe = resolve(TINY, weights)
        save_file({name: value + 1 for name, value in tiny_state().items()}, weights)
        with pytest.raises(InputError, match="SHA-256 differs"):
            load_backbone(recipe)

    def test_hub_out_of_reach_is_one_line(self, monkeypatch):
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(InputError, match=r"refused\); give --weights FILE, or use the emb"):
            resolve("resnet50")
        with pytest.raises(InputError, match="timm names none"):
            resolve("timm:coatnet_0_224")

    def test_hub_file_that_was_fetched_before_needs_no_network(self, tmp_path, monkeypatch):
        from huggingface_hub import constants

        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        place = tmp_path / "models--timm--test_efficientnet.r160_in1k"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text("abc")
        (place / "snapshots" / "abc").mkdir(parents=True)
        state = tiny_state()
        save_file(state, place / "snapshots" / "abc" / "model.safetensors")
        recipe = resolve(TINY)
        assert recipe.weights == "hub"
        assert same_features(recipe, state)

    def test_vgg_of_torchvision(self):
        with torch.device("meta"):
            network = build_network("vgg19.tv_in1k", 224)
            state = {n: v for n, v in network.state_dict().items() if n.startswith("features.")}
            for number, (inputs, outputs) in {0: (25088, 4096), 3: (4096, 4096)}.items():
                state[f"classifier.{number}.weight"] = torch.zeros(outputs, inputs)
                state[f"classifier.{number}.bias"] = torch.zeros(outputs)
            state["classifier.6.weight"] = torch.zeros(1000, 4096)
            load_state(network, state, "vgg19.pth")
            del state["classifier.3.bias"]
            with pytest.raises(InputError, match=r"Missing key.*pre_logits"):
                load_state(network, state, "vgg19.pth")


class TestModel:
    def test_only_the_connected_layers_of_vgg_train(self):
        with torch.device("meta"):
            backbone = ImageBackbone(build_network("vgg19.tv_in1k", 224), resolve())
        names = {n for n, p in backbone.named_parameters() if p.requires_grad}
        assert names == {f"network.pre_logits.fc{i}.{p}" for i in "12" for p in ("weight", "bias")}
        assert len(backbone.trainable_parameters()) == 4

    def test_features_are_the_mean_over_the_views_also_when_saved(self, weights):
        backbone = load_backbone(resolve(TINY, weights, views=3))
        weights.unlink()
        images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        how = backbone.recipe.preprocessing
        grey = FixedView(grey=True).of(images, how)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (how.mean, how.std))
        brightness = (grey * std + mean).flatten(2)
        torch.testing.assert_close(brightness[:, 0], brightness[:, 2])
        with torch.inference_mode():
            expected = sum(map(backbone.network, (images, images.flip(3), grey))) / 3
            torch.testing.assert_close(backbone(images), expected)
            again = load_backbone(backbone.recipe, backbone.state_dict())
            torch.testing.assert_close(again(images), expected)
        assert dataclasses.replace(backbone.recipe, views=1).key != backbone.recipe.key


class TestPreprocessing:
    CROP = Preprocessing(32, "crop", 40, "bilinear", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    SQUASH = Preprocessing(32, "squash", 32, "bicubic", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))

    @pytest.mark.parametrize("shape", [(50, 80), (1, 1), (3, 20000), (7, 3)])
    @pytest.mark.parametrize("preprocessing", [CROP, SQUASH], ids=["crop", "squash"])
    def test_every_shape_becomes_the_square(self, preprocessing, shape):
        image = resize_image(np.full((*shape, 3), 200, dtype=np.uint8), preprocessing)
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


def test_the_embedded_network_recognises_photographs():
    import skimage.data
    import sklearn.datasets

    photographs = {
        Path(skimage.data.__file__).parent / "chelsea.png": {281, 282, 283, 284, 285},
        Path(skimage.data.__file__).parent / "rocket.jpg": {657, 744},
        Path(sklearn.datasets.__file__).parent / "images" / "flower.jpg": {985},
    }
    recipe = resolve()
    path, _ = find_weights(recipe.backbone, recipe.timm_name, recipe.weights)
    *_, weight, bias = read_state(path).values()
    for photograph, classes in photographs.items():
        image = load_image(photograph, recipe.preprocessing).unsqueeze(0)
        with torch.no_grad():
            features = load_backbone(recipe)(normalise(image, recipe.preprocessing))
        best = (features @ weight.T + bias)[0].topk(5).indices.tolist()
        assert classes & set(best), best
