"""A backbone cut in two: early stages that stay as they are, and the last stages, to train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from opensetda.backbones.model import ImageBackbone
from opensetda.errors import InputError

Layer = Callable[[Tensor], Tensor]
Parts = tuple[list[Layer], list[Layer]]
"""Layers before the cut, and from there to the end of `forward_features`; the head comes after."""

_LISTS = ("stages", "layers", "blocks")
_HEAD = ("global_pool", "pool", "head", "head_drop", "fc_norm", "fc", "classifier")


class EarlyStages(ImageBackbone):
    """The stages before the cut: images, (N, 3, S, S), to activations."""

    def __init__(self, backbone: ImageBackbone, layers: Sequence[Layer]) -> None:
        super().__init__(backbone.network, backbone.recipe)
        self._layers = tuple(layers)

    def forward(self, images: Tensor) -> Tensor:
        """Return the activations before the last stages."""
        for layer in self._layers:
            images = layer(images)
        return images


class LastStages(nn.Module):
    """The stages behind the cut: activations to features, (N, width).

    Its modules are those of the network, which therefore learns with it; its state is theirs.
    """

    def __init__(self, network: Any, early: Sequence[Layer], late: Sequence[Layer]) -> None:
        super().__init__()
        self._layers, self._head = tuple(late), network.forward_head
        used = {id(layer) for layer in (*early, *late)}
        in_head = [
            child for child in network.children() if used.isdisjoint(map(id, child.modules()))
        ]
        modules = [layer for layer in late if isinstance(layer, nn.Module)]
        self.trained = nn.ModuleList([*modules, *in_head])

    def forward(self, activations: Tensor) -> Tensor:
        """Return features."""
        for layer in self._layers:
            activations = layer(activations)
        features: Tensor = self._head(activations)
        return features

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters to train."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]


def cut(backbone: ImageBackbone) -> tuple[EarlyStages, LastStages, tuple[int, ...]]:
    """Cut a backbone, in evaluation mode, before its last stages.

    Both parts share its modules, and one after the other computes the same bits. Also returns the
    shape of the activations of one image.
    """
    network: Any = backbone.network
    size = backbone.recipe.preprocessing.size
    images = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    try:
        layers = _FAMILIES.get(type(network).__module__, _in_order)(network)
        early, late = EarlyStages(backbone, layers[0]), LastStages(network, *layers)
        with torch.no_grad():
            activations = early(images)
            is_same = torch.equal(late(activations), network(images))
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        # Not built as networks of its family usually are.
        is_same = False
    if not is_same or not late.trainable_parameters():
        name = backbone.recipe.timm_name
        raise InputError(f"--finetune last: {name} has no known last stages; take --finetune all")
    return early.eval(), late.eval(), tuple(activations.shape[1:])


def _efficientnet(network: Any) -> Parts:
    # The stage before the last one costs twice as much to train as what comes after it.
    early = [network.conv_stem, network.bn1, *network.blocks[:-1]]
    return early, [network.blocks[-1], network.conv_head, network.bn2]


def _resnet(network: Any) -> Parts:
    early = [network.conv1, network.bn1, network.act1, network.maxpool]
    return [*early, network.layer1, network.layer2, network.layer3], [network.layer4]


def _vgg(network: Any) -> Parts:
    # The fully connected layers belong to the head.
    return [network.features], []


def _vision_transformer(network: Any) -> Parts:
    early = [network.patch_embed, network._pos_embed, network.patch_drop, network.norm_pre]
    return [*early, *network.blocks[:-3]], [*network.blocks[-3:], network.norm]


def _in_order(network: Any) -> Parts:
    """Cut before the last of the stages, where a network is nothing but its children in order."""
    children = dict(network.named_children())
    names = list(children)
    place = min(names.index(name) for name in _LISTS if name in names)
    *stages, last = children[names[place]]
    after = takewhile(lambda name: name not in _HEAD, names[place + 1 :])
    before = [children[name] for name in names[:place]]
    return [*before, *stages], [last, *(children[name] for name in after)]


_FAMILIES: dict[str, Callable[[Any], Parts]] = {
    "timm.models.efficientnet": _efficientnet,
    "timm.models.resnet": _resnet,
    "timm.models.vgg": _vgg,
    "timm.models.vision_transformer": _vision_transformer,
}
