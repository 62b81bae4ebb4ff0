"""Weights from files: they fit as a whole, or are refused by name."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from backbone_helpers import TINY, VIT, same_features, tiny_state
from opensetda.backbones import model, networks
from opensetda.backbones.model import load_backbone
from opensetda.backbones.networks import build_network, load_state
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

    @pytest.mark.parametrize("prefix", ["_orig_mod.", "module.backbone."])
    def test_prefixes_of_wrappers_are_taken_off(self, tmp_path, prefix):
        state = tiny_state()
        torch.save({prefix + name: value for name, value in state.items()}, tmp_path / "w.pth")
        assert same_features(resolve(TINY, tmp_path / "w.pth"), state)

    def test_positions_are_adapted_to_the_size(self, tmp_path):
        save_file(tiny_state(VIT), tmp_path / "w.safetensors")
        backbone = load_backbone(resolve(VIT, tmp_path / "w.safetensors", size=96))
        assert backbone(torch.zeros(1, 3, 96, 96)).shape == (1, 64)

    @pytest.mark.parametrize(
        ("name", "content", "told"),
        [
            ("w.pth", b"no weights at all", "cannot be read as weights"),
            ("w.safetensors", b"", "cannot be read as weights"),
            ("w.pth", {"state_dict": Path("evil")}, "never unpickled"),
            ("w.pth", {"epoch": 3}, "holds no weights"),
            ("w.pth", [1], "holds no weights"),
            ("w.pth", {"conv_stem.weight": None}, 'Missing key.* "conv_stem.weight"'),
            ("w.pth", {"conv_stem.weight": torch.zeros(1, 3)}, "size mismatch for conv_stem"),
            ("w.pth", {"bn1.weight": torch.full((24,), torch.nan)}, "NaN"),
            ("w.pth", tiny_state(VIT), "do not fit the network"),
        ],
    )
    def test_files_that_are_refused(self, tmp_path, name, content, told):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif "weight" in str(content) and len(content) == 1:
            torch.save({**tiny_state(), **content}, path)
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
        state = tiny_state()
        save_file({name: value + 1 for name, value in state.items()}, weights)
        with pytest.raises(InputError, match="SHA-256 differs"):
            load_backbone(recipe)

    def test_hub_out_of_reach_is_one_line(self, monkeypatch):
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(InputError, match=r"refused\); give --weights FILE, or use the emb"):
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
            load_state(network, state, "vgg19.pth")
            del state["classifier.3.bias"]
            with pytest.raises(InputError, match=r"Missing key.*pre_logits"):
                load_state(network, state, "vgg19.pth")

    def test_dinov2_of_its_authors(self):
        small = {"depth": 1, "embed_dim": 32, "num_heads": 2}
        network = build_network("vit_small_patch14_dinov2.lvd142m", 224, **small)
        state = dict(network.state_dict())
        state["mask_token"] = torch.zeros(1, 32)
        state["pos_embed"] = torch.ones(1, 1 + 37 * 37, 32)
        load_state(network, state, "dinov2.pth")
        assert network.state_dict()["pos_embed"].shape == (1, 1 + 16 * 16, 32)
