"""timm: its networks without classifier, its facts about them, and weights for them from files.

timm imports torchvision. A torchvision whose compiled part does not load, for example the CUDA
build beside a CPU-only torch, fails with "operator torchvision::nms does not exist". None of its
compiled operators is used here, so declaring the two that it asks for is enough.

Every tensor of a weights file is checked before it is used. Nothing is ever unpickled.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from opensetda.backbones.recipe import IMAGENET, TIMM_PREFIX, BackboneSpec, Preprocessing
from opensetda.errors import InputError, one_line
from opensetda.system.files import open_regular
from opensetda.system.memory import check_free

State = dict[str, Tensor]

# What training scripts wrap weights in, in the order of preference.
_WRAPPERS = ("state_dict_ema", "model_ema", "teacher", "state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "backbone.", "network.")
_CONVERTERS = ("checkpoint_filter_fn", "_filter_fn")
_PATCHES = "patch_embed.proj.weight"

_importing = threading.Lock()
_declared: list[Any] = []  # torch forgets operators whose Library object is gone


def import_timm() -> ModuleType:
    """Return timm; nothing else imports it."""
    with _importing:
        try:
            importlib.import_module("torchvision")
        except RuntimeError as error:
            if "torchvision::nms" not in str(error):
                raise
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]  # half imported
            library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
            for operator in ("nms", "qnms"):
                arguments = "Tensor dets, Tensor scores, float iou_threshold"
                library.define(f"{operator}({arguments}) -> Tensor")
            _declared.append(library)
        return importlib.import_module("timm")


def build_network(timm_name: str, size: int, n_classes: int = 0, **changes: Any) -> nn.Module:
    """Build a network of timm with random weights; with 0 classes it returns pooled features."""
    arguments: dict[str, Any] = {"num_classes": n_classes, **changes}
    if _published(timm_name).fixed_input_size:
        arguments["img_size"] = size
    try:
        network = import_timm().create_model(timm_name, pretrained=False, **arguments)
    except (AssertionError, RuntimeError, ValueError, TypeError) as error:
        raise _wrong_size(timm_name, size, error) from error
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
    squash = published.crop_mode == "squash"
    preprocessing = Preprocessing(
        height,
        "squash" if squash else "crop",
        height if squash else max(height, int(height / (published.crop_pct or 1.0))),
        "bilinear" if published.interpolation == "bilinear" else "bicubic",
        tuple(published.mean or IMAGENET[0]),
        tuple(published.std or IMAGENET[1]),
    )
    hub = None if published.custom_load else published.hf_hub_id
    width = _width(full_name, size or height)
    return BackboneSpec(
        full_name, width, preprocessing, hub=hub, hub_file=published.hf_hub_filename
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
                raise _wrong_size(name, size, error) from error
    if features.ndim != 2:
        raise InputError(f"{name}: gives no feature vector per image; choose another backbone")
    return int(features.shape[1])


def _wrong_size(name: str, size: int, error: Exception) -> InputError:
    problem = f"does not work on {size} x {size} pixels ({one_line(error, 120)})"
    return InputError(f"{name}: {problem}; choose another --image-size")


def read_state(path: Path) -> State:
    """Read the tensors of a ``.safetensors`` or torch file."""
    content: Any
    try:
        # The libraries open it by its name: a pipe would block them.
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
        check_free(size, f"{path}: reading it", "give the file of a network")
        if path.suffix == ".safetensors":
            content = load_file(path)
        else:
            # Training scripts store their options beside the weights, as plain values.
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:
        # A damaged file may raise anything.
        text = one_line(error)
        is_pickled = type(error).__name__ == "UnpicklingError"
        if is_pickled and "unsupported operand" not in text.lower():
            text = "it holds Python objects, which are never unpickled"
        advice = "save the tensors alone: safetensors.torch.save_file(model.state_dict(), FILE)"
        raise InputError(f"{path}: cannot be read as weights ({text[:120]}); {advice}") from error
    while isinstance(content, Mapping) and (
        inner := [content[w] for w in _WRAPPERS if w in content]
    ):
        content = inner[0]
    named = content if isinstance(content, Mapping) else {}
    state = {_bare(str(name)): value for name, value in named.items() if torch.is_tensor(value)}
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
    if _PATCHES in wanted and _PATCHES in state and state[_PATCHES].ndim == wanted[_PATCHES].ndim:
        # timm would silently resample the patches of another network.
        problem = _problem({_PATCHES: wanted[_PATCHES]}, state)
        candidates = [] if problem else _candidates(network, state)
    else:
        problem, candidates = None, _candidates(network, state)
    for candidate in candidates:
        found = _problem(wanted, candidate)
        if found is None:
            chosen = {name: candidate[name] for name in wanted if name in candidate}
            network.load_state_dict(chosen, strict=False)
            return
        problem = problem or found
    raise InputError(f"{where}: the weights do not fit the network: {problem}")


def rename_in_order(
    state: Mapping[str, Tensor], names: Mapping[str, Tensor], where: object
) -> State:
    """Give tensors the names of another network with tensors of the same shapes and order."""
    shapes = [value.shape for value in state.values()]
    if shapes != [like.shape for like in names.values()]:
        raise InputError(f"{where}: not the tensors of the network; the file is not the right one")
    return dict(zip(names, state.values(), strict=True))


def _bare(name: str) -> str:
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
    return name if prefix is None else _bare(name.removeprefix(prefix))


def _candidates(network: nn.Module, state: Mapping[str, Tensor]) -> list[Mapping[str, Tensor]]:
    """Return the weights as timm converts them for this network, then as they are."""
    module = sys.modules[type(network).__module__]
    for converter in [getattr(module, name) for name in _CONVERTERS if hasattr(module, name)][:1]:
        # It is made for files of one origin, and fails on others; some take no network.
        for arguments in ((dict(state), network), (dict(state),)):
            with suppress(AttributeError, LookupError, RuntimeError, TypeError, ValueError):
                return [converter(*arguments), state]
    return [state]


def _problem(wanted: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str | None:
    for name, own in wanted.items():
        value = state.get(name)
        if value is None:
            if not name.endswith("num_batches_tracked"):
                return f"{name!r} is missing"
        elif value.shape != own.shape:
            return f"{name!r} has shape {_shape(value)} where {_shape(own)} is needed"
        elif value.is_floating_point() and not value.is_meta and not value.isfinite().all():
            return f"{name!r} holds NaN or infinity; the file is damaged"
    return None


def _shape(value: Tensor) -> str:
    return " x ".join(map(str, value.shape)) or "a number"
