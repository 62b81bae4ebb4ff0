"""CLIP: one network for images and one for texts, whose features may be compared by cosine.

The names of classes, in templates such as "a photo of a {}.", become rows beside those of images.
Models are loaded by open_clip, from a folder or a repository of the hub, both with an
``open_clip_config.json``; their weights are read as tensors only.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from opensetda.backbones.recipe import CLIP_PREFIX, Preprocessing
from opensetda.backbones.timm_import import import_timm
from opensetda.errors import InputError, one_line
from opensetda.rows import FloatArray, TextRows

_TEXTS = 256  # that are in memory at a time


class ClipNetwork(nn.Module):
    """The image tower of a CLIP, as a backbone: unit rows. `text_rows` asks the other tower."""

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        super().__init__()
        self.model = model
        # Holds no tensors; a copy of the network shares it.
        self._tokenizer = tokenizer
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("visual."))

    def forward(self, images: Tensor) -> Tensor:
        """Return features of normalised images: (N, 3, S, S) -> (N, width)."""
        model: Any = self.model
        return F.normalize(model.encode_image(images), dim=1)

    @torch.no_grad()
    def text_rows(self, names: Sequence[str], templates: Sequence[str]) -> FloatArray:
        """Return a unit row for each name: the mean of its unit rows in all templates."""
        model: Any = self.model
        texts = [template.replace("{}", name) for name in names for template in templates]
        parts: list[Tensor] = []
        for start in range(0, len(texts), _TEXTS):
            tokens = self._tokenizer(texts[start : start + _TEXTS])
            parts.append(F.normalize(model.encode_text(tokens).double(), dim=1))
        rows = torch.cat(parts).view(len(names), len(templates), -1).mean(dim=1)
        return np.asarray(F.normalize(rows, dim=1).numpy())


def text_rows(
    network: nn.Module, classes: Sequence[str], templates: Sequence[str], unknowns: Sequence[str]
) -> TextRows:
    """Return the rows of the names of classes, and of those of unknowns, by a CLIP."""
    assert isinstance(network, ClipNetwork), "prompts are refused for other backbones"
    of_classes = network.text_rows([_spoken(name) for name in classes], templates)
    if not unknowns:
        return TextRows(of_classes, np.empty((0, of_classes.shape[1])))
    return TextRows(of_classes, network.text_rows([_spoken(name) for name in unknowns], templates))


def _spoken(name: str) -> str:
    """Return a name as a caption would have it: folders are named "coffee_mug"."""
    return name.replace("_", " ").strip()


def load_clip(place: str) -> tuple[nn.Module, Preprocessing]:
    """Load a CLIP from a folder, or from a repository of the hub, ORGANISATION/NAME."""
    name = f"{CLIP_PREFIX}{place}"
    if find_spec("open_clip") is None:
        problem = "open_clip is not installed; pip install 'opensetda[clip]'"
        raise InputError(f"backbone {name!r}: {problem}")
    import_timm()  # Repairs a torchvision that does not import, which open_clip needs, too.
    import open_clip

    folder = Path(place).expanduser()
    address = f"local-dir:{folder}" if folder.is_dir() else f"hf-hub:{place}"
    try:
        model = open_clip.create_model(address, require_pretrained=True, weights_only=True)
        tokenizer = open_clip.get_tokenizer(address)
        how = _preprocessing(open_clip.get_model_preprocess_cfg(model))
    except Exception as error:
        # Errors of the hub, of the files and of the model have no common base.
        problem = one_line(error, 160)
        advice = "give a repository of open_clip on the hub, ORGANISATION/NAME, or its folder"
        raise InputError(f"backbone {name!r}: {problem}; {advice}") from error
    return ClipNetwork(model, tokenizer).eval(), how


def _preprocessing(stored: dict[str, Any]) -> Preprocessing:
    """Return how a CLIP wants its images; a `ValueError` for ways that we do not have."""
    size = stored["size"]
    height, width = (size, size) if isinstance(size, int) else size
    resize = {"shortest": "crop", "squash": "squash"}.get(stored["resize_mode"])
    if height != width or resize is None or stored["interpolation"] not in ("bicubic", "bilinear"):
        raise ValueError(f"images of this kind are not supported: {stored}")
    return Preprocessing(
        size=height,
        resize="crop" if resize == "crop" else "squash",
        shorter_side=height,
        interpolation=stored["interpolation"],
        mean=tuple(stored["mean"]),
        std=tuple(stored["std"]),
    )
