"""The backbone as a module: images are resized and normalised for it, its weights are loaded.

Every tensor of a weights file is checked before it is used. Nothing is ever unpickled. `cut` cuts
the backbone in two: early stages that stay as they are, and the last stages, to train.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from opensetda.backbones.own import is_own, own_network
from opensetda.backbones.recipe import Preprocessing, Recipe
from opensetda.backbones.registry import EMBEDDED, build_network, find_weights
from opensetda.errors import InputError, one_line
from opensetda.system.files import file_record

Pixels = npt.NDArray[np.uint8]
Layer = Callable[[Tensor], Tensor]
State = dict[str, Tensor]

LUMA = (0.299, 0.587, 0.114)  # brightness of red, green and blue

# What training scripts wrap weights in, in the order of preference.
_WRAPPERS = ("state_dict_ema", "model_ema", "teacher", "state_dict", "model")
_PREFIXES = re.compile(r"^((module|_orig_mod|backbone|network)\.)+")


class FixedView(NamedTuple):
    """An image as it is, or mirrored, or without its colours."""

    mirror: bool = False
    grey: bool = False

    def of(self, images: Tensor, preprocessing: Preprocessing) -> Tensor:
        """Change normalised images, (N, 3, size, size)."""
        if self.grey:
            mean, std, luma = (
                torch.tensor(values, device=images.device).view(3, 1, 1)
                for values in (preprocessing.mean, preprocessing.std, LUMA)
            )
            images = ((images * std + mean) * luma).sum(dim=1, keepdim=True).sub(mean).div(std)
        return images.flip(3) if self.mirror else images


VIEWS = tuple(FixedView(mirror, grey) for grey in (False, True) for mirror in (False, True))


class ImageBackbone(nn.Module):
    """A network of timm without classifier, with its weights and its recipe.

    The feature of an image is the mean over the first of `VIEWS`.
    """

    def __init__(self, network: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        self.network = network
        self.recipe = recipe
        self.views = VIEWS[: recipe.views]
        if type(network).__module__ == "timm.models.vgg":
            # As the paper does, only the fully connected layers are trained.
            for name, parameter in network.named_parameters():
                parameter.requires_grad_(name.startswith("pre_logits."))

    def forward(self, images: Tensor) -> Tensor:
        """Return features, (N, width), of normalised images, (N, 3, size, size)."""
        how = self.recipe.preprocessing
        features: list[Tensor] = [self.network(view.of(images, how)) for view in self.views]
        return torch.stack(features).mean(dim=0) if len(features) > 1 else features[0]

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that fine-tuning changes: all; of VGG the connected layers'."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]


def load_backbone(recipe: Recipe, state: Mapping[str, Tensor] | None = None) -> ImageBackbone:
    """Build a backbone, in evaluation mode.

    `state` replaces the recipe's weights by fine-tuned ones: the state of a backbone.
    """
    comes_with_weights = is_own(recipe.backbone)
    if comes_with_weights:
        network = own_network(recipe)
    else:
        network = build_network(recipe.timm_name, recipe.preprocessing.size)
    backbone = ImageBackbone(network, recipe).eval()
    if state is None and comes_with_weights:
        return backbone
    if state is None:
        path, _ = find_weights(recipe.backbone, recipe.timm_name, recipe.weights)
        if file_record(path)["sha256"] != recipe.weights_sha256:
            raise InputError(
                f"{path}: the weights are not those the features were made with "
                "(their SHA-256 differs); restore the old file, or fit again"
            )
        state = read_state(path)
        if recipe.weights == EMBEDDED:
            # The names are those of another implementation, in timm's order, the classifier last.
            state = dict(zip(network.state_dict(), state.values(), strict=False))
        load_state(network, state, path)
    else:
        bare = {name.removeprefix("network."): value for name, value in state.items()}
        load_state(network, bare, "fine-tuned weights")
    return backbone


def read_state(path: Path) -> State:
    """Read the tensors of a ``.safetensors`` or torch file."""
    content: Any
    try:
        if path.suffix.lower() == ".safetensors":
            content = load_file(path)
        else:
            # Training scripts store their options beside the weights, as plain values.
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # A damaged file may raise anything.
        raise InputError(
            f"{path}: cannot be read as weights, and Python objects are never unpickled; save the "
            "tensors alone: safetensors.torch.save_file(model.state_dict(), FILE)"
        ) from error
    while isinstance(content, Mapping) and (
        inner := [content[w] for w in _WRAPPERS if w in content]
    ):
        content = inner[0]
    named = content.items() if isinstance(content, Mapping) else ()
    return {_PREFIXES.sub("", str(name)): v for name, v in named if torch.is_tensor(v)}


def load_state(network: nn.Module, state: Mapping[str, Tensor], where: object) -> None:
    """Load weights into a network without classifier, all of whose tensors must be there.

    They may be as timm's, or as their first publisher's (torchvision's VGG, DINOv2, OpenAI's
    CLIP), which timm converts. Tensors that the network does not have, such as those of a
    classifier, are left out; a missing or misshapen one is an `InputError` that says `where`.
    """
    wanted = network.state_dict()
    problem = ""
    for candidate in (_converted(network, state), state):
        chosen = {name: value for name, value in candidate.items() if name in wanted}
        if not all(value.is_meta or bool(value.isfinite().all()) for value in chosen.values()):
            raise InputError(f"{where}: the weights hold NaN or infinity; the file is damaged")
        try:
            network.load_state_dict(chosen)
            return
        except RuntimeError as error:
            problem = one_line(error, 200).partition(": ")[2]
    raise InputError(f"{where}: the weights do not fit the network: {problem}")


def _converted(network: nn.Module, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the weights as timm converts them for this network, if it can."""
    module = vars(sys.modules[type(network).__module__])
    converter: Any = module.get("checkpoint_filter_fn") or module.get("_filter_fn")
    # It is made for files of one origin, and fails on others; some take no network.
    for takes_network in (True, False) if converter else ():
        with suppress(AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            own = dict(state)
            converted: Mapping[str, Tensor]
            converted = converter(own, network) if takes_network else converter(own)
            return converted
    return state


def resize_image(pixels: Pixels, preprocessing: Preprocessing) -> Tensor:
    """Resize decoded pixels, (height, width, 3), to (3, size, size) of uint8."""
    how = preprocessing
    image = Image.fromarray(pixels)
    image = resized(image, how.size, how.shorter_side, how.resize, how.interpolation)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


# The script of an exported model has this function, too: it needs nothing but Pillow.
def resized(
    image: Image.Image, size: int, shorter_side: int, resize: str, interpolation: str
) -> Image.Image:
    """Resize an RGB image to a square, see `Preprocessing`."""

    def middle(image: Image.Image, width: int, height: int) -> Image.Image:
        left = round((image.width - width) / 2)
        top = round((image.height - height) / 2)
        return image.crop((left, top, left + width, top + height))

    how = Image.Resampling[interpolation.upper()]
    if resize == "squash":
        return image.resize((size, size), how)
    shorter = min(image.size)
    # The ends of long strips are cut first: a 1 x 100,000 image would become gigabytes.
    if max(image.size) > 4 * shorter:
        image = middle(image, min(image.width, 4 * shorter), min(image.height, 4 * shorter))
    width, height = (side * shorter_side // shorter for side in image.size)
    return middle(image.resize((width, height), how), size, size)


def normalise(batch: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Shift and scale pixels, (N, 3, size, size) of uint8, as in the network's training."""
    mean = torch.tensor(preprocessing.mean, device=batch.device).view(3, 1, 1)
    std = torch.tensor(preprocessing.std, device=batch.device).view(3, 1, 1)
    return (batch.float() - 255 * mean) / (255 * std)


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
        self._layers = (*late, network.forward_head)
        used = {id(layer) for layer in (*early, *late)}
        head = [child for child in network.children() if used.isdisjoint(map(id, child.modules()))]
        modules = [layer for layer in late if isinstance(layer, nn.Module)]
        self.trained = nn.ModuleList([*modules, *head])

    def forward(self, activations: Tensor) -> Tensor:
        """Return features."""
        for layer in self._layers:
            activations = layer(activations)
        return activations

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
        before, after = _layers(network)
        early = EarlyStages(backbone, before)
        late = LastStages(network, before, after)
        with torch.no_grad():
            activations = early(images)
            is_same = torch.equal(late(activations), network(images))
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        # Not built as networks of its family usually are.
        is_same = False
    if not is_same:
        name = backbone.recipe.timm_name
        raise InputError(f"--finetune last: {name} has no known last stages; take --finetune all")
    return early.eval(), late.eval(), tuple(activations.shape[1:])


def _layers(network: Any) -> tuple[list[Layer], list[Layer]]:
    """Return the layers before the cut, and from there to the head, by the family in timm."""
    match type(network).__module__.removeprefix("timm.models."):
        case "efficientnet":
            # The stage before the last one costs twice as much to train as what comes after it.
            early = [network.conv_stem, network.bn1, *network.blocks[:-1]]
            return early, [network.blocks[-1], network.conv_head, network.bn2]
        case "resnet":
            early = [network.conv1, network.bn1, network.act1, network.maxpool]
            return [*early, network.layer1, network.layer2, network.layer3], [network.layer4]
        case "vgg":
            # The fully connected layers belong to the head.
            return [network.features], []
        case "vision_transformer":
            early = [network.patch_embed, network._pos_embed, network.patch_drop, network.norm_pre]
            return [*early, *network.blocks[:-3]], [*network.blocks[-3:], network.norm]
    # ConvNeXt, and others that are a stem, stages and a norm, in this order.
    early = [network.stem, *network.stages[:-1]]
    return early, [network.stages[-1], getattr(network, "norm_pre", nn.Identity())]
