"""The backbone as a module: images are resized and normalised for it, its weights are loaded.

Every tensor of a weights file is checked before it is used. Nothing is ever unpickled.
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from opensetda.backbones.networks import ask_timm, build_network
from opensetda.backbones.recipe import TIMM_PREFIX, Preprocessing, Recipe
from opensetda.backbones.registry import BACKBONES, DEFAULT_BACKBONE, EMBEDDED, find_weights
from opensetda.errors import InputError, one_line
from opensetda.system.files import file_record, open_regular
from opensetda.system.memory import check_free

State = dict[str, Tensor]
Pixels = npt.NDArray[np.uint8]

LUMA = (0.299, 0.587, 0.114)  # brightness of red, green and blue

_EMBEDDED_CLASSES = 1000
_VIEWS = "views"
# By their module in timm: of VGG the paper trains the fully connected layers only.
_TRAINED_LAYERS = {"timm.models.vgg": ("pre_logits.",)}
# What training scripts wrap weights in, in the order of preference.
_WRAPPERS = ("state_dict_ema", "model_ema", "teacher", "state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "backbone.", "network.")
_CONVERTERS = ("checkpoint_filter_fn", "_filter_fn")


class FixedView(NamedTuple):
    """An image as it is, or mirrored, or without its colours."""

    mirror: bool = False
    grey: bool = False

    def of(self, images: Tensor, preprocessing: Preprocessing) -> Tensor:
        """Change normalised images, (N, 3, size, size)."""
        if self.grey:
            mean, std = (
                torch.tensor(values, device=images.device).view(3, 1, 1)
                for values in (preprocessing.mean, preprocessing.std)
            )
            luma = torch.tensor(LUMA, device=images.device).view(3, 1, 1)
            images = ((images * std + mean) * luma).sum(dim=1, keepdim=True).sub(mean).div(std)
        return images.flip(3) if self.mirror else images


class ImageBackbone(nn.Module):
    """A network of timm without classifier, with its weights and its recipe.

    The feature of an image is the mean over `views`; a backbone that was not trained has one.
    """

    def __init__(self, network: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        self.network = network
        self.recipe = recipe
        self.views: tuple[FixedView, ...] = (FixedView(),)
        layers = _TRAINED_LAYERS.get(type(network).__module__)
        if layers is not None:
            for name, parameter in network.named_parameters():
                parameter.requires_grad_(name.startswith(layers))

    def forward(self, images: Tensor) -> Tensor:
        """Return features, (N, width), of normalised images, (N, 3, size, size)."""
        how = self.recipe.preprocessing
        features: list[Tensor] = [self.network(view.of(images, how)) for view in self.views]
        return torch.stack(features).mean(dim=0) if len(features) > 1 else features[0]

    def saved_state(self) -> State:
        """Return the weights, and the views as rows of numbers, for `load_backbone`."""
        return {**self.state_dict(), _VIEWS: torch.tensor(self.views, dtype=torch.uint8)}

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that fine-tuning changes: all; of VGG the connected layers'."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]


def load_backbone(recipe: Recipe, state: Mapping[str, Tensor] | None = None) -> ImageBackbone:
    """Build a backbone, in evaluation mode.

    `state` replaces the recipe's weights by fine-tuned ones: the `saved_state` of a backbone.
    """
    network = build_network(recipe.timm_name, recipe.preprocessing.size)
    if state is None:
        path = _weights_of(recipe)
        state = _embedded_state(path) if recipe.weights == EMBEDDED else read_state(path)
        load_state(network, state, path)
        return ImageBackbone(network, recipe).eval()
    state = dict(state)
    views = state.pop(_VIEWS, torch.zeros(1, 2))  # Earlier releases had the image alone.
    bare = {name.removeprefix("network."): value for name, value in state.items()}
    load_state(network, bare, "fine-tuned weights")
    backbone = ImageBackbone(network, recipe).eval()
    backbone.views = tuple(FixedView(*map(bool, view)) for view in views.tolist())
    return backbone


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
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
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


def read_state(path: Path) -> State:
    """Read the tensors of a ``.safetensors`` or torch file."""
    try:
        # The libraries open it by its name: a pipe would block them.
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise _damaged(path, "weights", one_line(error)) from error
    check_free(size, f"{path}: reading it", "give the file of a network")
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for _ in _WRAPPERS:
        inner = next((content[w] for w in _WRAPPERS if isinstance(content.get(w), Mapping)), None)
        if inner is None:
            break
        content = inner
    state = {_bare(str(name)): value for name, value in content.items() if torch.is_tensor(value)}
    if not state:
        raise InputError(f"{path}: holds no weights; give the file of a network's state_dict")
    return state


def load_state(network: nn.Module, state: Mapping[str, Tensor], where: object) -> None:
    """Load weights into a network without classifier, all of whose tensors must be there.

    timm converts weights in the layout of their first publisher (torchvision's VGG, DINOv2,
    OpenAI's CLIP). Tensors that the network does not have, such as those of a classifier, are
    left out; a missing or misshapen one is an `InputError` that says `where`.
    """
    wanted = network.state_dict()
    patches = "patch_embed.proj.weight"
    problem = None
    if patches in wanted and patches in state and state[patches].ndim == wanted[patches].ndim:
        # timm would silently resample the patches of another network.
        problem = _problem({patches: wanted[patches]}, state)
    candidates = [] if problem else _candidates(network, state)
    problems = [_problem(wanted, candidate) for candidate in candidates]
    if None not in problems:
        first = problem or problems[0]
        raise InputError(f"{where}: the weights do not fit the network: {first}")
    fitting = candidates[problems.index(None)]
    chosen = {name: fitting[name] for name in wanted if name in fitting}
    for name, value in chosen.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InputError(f"{where}: {name!r} holds NaN or infinity; the file is damaged")
    network.load_state_dict(chosen, strict=False)


def rename_in_order(
    state: Mapping[str, Tensor], names: Mapping[str, Tensor], where: object
) -> State:
    """Give tensors the names of another network with tensors of the same shapes and order."""
    if len(state) != len(names):
        raise InputError(f"{where}: {len(state)} tensors where {len(names)} were expected")
    renamed = {}
    for (own, like), (name, value) in zip(names.items(), state.items(), strict=True):
        if like.shape != value.shape:
            raise InputError(
                f"{where}: {name!r} has shape {_shape(value)} where {own!r} has {_shape(like)}; "
                "the file is not the one expected"
            )
        renamed[own] = value
    return renamed


def _weights_of(recipe: Recipe) -> Path:
    """Return the file of the weights, which must be that of the recipe."""
    spec = BACKBONES.get(recipe.backbone)
    if spec is None:
        spec = ask_timm(recipe.backbone.removeprefix(TIMM_PREFIX), recipe.preprocessing.size)
    path, _ = find_weights(recipe.backbone, spec, recipe.weights)
    if file_record(path)["sha256"] != recipe.weights_sha256:
        raise InputError(
            f"{path}: the weights are not those the features were made with "
            "(their SHA-256 differs); restore the old file, or fit again"
        )
    return path


def _embedded_state(path: Path) -> State:
    # The file uses the names of another implementation, in timm's order.
    spec = BACKBONES[DEFAULT_BACKBONE]
    with torch.device("meta"):
        names = build_network(spec.timm_name, spec.preprocessing.size, _EMBEDDED_CLASSES)
    return rename_in_order(read_state(path), names.state_dict(), path)


def _read_safetensors(path: Path) -> Mapping[str, Any]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, "a .safetensors file", one_line(error, 120)) from error


def _read_torch(path: Path) -> Mapping[str, Any]:
    try:
        # Training scripts store their options beside the weights, as plain values.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "unsupported operand" in str(error).lower():
            raise _damaged(path, "a torch file", "it is none") from error
        advice = "save the tensors alone: safetensors.torch.save_file(model.state_dict(), FILE)"
        problem = "holds Python objects, which are never unpickled"
        raise InputError(f"{path}: {problem}; {advice}") from error
    except Exception as error:
        # A damaged file may raise anything.
        if "torchscript" in str(error).lower():
            raise InputError(
                f"{path}: is a TorchScript archive; save the tensors alone: "
                "safetensors.torch.save_file(torch.jit.load(FILE).state_dict(), NEW)"
            ) from error
        raise _damaged(path, "a torch file", one_line(error, 120)) from error
    if not isinstance(content, Mapping):
        raise InputError(f"{path}: holds a {type(content).__name__}, not tensors by name")
    return content


def _bare(name: str) -> str:
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
    return name if prefix is None else _bare(name.removeprefix(prefix))


def _candidates(network: nn.Module, state: Mapping[str, Tensor]) -> list[Mapping[str, Tensor]]:
    """Return the weights as timm converts them for this network, then as they are."""
    module = sys.modules[type(network).__module__]
    converter = next((getattr(module, n) for n in _CONVERTERS if hasattr(module, n)), None)
    if converter is None:
        return [state]
    try:
        try:
            converted = converter(dict(state), network)
        except TypeError:
            converted = converter(dict(state))
    except (AttributeError, KeyError, IndexError, RuntimeError, TypeError, ValueError):
        # The converter is made for files of one origin, and fails on others.
        return [state]
    return [converted, state]


def _problem(wanted: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str | None:
    for name, own in wanted.items():
        value = state.get(name)
        if value is None:
            if not name.endswith("num_batches_tracked"):
                return f"{name!r} is missing"
        elif value.shape != own.shape:
            return f"{name!r} has shape {_shape(value)} where {_shape(own)} is needed"
    return None


def _damaged(path: Path, what: str, reason: str) -> InputError:
    return InputError(f"{path}: cannot be read as {what} ({reason}); fetch it again")


def _shape(value: Tensor) -> str:
    return " x ".join(map(str, value.shape)) or "a number"
