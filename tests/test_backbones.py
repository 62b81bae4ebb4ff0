"""Backbones by name: recipes, weights that must fit, and a network that sees what is there."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from opensetda.backbones.model import ImageBackbone, load_backbone, load_classifier
from opensetda.backbones.networks import ask_timm, build_network
from opensetda.backbones.preprocess import load_image, normalise, resize_image
from opensetda.backbones.recipe import Preprocessing, Recipe
from opensetda.backbones.registry import BACKBONES, resolve
from opensetda.backbones.states import _candidates, _problem, load_state, rename_in_order
from opensetda.backbones.torchvision_import import import_timm
from opensetda.errors import InputError

TINY = "timm:test_efficientnet"
VIT = "timm:test_vit"


def tiny_state(name: str = TINY, size: int = 160) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    network = build_network(name.removeprefix("timm:"), size, n_classes=5)
    return {key: value.contiguous() for key, value in network.state_dict().items()}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.safetensors"
    save_file(tiny_state(), path)
    return path


def same_features(recipe: Recipe, state: dict[str, torch.Tensor]) -> bool:
    images = torch.rand(2, 3, recipe.preprocessing.size, recipe.preprocessing.size)
    network = build_network(recipe.timm_name, recipe.preprocessing.size)
    network.load_state_dict(state, strict=False)
    with torch.no_grad():
        return torch.equal(load_backbone(recipe)(images), network.eval()(images))


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

    def test_key_does_not_depend_on_where_the_weights_lie(self):
        assert dataclasses.replace(self.RECIPE, weights="/elsewhere").key == self.RECIPE.key

    @pytest.mark.parametrize(
        "damage",
        [
            {"width": "1280"},
            {"width": True},
            {"weights": None},
            {"preprocessing": []},
            {"preprocessing": {"size": 224}},
            {"surplus": 1},
        ],
    )
    def test_damage_is_found(self, damage):
        with pytest.raises(InputError):
            Recipe.from_dict({**self.RECIPE.to_dict(), **damage})

    @pytest.mark.parametrize(
        "damage",
        [
            {"size": 0},
            {"size": 2.5},
            {"shorter_side": 10**9},
            {"mean": [1, 2]},
            {"mean": "abc"},
            {"std": [0, 1, 1]},
            {"resize": "x"},
            {"interpolation": "nearest"},
        ],
    )
    def test_damaged_preprocessing_is_found(self, damage):
        entries = self.RECIPE.to_dict()
        entries["preprocessing"] |= damage
        with pytest.raises(InputError):
            Recipe.from_dict(entries)


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

    def test_second_time_needs_neither_torch_nor_timm(self, weights, tmp_path):
        memory = tmp_path / "memory"
        first = resolve(TINY, weights, memory=memory)
        code = (
            "import json, sys; from pathlib import Path\n"
            "from opensetda.backbones.registry import resolve\n"
            f"recipe = resolve({TINY!r}, {str(weights)!r}, memory=Path({str(memory)!r}))\n"
            "print(json.dumps([recipe.to_dict(), 'torch' in sys.modules, 'timm' in sys.modules]))"
        )
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        again, *imported = json.loads(done.stdout)
        assert Recipe.from_dict(again) == first
        assert imported == [False, False]

    def test_damaged_memory_is_no_obstacle(self, weights, tmp_path):
        first = resolve(TINY, weights, memory=tmp_path)
        (note,) = (tmp_path / "networks").glob("*.json")
        note.write_text("{")
        assert resolve(TINY, weights, memory=tmp_path) == first


class TestWeights:
    def test_safetensors_load(self, weights):
        assert same_features(resolve(TINY, weights), tiny_state())

    @pytest.mark.parametrize("wrapper", [None, "state_dict", "model", "model_ema", "teacher"])
    def test_torch_files_load_wrapped_or_not(self, tmp_path, wrapper):
        state = tiny_state()
        content = state if wrapper is None else {wrapper: state, "epoch": 3}
        torch.save(content, tmp_path / "tiny.pth")
        assert same_features(resolve(TINY, tmp_path / "tiny.pth"), state)

    def test_options_of_a_training_script_beside_the_weights(self, tmp_path):
        state = tiny_state()
        options = argparse.Namespace(epochs=3)
        torch.save({"state_dict": state, "args": options}, tmp_path / "tiny.pt")
        assert same_features(resolve(TINY, tmp_path / "tiny.pt"), state)

    @pytest.mark.parametrize("prefix", ["module.", "backbone.", "_orig_mod.", "module.backbone."])
    def test_prefixes_of_wrappers_are_taken_off(self, tmp_path, prefix):
        state = tiny_state()
        torch.save({prefix + name: value for name, value in state.items()}, tmp_path / "w.pth")
        assert same_features(resolve(TINY, tmp_path / "w.pth"), state)

    def test_weights_of_the_average_are_preferred(self, tmp_path):
        state = tiny_state()
        other = {name: torch.zeros_like(value) for name, value in state.items()}
        torch.save({"state_dict": other, "state_dict_ema": state}, tmp_path / "w.pth")
        assert same_features(resolve(TINY, tmp_path / "w.pth"), state)

    def test_half_precision_and_no_classifier(self, tmp_path):
        state = {n: v for n, v in tiny_state().items() if not n.startswith("classifier")}
        half = {n: v.half() if v.is_floating_point() else v for n, v in state.items()}
        save_file(half, tmp_path / "w.safetensors")
        assert same_features(resolve(TINY, tmp_path / "w.safetensors"), half)

    def test_a_missing_tensor_is_named(self, tmp_path):
        state = tiny_state()
        del state["conv_stem.weight"]
        save_file(state, tmp_path / "w.safetensors")
        with pytest.raises(InputError, match=r"w\.safetensors.*'conv_stem\.weight' is missing"):
            load_backbone(resolve(TINY, tmp_path / "w.safetensors"))

    def test_a_misshapen_tensor_is_named(self, tmp_path):
        state = tiny_state()
        state["conv_stem.weight"] = torch.zeros(1, 3, 3, 3)
        save_file(state, tmp_path / "w.safetensors")
        with pytest.raises(InputError, match=r"'conv_stem\.weight' has shape 1 x 3 x 3 x 3"):
            load_backbone(resolve(TINY, tmp_path / "w.safetensors"))

    def test_nan_is_refused(self, tmp_path):
        state = tiny_state()
        state["conv_stem.weight"][0, 0, 0, 0] = float("nan")
        save_file(state, tmp_path / "w.safetensors")
        with pytest.raises(InputError, match="NaN"):
            load_backbone(resolve(TINY, tmp_path / "w.safetensors"))

    def test_weights_of_another_network_are_refused(self, tmp_path):
        save_file(tiny_state(VIT), tmp_path / "w.safetensors")
        with pytest.raises(InputError, match="do not fit the network"):
            load_backbone(resolve(TINY, tmp_path / "w.safetensors"))

    def test_patches_of_another_size_are_not_resampled(self, tmp_path):
        state = tiny_state(VIT)
        state["patch_embed.proj.weight"] = torch.zeros(64, 3, 8, 8)
        save_file(state, tmp_path / "w.safetensors")
        with pytest.raises(InputError, match=r"'patch_embed\.proj\.weight' has shape"):
            load_backbone(resolve(VIT, tmp_path / "w.safetensors"))

    def test_positions_are_adapted_to_the_size(self, tmp_path):
        save_file(tiny_state(VIT), tmp_path / "w.safetensors")
        backbone = load_backbone(resolve(VIT, tmp_path / "w.safetensors", size=96))
        assert backbone(torch.zeros(1, 3, 96, 96)).shape == (1, 64)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("w.pth", b"no weights at all", "cannot be read"),
            ("w.pth", b"", "cannot be read"),
            ("w.safetensors", b"no weights at all", "cannot be read"),
        ],
    )
    def test_garbage_is_one_line(self, tmp_path, name, content, message):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message):
            load_backbone(resolve(TINY, tmp_path / name))

    def test_pickled_objects_are_refused(self, tmp_path):
        torch.save({"state_dict": Path("evil")}, tmp_path / "w.pth")
        with pytest.raises(InputError, match="never unpickled"):
            load_backbone(resolve(TINY, tmp_path / "w.pth"))

    def test_a_file_without_tensors(self, tmp_path):
        torch.save({"epoch": 3}, tmp_path / "w.pth")
        with pytest.raises(InputError, match="holds no weights"):
            load_backbone(resolve(TINY, tmp_path / "w.pth"))

    def test_wrong_names_of_files(self, tmp_path):
        with pytest.raises(InputError, match="no such file"):
            resolve(TINY, tmp_path / "missing.pth")
        (tmp_path / "weights.zip").touch()
        with pytest.raises(InputError, match="must end in"):
            resolve(TINY, tmp_path / "weights.zip")
        with pytest.raises(InputError, match="no embedded weights"):
            resolve("resnet50", "embedded")

    def test_changed_weights_are_noticed(self, weights):
        recipe = resolve(TINY, weights)
        state = tiny_state()
        save_file({name: value + 1 for name, value in state.items()}, weights)
        with pytest.raises(InputError, match="SHA-256 differs"):
            load_backbone(recipe)

    def test_hub_out_of_reach_is_one_line(self, monkeypatch):
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(InputError, match=r"127\.0\.0\.1.*give --weights FILE, or use the emb"):
            resolve("resnet50")

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

    def test_network_without_hub_weights(self):
        with pytest.raises(InputError, match="give --weights FILE"):
            resolve("timm:coatnet_0_224")


class TestForeignLayouts:
    def test_vgg_of_torchvision(self):
        with torch.device("meta"):
            network = build_network("vgg19.tv_in1k", 224)
            wanted = network.state_dict()
            state = {n: v for n, v in wanted.items() if n.startswith("features.")}
            for number, (inputs, outputs) in {0: (25088, 4096), 3: (4096, 4096)}.items():
                state[f"classifier.{number}.weight"] = torch.zeros(outputs, inputs)
                state[f"classifier.{number}.bias"] = torch.zeros(outputs)
            state["classifier.6.weight"] = torch.zeros(1000, 4096)
            converted, as_it_is = _candidates(network, state)
        assert _problem(wanted, converted) is None
        assert _problem(wanted, as_it_is) == "'pre_logits.fc1.weight' is missing"

    def test_clip_of_openai(self):
        small = {"depth": 1, "embed_dim": 32, "num_heads": 2}
        network = build_network("vit_base_patch16_clip_224.openai", 224, **small)
        state = {
            "visual.class_embedding": torch.ones(32),
            "visual.positional_embedding": torch.ones(197, 32),
            "visual.conv1.weight": torch.ones(32, 3, 16, 16),
            "visual.proj": torch.ones(32, 16),
            "logit_scale": torch.ones(()),
        }
        block = "visual.transformer.resblocks.0."
        for name in ("visual.ln_pre", "visual.ln_post", f"{block}ln_1", f"{block}ln_2"):
            state |= {f"{name}.weight": torch.ones(32), f"{name}.bias": torch.ones(32)}
        for name, shape in {
            "attn.in_proj_weight": (96, 32),
            "attn.in_proj_bias": (96,),
            "attn.out_proj.weight": (32, 32),
            "attn.out_proj.bias": (32,),
            "mlp.c_fc.weight": (128, 32),
            "mlp.c_fc.bias": (128,),
            "mlp.c_proj.weight": (32, 128),
            "mlp.c_proj.bias": (32,),
        }.items():
            state[block + name] = torch.full(shape, 7.0)
        load_state(network, state, "clip.safetensors")
        assert network.state_dict()["blocks.0.attn.qkv.weight"].eq(7).all()

    def test_dinov2_of_its_authors(self):
        small = {"depth": 1, "embed_dim": 32, "num_heads": 2}
        network = build_network("vit_small_patch14_dinov2.lvd142m", 224, **small)
        state = dict(network.state_dict())
        state["mask_token"] = torch.zeros(1, 32)
        state["pos_embed"] = torch.ones(1, 1 + 37 * 37, 32)
        load_state(network, state, "dinov2.pth")
        assert network.state_dict()["pos_embed"].shape == (1, 1 + 16 * 16, 32)

    def test_renaming_in_order_checks_every_shape(self):
        names = {"a": torch.zeros(2), "b": torch.zeros(3)}
        renamed = rename_in_order({"x": torch.ones(2), "y": torch.ones(3)}, names, "file")
        assert list(renamed) == ["a", "b"]
        with pytest.raises(InputError, match="'y' has shape 4 where 'b' has 3"):
            rename_in_order({"x": torch.ones(2), "y": torch.ones(4)}, names, "file")
        with pytest.raises(InputError, match="1 tensors where 2"):
            rename_in_order({"x": torch.ones(2)}, names, "file")


class TestModel:
    def test_only_the_connected_layers_of_vgg_train(self):
        with torch.device("meta"):
            network = build_network("vgg19.tv_in1k", 224)
        backbone = ImageBackbone(network, resolve())
        names = {n for n, p in backbone.named_parameters() if p.requires_grad}
        assert names == {f"network.pre_logits.fc{i}.{p}" for i in "12" for p in ("weight", "bias")}
        assert len(backbone.trainable_parameters()) == 4
        assert backbone.set_grad_checkpointing() is False

    def test_everything_else_trains(self, weights):
        backbone = load_backbone(resolve(TINY, weights))
        assert len(backbone.trainable_parameters()) == len(list(backbone.parameters()))
        assert backbone.set_grad_checkpointing() is True
        assert not backbone.training

    def test_no_checkpointing_where_a_network_has_none(self, weights):
        assert ImageBackbone(nn.Linear(2, 2), resolve()).set_grad_checkpointing() is False

    def test_fine_tuned_state_takes_the_place_of_the_weights(self, weights):
        recipe = resolve(TINY, weights)
        tuned = {n: v * 1.5 for n, v in load_backbone(recipe).state_dict().items()}
        weights.unlink()
        again = load_backbone(recipe, tuned)
        assert all(torch.equal(v, tuned[n]) for n, v in again.state_dict().items())

    def test_timm_comes_with_a_torchvision_that_imports(self):
        assert import_timm().is_model("resnet50")
        assert "torchvision" in sys.modules

    def test_other_errors_of_torchvision_are_not_hidden(self, tmp_path):
        (tmp_path / "torchvision.py").write_text("raise RuntimeError('something else')")
        code = "from opensetda.backbones.torchvision_import import import_timm; import_timm()"
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1
        assert done.stderr.rstrip().endswith("RuntimeError: something else")


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_freed_memory_is_kept():
    code = (
        "import resource, sys, torch\n"
        "from opensetda.backbones.memory import keep_freed_memory\n"
        "if sys.argv[1] == 'keep' and not keep_freed_memory(): sys.exit('not glibc')\n"
        "network = torch.nn.Sequential(*[torch.nn.Conv2d(8, 8, 3) for _ in range(6)])\n"
        "step = lambda: network(torch.zeros(4, 8, 256, 256)).sum().backward()\n"
        "for _ in range(4): step()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(8): step()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    faults = {}
    for argument in ("keep", "plain"):
        command = [sys.executable, "-c", code, argument]
        done = subprocess.run(command, capture_output=True, text=True)
        if "not glibc" in done.stderr:
            pytest.skip("this C library has no such setting")
        faults[argument] = int(done.stdout)
    assert faults["keep"] < faults["plain"] / 4


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

    def test_resizing_is_pillows_but_for_rounding(self):
        from PIL import Image

        pixels = np.random.default_rng(0).integers(0, 256, (90, 70, 3)).astype(np.uint8)
        pillow = Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC)
        ours = resize_image(pixels, self.SQUASH).permute(1, 2, 0).numpy()
        assert np.abs(ours.astype(int) - np.asarray(pillow).astype(int)).max() <= 1

    def test_normalising(self):
        batch = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2).expand(1, 3, 1, 2)
        assert torch.allclose(normalise(batch, self.CROP)[0, 0, 0], torch.tensor([-2.0, 2.0]))


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
    return load_classifier()


@pytest.mark.parametrize("name", ["cat", "coffee", "rocket", "temple", "flower"])
def test_the_embedded_network_recognises_photographs(name, classifier):
    path, classes = photographs()[name]
    preprocessing = resolve().preprocessing
    with torch.no_grad():
        image = normalise(load_image(path, preprocessing).unsqueeze(0), preprocessing)
        best = classifier(image)[0].topk(5).indices.tolist()
    assert classes & set(best), best


def test_features_of_the_shared_benchmark_are_reproduced():
    data = Path(__file__).resolve().parents[2] / "shared" / "data"
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
