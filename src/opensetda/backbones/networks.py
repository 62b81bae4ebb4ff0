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

State = dict[str, Tensor]

# What training scripts wrap weights in, in the order of preference.
_WRAPPERS = ("state_dict_ema", "model_ema", "teacher", "state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "backbone.", "network.")
_CONVERTERS = ("checkpoint_filter_fn", "_filter_fn")

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
                library.define(f"{operator}(Tensor a, Tensor b, float c) -> Tensor")
            _declared.append(library)
        return importlib.import_module("timm")


def build_network(timm_name: str, size: int, n_classes: int = 0, **changes: Any) -> nn.Module:
    """Build a network of timm with random weights; with 0 classes it returns pooled features."""
    arguments: dict[str, Any] = {"num_classes": n_classes, **changes}
    if _published(timm_name).fixed_input_size:
        arguments["img_size"] = size
    network: nn.Module = import_timm().create_model(timm_name, pretrained=False, **arguments)
    return network


def ask_timm(name: str, size: int | None = None) -> BackboneSpec:
    """Return timm's facts about a network, and its width at `size`, which is tried out.

    The name may have the tag of its weights; without a size it is the network's default.
    """
    published = _published(name)
    full_name = name if "." in name or not published.tag else f"{name}.{published.tag}"
    height = published.input_size[1]
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
    width, file = _width(full_name, size or height), published.hf_hub_filename
    return BackboneSpec(full_name, width, preprocessing, hub=hub, hub_file=file)


def _published(name: str) -> Any:
    timm = import_timm()
    network = name.partition(".")[0]
    if not timm.is_model(network):
        close = difflib.get_close_matches(network, timm.list_models(), n=1)
        hint = f"; did you mean {TIMM_PREFIX}{close[0]}?" if close else ""
        raise InputError(f"backbone '{TIMM_PREFIX}{name}': timm has no such network{hint}")
    with suppress(RuntimeError):
        if (published := timm.get_pretrained_cfg(name)) is not None:
            return published
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{network}.*")]
    problem = f"timm has no such weights; of {network} it has {', '.join(tags) or 'none'}"
    raise InputError(f"backbone '{TIMM_PREFIX}{name}': {problem}")


def _width(name: str, size: int) -> int:
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


def read_state(path: Path) -> State:
    """Read the tensors of a ``.safetensors`` or torch file."""
    content: Any
    try:
        # The libraries open it by its name: a pipe would block them.
        open_regular(path).close()
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
        is_pickled = type(error).__name__ == "UnpicklingError"
        text = "Python objects are never unpickled" if is_pickled else one_line(error, 120)
        advice = "save the tensors alone: safetensors.torch.save_file(model.state_dict(), FILE)"
        raise InputError(f"{path}: cannot be read as weights ({text}); {advice}") from error
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

    They may be as timm's, or as their first publisher's (torchvision's VGG, DINOv2, OpenAI's
    CLIP), which timm converts. Tensors that the network does not have, such as those of a
    classifier, are left out; a missing or misshapen one is an `InputError` that says `where`.
    """
    wanted, problems = network.state_dict(), []
    for candidate in (_converted(network, state), state):
        chosen = {name: value for name, value in candidate.items() if name in wanted}
        if not all(value.is_meta or bool(value.isfinite().all()) for value in chosen.values()):
            raise InputError(f"{where}: the weights hold NaN or infinity; the file is damaged")
        try:
            network.load_state_dict(chosen)
            return
        except RuntimeError as error:
            problems.append(one_line(error, 200).partition(": ")[2])
    raise InputError(f"{where}: the weights do not fit the network: {problems[-1]}")


def rename_in_order(
    state: Mapping[str, Tensor], names: Mapping[str, Tensor], where: object
) -> State:
    """Give tensors the names of another network with tensors of the same shapes and order."""
    if [value.shape for value in state.values()] != [like.shape for like in names.values()]:
        raise InputError(f"{where}: not the tensors of the network; the file is not the right one")
    return dict(zip(names, state.values(), strict=True))


def _bare(name: str) -> str:
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
    return name if prefix is None else _bare(name.removeprefix(prefix))


def _converted(network: nn.Module, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the weights as timm converts them for this network, if it can."""
    module = sys.modules[type(network).__module__]
    for converter in [getattr(module, name) for name in _CONVERTERS if hasattr(module, name)]:
        # It is made for files of one origin, and fails on others; some take no network.
        for arguments in ((dict(state), network), (dict(state),)):
            with suppress(AttributeError, LookupError, RuntimeError, TypeError, ValueError):
                converted: Mapping[str, Tensor] = converter(*arguments)
                return converted
    return state
