"""Weights from files: they fit as a whole, or are refused by name."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from backbone_helpers import TINY, VIT, same_features, tiny_state
from opensetda.backbones import model, networks
from opensetda.backbones.model import (
    _candidates,
    _problem,
    load_backbone,
    load_state,
    rename_in_order,
)
from opensetda.backbones.networks import build_network
from opensetda.backbones.registry import resolve
from opensetda.errors import InputError


@pytest.fixture(scope="module", autouse=True)
def timm_is_asked_once() -> Iterator[None]:
    """What timm says of a network takes a tenth of a second, and does not change."""
    with pytest.MonkeyPatch.context() as patch:
        remembered = functools.cache(networks.ask_timm)
        patch.setattr(networks, "ask_timm", remembered)
        patch.setattr(model, "ask_timm", remembered)
        yield


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.safetensors"
    save_file(tiny_state(), path)
    return path


class TestWeights:
    def test_safetensors_load(self, weights):
        assert same_features(resolve(TINY, weights), tiny_state())

    @pytest.mark.parametrize("wrapper", [None, "state_dict", "teacher"])
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

    @pytest.mark.parametrize("prefix", ["_orig_mod.", "module.backbone."])
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
