"""Backbones by short names."""

from __future__ import annotations

import difflib
import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Literal

from opensetda.backbones.file_digests import FileDigests
from opensetda.backbones.recipe import TIMM_PREFIX, BackboneSpec, Preprocessing, Recipe
from opensetda.backbones.weights import find_weights
from opensetda.errors import InputError
from opensetda.system.files import new_file, write_json

DEFAULT_BACKBONE = "efficientnet-lite0"

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
# (x - 127) / 128, as the weights were trained.
_LITE = ((127 / 255,) * 3, (128 / 255,) * 3)

_SMALLEST_SIZE = 32


def _spec(
    timm_name: str,
    width: int,
    colours: tuple[tuple[float, ...], tuple[float, ...]] = _IMAGENET,
    resize: Literal["squash", "crop"] = "crop",
    shorter_side: int = 256,
    interpolation: Literal["bicubic", "bilinear"] = "bicubic",
    patch: int = 1,
    embedded: bool = False,
) -> BackboneSpec:
    (red, green, blue), std = colours
    return BackboneSpec(
        timm_name,
        width,
        Preprocessing(
            224, resize, shorter_side, interpolation, (red, green, blue), (std[0], std[1], std[2])
        ),
        patch,
        embedded,
        hub=f"timm/{timm_name}",
    )


BACKBONES: dict[str, BackboneSpec] = {
    # Small and fast; its ImageNet weights are bundled.
    "efficientnet-lite0": _spec(
        "tf_efficientnet_lite0.in1k",
        1280,
        _LITE,
        resize="squash",
        shorter_side=224,
        embedded=True,
    ),
    # The paper's two. ResNet with the original weights; VGG up to fc7, of which only the
    # fully connected layers are trained.
    "resnet50": _spec("resnet50.tv_in1k", 2048, interpolation="bilinear"),
    "vgg19": _spec("vgg19.tv_in1k", 4096, interpolation="bilinear"),
    # Self-supervised ViT-S/14 and ViT-B/14.
    "dinov2-small": _spec("vit_small_patch14_dinov2.lvd142m", 384, patch=14),
    "dinov2-base": _spec("vit_base_patch14_dinov2.lvd142m", 768, patch=14),
    # CLIP ViT-B/16 and ViT-L/14, before their projections.
    "clip-vit-base": _spec(
        "vit_base_patch16_clip_224.openai", 768, _CLIP, shorter_side=224, patch=16
    ),
    "clip-vit-large": _spec(
        "vit_large_patch14_clip_224.openai", 1024, _CLIP, shorter_side=224, patch=14
    ),
    # Trained on ImageNet-22k.
    "convnext-tiny": _spec("convnext_tiny.fb_in22k", 768),
    "convnext-base": _spec("convnext_base.fb_in22k", 1024),
}


def resolve(
    name: str = DEFAULT_BACKBONE,
    weights: str | Path | None = None,
    size: int | None = None,
    memory: Path | None = None,
) -> Recipe:
    """Return the recipe of a backbone: all that determines its features.

    Parameters
    ----------
    name : str
        A name of `BACKBONES`, or ``timm:NAME`` for any other network of timm.
    weights : str or Path, optional
        "embedded", "hub" or a file; None: embedded if available, otherwise hub.
    size : int, optional
        Side of the images in pixels; None: the backbone's default.
    memory : Path, optional
        Cache folder for facts about timm's networks and digests of weights, so that a second
        run needs neither timm nor torch.
    """
    version = metadata.version("timm")
    spec = _look_up(name, size, version, memory)
    preprocessing = spec.preprocessing if size is None else _resized(spec, name, size)
    found = find_weights(name, spec, weights)
    with FileDigests(memory) as digests:
        try:
            sha256 = digests.digest(found.path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"{found.path}: weights cannot be read ({reason})") from error
    return Recipe(name, spec.timm_name, found.origin, sha256, spec.width, preprocessing, version)


def _look_up(name: str, size: int | None, version: str, memory: Path | None) -> BackboneSpec:
    if name in BACKBONES:
        return BACKBONES[name]
    if not name.startswith(TIMM_PREFIX):
        close = difflib.get_close_matches(name, BACKBONES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(
            f"backbone {name!r}: not known{hint} (there are {', '.join(BACKBONES)}; "
            f"any other network of timm as {TIMM_PREFIX}NAME)"
        )
    note = None if memory is None else _note(memory, name, size, version)
    remembered = None if note is None else _recall(note)
    if remembered is not None:
        return remembered
    from opensetda.backbones.networks import ask_timm

    spec = ask_timm(name.removeprefix(TIMM_PREFIX), size)
    if note is not None:
        _remember(note, spec)
    return spec


def _resized(spec: BackboneSpec, name: str, size: int) -> Preprocessing:
    usual = spec.preprocessing
    if size < _SMALLEST_SIZE or size % spec.patch:
        multiple = f", a multiple of {spec.patch}" if spec.patch > 1 else ""
        raise InputError(
            f"--image-size {size}: {name} needs at least {_SMALLEST_SIZE} pixels{multiple}"
        )
    shorter_side = max(size, int(size * usual.shorter_side / usual.size))
    return replace(usual, size=size, shorter_side=shorter_side)


def _note(memory: Path, name: str, size: int | None, version: str) -> Path:
    text = json.dumps([name, size, version])
    return memory / "networks" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _recall(note: Path) -> BackboneSpec | None:
    try:
        return BackboneSpec.from_dict(json.loads(note.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        # Missing or damaged: timm is asked again.
        return None


def _remember(note: Path, spec: BackboneSpec) -> None:
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        with new_file(note) as aside:
            write_json(aside, spec.to_dict())
