"""timm: its import, its networks without classifier, and its facts about them.

timm imports torchvision. A torchvision whose compiled part does not load, for example the CUDA
build beside a CPU-only torch, fails with "operator torchvision::nms does not exist". None of its
compiled operators is used here, so declaring the two that it asks for is enough.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import threading
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch
from torch import nn

from opensetda.backbones.recipe import IMAGENET, TIMM_PREFIX, BackboneSpec, Preprocessing, colours
from opensetda.errors import InputError, one_line

_importing = threading.Lock()
_declared: list[Any] = []  # torch forgets operators whose Library object is gone


def import_timm() -> ModuleType:
    """Return timm; nothing else imports it."""
    with _importing:
        _import_torchvision()
        return importlib.import_module("timm")


def build_network(timm_name: str, size: int, n_classes: int = 0, **changes: Any) -> nn.Module:
    """Build a network of timm with random weights; with 0 classes it returns pooled features."""
    timm = import_timm()
    arguments: dict[str, Any] = {"num_classes": n_classes, **changes}
    if _published(timm_name).fixed_input_size:
        arguments["img_size"] = size
    try:
        network = timm.create_model(timm_name, pretrained=False, **arguments)
    except (AssertionError, RuntimeError, ValueError, TypeError) as error:
        raise InputError(
            f"{timm_name}: timm cannot build it for {size} x {size} pixels ({one_line(error)}); "
            "choose another --image-size"
        ) from error
    assert isinstance(network, nn.Module)
    return network


def ask_timm(name: str, size: int | None = None) -> BackboneSpec:
    """Return timm's facts about a network, and its width at `size`, which is tried out.

    The name may have the tag of its weights; without a size it is the network's default.
    """
    published = _published(name)
    full_name = name if "." in name or not published.tag else f"{name}.{published.tag}"
    channels, height, _ = published.input_size
    if channels != 3:
        raise InputError(f"{TIMM_PREFIX}{name}: wants {channels} colours; red, green, blue needed")
    return BackboneSpec(
        timm_name=full_name,
        width=_width(full_name, size or height),
        preprocessing=_preprocessing(published, height),
        hub=None if published.custom_load else published.hf_hub_id,
        hub_file=published.hf_hub_filename,
    )


def _published(name: str) -> Any:
    timm = import_timm()
    network = name.partition(".")[0]
    if not timm.is_model(network):
        close = difflib.get_close_matches(network, timm.list_models(), n=1)
        hint = f"; did you mean {TIMM_PREFIX}{close[0]}?" if close else ""
        raise InputError(f"backbone '{TIMM_PREFIX}{name}': timm has no such network{hint}")
    published = None
    with suppress(RuntimeError):
        published = timm.get_pretrained_cfg(name)
    if published is None:
        tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{network}.*")]
        raise InputError(
            f"backbone '{TIMM_PREFIX}{name}': timm has no such weights; "
            f"of {network} it has {', '.join(tags) or 'none'}"
        )
    return published


def _preprocessing(published: Any, size: int) -> Preprocessing:
    squash = published.crop_mode == "squash"
    shorter_side = size if squash else max(size, int(size / (published.crop_pct or 1.0)))
    return Preprocessing(
        size,
        "squash" if squash else "crop",
        shorter_side,
        "bilinear" if published.interpolation == "bilinear" else "bicubic",
        colours(published.mean or IMAGENET[0]),
        colours(published.std or IMAGENET[1]),
    )


def _width(name: str, size: int) -> int:
    # On "meta" with shapes alone, which needs no memory or time; some networks cannot do that.
    for device in ("meta", "cpu"):
        try:
            with torch.device(device), torch.no_grad():
                features = build_network(name, size).eval()(torch.zeros(1, 3, size, size))
            break
        except InputError:
            raise
        except (NotImplementedError, RuntimeError, AssertionError, ValueError) as error:
            if device == "cpu":
                raise InputError(
                    f"{name}: does not work on {size} x {size} pixels ({one_line(error, 120)}); "
                    "choose another --image-size"
                ) from error
    if features.ndim != 2:
        raise InputError(f"{name}: gives no feature vector per image; choose another backbone")
    return int(features.shape[1])


def _import_torchvision() -> None:
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]  # half imported
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
        importlib.import_module("torchvision")
