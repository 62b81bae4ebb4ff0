"""The backbone as a module: images in, pooled features out."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from opensetda.backbones.file_digests import read_digest
from opensetda.backbones.networks import ask_timm, build_network
from opensetda.backbones.recipe import Recipe
from opensetda.backbones.registry import BACKBONES, DEFAULT_BACKBONE, TIMM_PREFIX, BackboneSpec
from opensetda.backbones.states import State, load_state, read_state, rename_in_order
from opensetda.backbones.weights import EMBEDDED, FoundWeights, find_weights
from opensetda.errors import InputError

_EMBEDDED_CLASSES = 1000

# Networks of which only some layers train, by the module of timm that they are from: of
# VGG the paper trains the fully connected layers alone.
_TRAINED_LAYERS = {"timm.models.vgg": ("pre_logits.",)}


class ImageBackbone(nn.Module):
    """A network without classifier.

    Parameters
    ----------
    network : nn.Module
        What timm built, with its weights.
    recipe : Recipe
        Where it is from.
    """

    def __init__(self, network: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        self.network = network
        self.recipe = recipe
        layers = _TRAINED_LAYERS.get(type(network).__module__)
        if layers is not None:
            for name, parameter in network.named_parameters():
                parameter.requires_grad_(name.startswith(layers))

    def forward(self, images: Tensor) -> Tensor:
        """Return features, (N, width), of normalised images, (N, 3, size, size)."""
        features: Tensor = self.network(images)
        return features

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Return what fine-tuning changes: all parameters; of VGG the connected layers'."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]


def load_backbone(recipe: Recipe, state: Mapping[str, Tensor] | None = None) -> ImageBackbone:
    """Build a backbone, in evaluation mode.

    Parameters
    ----------
    recipe : Recipe
        What `registry.resolve` returned.
    state : mapping of str to Tensor, optional
        Fine-tuned weights instead of the recipe's: a `state_dict` of an `ImageBackbone`.
    """
    network = build_network(recipe.timm_name, recipe.preprocessing.size)
    if state is not None:
        bare = {name.removeprefix("network."): value for name, value in state.items()}
        load_state(network, bare, "fine-tuned weights")
    else:
        found = _find(recipe)
        load_state(network, _state_of(recipe, found), found.path)
    return ImageBackbone(network, recipe).eval()


def _find(recipe: Recipe) -> FoundWeights:
    found = find_weights(recipe.backbone, _spec_of(recipe), recipe.weights)
    digest, _ = read_digest(found.path)
    if digest != recipe.weights_sha256:
        raise InputError(
            f"{found.path}: the weights are not those the features were made with "
            "(their SHA-256 differs); bring the old file back, or fit again"
        )
    return found


def _spec_of(recipe: Recipe) -> BackboneSpec:
    registered = BACKBONES.get(recipe.backbone)
    if registered is not None:
        return registered
    return ask_timm(recipe.backbone.removeprefix(TIMM_PREFIX), recipe.preprocessing.size)


def _state_of(recipe: Recipe, found: FoundWeights) -> State:
    return _embedded_state(found) if recipe.weights == EMBEDDED else read_state(found.path)


def _embedded_state(found: FoundWeights) -> State:
    # The file has the names of another implementation, in the order of timm's.
    spec = BACKBONES[DEFAULT_BACKBONE]
    with torch.device("meta"):
        names = build_network(spec.timm_name, spec.preprocessing.size, _EMBEDDED_CLASSES)
    return rename_in_order(read_state(found.path), names.state_dict(), found.path)
