"""Tiny networks of timm with weights of their own, for the tests of the backbones."""

from __future__ import annotations

import torch

from opensetda.backbones.model import ImageBackbone, load_backbone
from opensetda.backbones.recipe import IMAGENET, Preprocessing, Recipe
from opensetda.backbones.registry import build_network

TINY = "timm:test_efficientnet"
VIT = "timm:test_vit"


def tiny_state(name: str = TINY, size: int = 160) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    network = build_network(name.removeprefix("timm:"), size, n_classes=5)
    return {key: value.contiguous() for key, value in network.state_dict().items()}


def same_features(recipe: Recipe, state: dict[str, torch.Tensor]) -> bool:
    images = torch.rand(2, 3, recipe.preprocessing.size, recipe.preprocessing.size)
    network = build_network(recipe.timm_name, recipe.preprocessing.size)
    network.load_state_dict(state, strict=False)
    with torch.no_grad():
        return torch.equal(load_backbone(recipe)(images), network.eval()(images))


def tiny_backbone(name, size, network=None, views=1, **changes):
    preprocessing = Preprocessing(size, "squash", size, "bicubic", *IMAGENET)
    recipe = Recipe(f"timm:{name}", name, "random", "00", 1, preprocessing, "", views)
    if network is None:
        torch.manual_seed(0)
        network = build_network(name, size, **changes)
    return ImageBackbone(network, recipe).eval()
