"""Backbones cut before their last stages: the same bits, and the whole network learns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from backbone_helpers import tiny_backbone
from opensetda.backbones.model import cut
from opensetda.errors import InputError

TINY_VIT = {"embed_dim": 32, "depth": 5, "num_heads": 2}
# By timm's name, with a size, changes that make it small, and parameters that are trained, or not.
NETWORKS = {
    "test_efficientnet": (32, {}, "conv_head.weight", "blocks.0.0.conv.weight"),
    "test_resnet": (32, {}, "layer4.0.bn2.weight", "layer3.0.conv1.weight"),
    "test_convnext": (32, {}, "head.norm.weight", "stages.2.blocks.0.conv_dw.weight"),
    "vgg11": (32, {"mlp_ratio": 0.01}, "pre_logits.fc1.weight", "features.0.weight"),
    "vit_small_patch14_dinov2": (28, TINY_VIT, "blocks.2.ls1.gamma", "blocks.1.ls1.gamma"),
    "vit_base_patch16_clip_224": (32, TINY_VIT, "norm.weight", "norm_pre.weight"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_last_stages_are_those_of_the_network(name):
    size, changes, trained, frozen = NETWORKS[name]
    backbone = tiny_backbone(name, size, **changes)
    before = {key: value.clone() for key, value in backbone.network.state_dict().items()}
    early, last, shape = cut(backbone)
    images = torch.randn(3, 3, size, size)
    with torch.no_grad():
        activations, features = early(images), backbone(images)
    assert activations.shape == (3, *shape)
    assert torch.equal(last(activations), features)
    parameters = last.trainable_parameters()
    last(activations).square().sum().backward()
    torch.optim.SGD(parameters, lr=0.1).step()
    after = backbone.network.state_dict()
    changed = {key for key, value in after.items() if not value.equal(before[key])}
    assert trained in changed
    assert frozen in before.keys() - changed
    # The state of the last stages is all that has changed.
    assert len(changed) <= len(last.state_dict()) < len(before)
    with torch.no_grad():
        assert torch.equal(early(images), activations)
        assert torch.equal(last(activations), backbone(images))


class Odd(nn.Module):
    """Has stages, but is more than its children in order."""

    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))

    def forward(self, x):
        return self.forward_head(self.stages(x) + x)

    def forward_head(self, x):
        return x.mean(dim=(2, 3))


@pytest.mark.parametrize("network", [Odd(), nn.Conv2d(3, 3, 1)])
def test_an_unknown_network_is_refused_in_one_line(network):
    with pytest.raises(InputError, match=r"^--finetune last: odd has no known last stages; take"):
        cut(tiny_backbone("odd", 32, network))
