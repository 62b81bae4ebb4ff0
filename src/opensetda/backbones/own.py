"""Networks that are neither in our list nor in timm: the user's own, of Hugging Face, and CLIP.

A network of one's own is given in Python, or named as a function that makes it, and then named
again for every later command: nothing that a run folder says is imported.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.metadata
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from opensetda.backbones.clip import load_clip
from opensetda.backbones.recipe import BILINEAR, CLIP_PREFIX, IMAGENET, Preprocessing, Recipe
from opensetda.backbones.timm_import import TIMM_PREFIX, import_timm
from opensetda.errors import InputError, one_line

HF_PREFIX = "hf:"
GIVEN_PREFIX = "own:"
_PREFIXES = (HF_PREFIX, CLIP_PREFIX, GIVEN_PREFIX)
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_BICUBIC = 3  # among Pillow's resampling filters, as Hugging Face stores them


@dataclass(frozen=True)
class OwnNetwork:
    """A network in evaluation mode, how images are prepared for it, and a hash of its weights."""

    network: nn.Module
    preprocessing: Preprocessing
    sha256: str


_known: dict[str, OwnNetwork] = {}


class FunctionNetwork(nn.Module):
    """A function from normalised images, (N, 3, S, S), to features, (N, width)."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: Tensor) -> Tensor:
        """Return features."""
        return torch.as_tensor(self.function(images))


class HuggingFaceNetwork(nn.Module):
    """A vision model of transformers: its pooled output, or else its first token."""

    def __init__(self, model: nn.Module, is_pooled: bool) -> None:
        super().__init__()
        self.model = model
        self.is_pooled = is_pooled

    def forward(self, images: Tensor) -> Tensor:
        """Return features."""
        found: Any = self.model(pixel_values=images)
        pooled: Tensor | None = getattr(found, "pooler_output", None) if self.is_pooled else None
        if pooled is not None:
            return pooled.flatten(1)
        hidden: Tensor = found.last_hidden_state
        return hidden.mean(dim=(2, 3)) if hidden.ndim == 4 else hidden[:, 0]


def use_backbone(backbone: Any) -> str:
    """Make a network known to this process, and return the name by which options call it.

    Parameters
    ----------
    backbone : nn.Module, callable, (network, Preprocessing) or str
        What turns normalised images, (N, 3, S, S), into features, (N, width), in evaluation mode;
        alone, images are prepared as for most networks trained on ImageNet. Or the name of a
        function without arguments that returns it, ``package.module:function``.

    Returns
    -------
    str
        The value of `ImageOptions.backbone`; it has a hash of the weights, or for a function that
        is no module of what it makes of two fixed images.
    """
    if isinstance(backbone, str):
        if not is_own(backbone) or backbone.startswith(_PREFIXES):
            return backbone
        _known[backbone] = _own(backbone, _made_by(backbone))
        return backbone
    kind = type(backbone[0] if isinstance(backbone, tuple) else backbone).__name__
    made = _own(kind, backbone)
    name = f"{GIVEN_PREFIX}{kind}-{made.sha256[:8]}"
    _known[name] = made
    return name


def is_own(name: str) -> bool:
    """Return whether a name of a backbone is that of a network of this module."""
    if name.startswith(TIMM_PREFIX):
        return False
    return name.startswith(_PREFIXES) or bool(_FUNCTION.fullmatch(name))


def own_recipe(name: str, size: int | None, views: int) -> Recipe:
    """Return the recipe of a network; its width is tried out."""
    if name not in _known and not name.startswith(_PREFIXES):
        use_backbone(name)
    own = _find(name)
    how = own.preprocessing
    if size is not None:
        shorter_side = max(size, int(size * how.shorter_side / how.size))
        how = replace(how, size=size, shorter_side=shorter_side)
    network = own.network.model if isinstance(own.network, HuggingFaceNetwork) else own.network
    width = _probe(name, own.network, how.size).shape[1]
    kind = f"{type(network).__module__}.{type(network).__qualname__}"
    return Recipe(name, kind, name, own.sha256, width, how, _version(name), views)


def own_network(recipe: Recipe) -> nn.Module:
    """Return a copy of the network of a recipe, which may be trained."""
    own = _find(recipe.backbone)
    if own.sha256 != recipe.weights_sha256:
        raise InputError(
            f"backbone {recipe.backbone!r}: its weights are not those the features were made with "
            "(their SHA-256 differs); give the old ones, or fit again"
        )
    return copy.deepcopy(own.network)


def _find(name: str) -> OwnNetwork:
    if name not in _known and name.startswith(HF_PREFIX):
        _known[name] = _own(name, _of_hugging_face(name.removeprefix(HF_PREFIX)))
    if name not in _known and name.startswith(CLIP_PREFIX):
        _known[name] = _own(name, load_clip(name.removeprefix(CLIP_PREFIX)))
    if name not in _known:
        how = f"name it again, --backbone {name}"
        if name.startswith(GIVEN_PREFIX):
            how = "call opensetda.use_backbone(network) before"
        raise InputError(f"backbone {name!r}: a network of your own, which no run holds; {how}")
    return _known[name]


def _own(name: str, backbone: Any) -> OwnNetwork:
    """Check what was given as a network, perhaps with its preprocessing."""
    network, how = backbone if isinstance(backbone, tuple) else (backbone, BILINEAR)
    if isinstance(network, type) or not callable(network) or not isinstance(how, Preprocessing):
        what = "a network (an nn.Module or a function of images), or a pair with a Preprocessing"
        raise InputError(f"backbone {name!r}: {type(network).__name__}; give {what}")
    is_module = isinstance(network, nn.Module)
    module = copy.deepcopy(network) if is_module else FunctionNetwork(network)
    module = module.cpu().eval()
    digest = hashlib.sha256(repr(module if is_module else name).encode())
    for key, value in module.state_dict().items():
        digest.update(key.encode())
        digest.update(value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    if not module.state_dict():
        digest.update(_probe(name, module, how.size).numpy().tobytes())
    return OwnNetwork(module, how, digest.hexdigest())


@torch.no_grad()
def _probe(name: str, network: nn.Module, size: int) -> Tensor:
    """Return the features of two fixed images."""
    images = np.random.default_rng(0).normal(size=(2, 3, size, size)).astype(np.float32)
    try:
        features = network(torch.from_numpy(images))
        shape = tuple(features.shape)
    except Exception as error:
        # Code of others may raise anything.
        problem = f"{type(error).__name__}: {one_line(error, 120)}"
        raise InputError(
            f"backbone {name!r}: fails at {size} x {size} pixels ({problem})"
        ) from error
    if len(shape) != 2 or len(features) != 2:
        raise InputError(f"backbone {name!r}: returns {shape} for two images; return (2, width)")
    found: Tensor = features.float().cpu()
    return found


def _made_by(name: str) -> Any:
    """Import a function, also from the current folder, and call it."""
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        found: Any = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
        return found()
    except Exception as error:
        problem = f"{type(error).__name__}: {one_line(error, 120)}"
        advice = "name a function without arguments that returns the network, package.module:name"
        raise InputError(f"backbone {name!r}: {problem}; {advice}") from error
    finally:
        sys.path.remove(here)


# Hugging Face ----------------------------------------------------------------------------------


def _version(name: str) -> str:
    if name.startswith(HF_PREFIX):
        return str(importlib.metadata.version("transformers"))
    if name.startswith(CLIP_PREFIX):
        return str(importlib.metadata.version("open-clip-torch"))
    return ""


def _of_hugging_face(place: str) -> tuple[nn.Module, Preprocessing]:
    """Load a model, from the hub or a folder: only safetensors, and no code but transformers'."""
    if find_spec("transformers") is None:
        problem = "transformers is not installed; pip install 'opensetda[hf]'"
        raise InputError(f"backbone '{HF_PREFIX}{place}': {problem}")
    import_timm()  # repairs a torchvision that does not import, which transformers needs, too
    import transformers
    from transformers.models.auto.image_processing_auto import get_image_processor_config

    safe: dict[str, Any] = {"trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(place, **safe)
        # Of a model of images and texts only the half that sees.
        if hasattr(config, "vision_config"):
            config = config.vision_config
        model, loaded = transformers.AutoModel.from_pretrained(
            place, config=config, use_safetensors=True, output_loading_info=True, **safe
        )
        how = _preprocessing(get_image_processor_config(place))
    except Exception as error:
        # Errors of the hub, of the files and of the model have no common base.
        problem = one_line(error, 160)
        advice = "give the name of a vision model with safetensors, or its folder"
        raise InputError(f"backbone '{HF_PREFIX}{place}': {problem}; {advice}") from error
    missing = sorted(loaded["missing_keys"])
    if others := [name for name in missing if "pooler" not in name]:
        raise InputError(f"backbone '{HF_PREFIX}{place}': its file has no weights for {others[0]}")
    with torch.no_grad():
        for name in missing:
            model.get_parameter(name).zero_()  # drawn at random, and not used
    return HuggingFaceNetwork(model, is_pooled=not missing), how


def _preprocessing(stored: dict[str, Any]) -> Preprocessing:
    """Return how a model of Hugging Face wants its images, from its stored description."""

    def side(entry: Any) -> int:
        if isinstance(entry, dict):
            entry = entry.get("shortest_edge") or min(entry["height"], entry["width"])
        return int(entry)

    resized = side(stored.get("size", BILINEAR.size))
    crops = bool(stored.get("do_center_crop"))
    size = side(stored.get("crop_size", resized)) if crops else resized
    return Preprocessing(
        size,
        "crop" if crops else "squash",
        max(size, resized),
        "bicubic" if stored.get("resample", 2) == _BICUBIC else "bilinear",
        tuple(stored.get("image_mean") or IMAGENET[0]),
        tuple(stored.get("image_std") or IMAGENET[1]),
    )
