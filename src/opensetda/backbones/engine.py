"""What computes features: ONNX Runtime where it can, otherwise torch.

On a CPU every worker thread runs one image at a time on one core: activations of one
image stay in the core's caches and in memory that is used again and again, which is two
to four times faster than batches on all cores. It also makes an image's features
independent of its company, to the bit.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from opensetda.backbones.model import ImageBackbone, load_backbone
from opensetda.backbones.preprocess import normalise
from opensetda.backbones.recipe import Recipe
from opensetda.errors import InputError

ENGINES = ("auto", "onnx", "torch")

Images = npt.NDArray[np.uint8]
Features = npt.NDArray[np.float32]

_ACCELERATOR_BATCH = 32


class Engine(Protocol):
    """Computes features; may be called from many threads.

    Attributes
    ----------
    name : str
        "onnx" or "torch".
    batch : int
        Images to hand over at once.
    """

    name: str
    batch: int

    def run(self, images: Images) -> Features:
        """Return features, (n, width), of pixels, (n, size, size, 3)."""
        ...

    def release(self) -> None:
        """Undo what running changed for the rest of the process."""
        ...


class TorchEngine:
    """The network itself: on a CPU channels-last and one thread a worker.

    Parameters
    ----------
    backbone : ImageBackbone
        The network.
    device : torch.device
        Where to run it.
    threads : int, optional
        Threads that `release` gives the calling thread back; None: those of the thread
        that builds this.
    """

    name = "torch"

    def __init__(
        self, backbone: ImageBackbone, device: torch.device, threads: int | None = None
    ) -> None:
        self.batch = 1 if device.type == "cpu" else _ACCELERATOR_BATCH
        network: Any = backbone.eval().to(device)
        self._backbone = network.to(memory_format=torch.channels_last)
        self._device = device
        self._threads = threads or torch.get_num_threads()
        self._preprocessing = backbone.recipe.preprocessing
        self._turn = threading.Lock()
        self._local = threading.local()

    def run(self, images: Images) -> Features:
        """Return features, (n, width), of pixels, (n, size, size, 3)."""
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
        with torch.inference_mode():
            if self._device.type == "cpu":
                self._use_one_thread()
                return self._features(pixels)
            with self._turn:
                return self._features(pixels.to(self._device))

    def release(self) -> None:
        """Give the calling thread back the threads it had; the workers are done."""
        torch.set_num_threads(self._threads)

    def _features(self, pixels: Tensor) -> Features:
        images = normalise(pixels, self._preprocessing)
        images = images.contiguous(memory_format=torch.channels_last)
        return np.asarray(self._backbone(images).float().cpu().numpy())

    def _use_one_thread(self) -> None:
        # Also the number of every thread that has none of its own yet, which the main thread
        # may be: see `release`.
        if not hasattr(self._local, "told"):
            torch.set_num_threads(1)
            self._local.told = True


def make_engine(
    recipe: Recipe,
    choice: str = "auto",
    state: Mapping[str, Tensor] | None = None,
    memory: Path | None = None,
    threads: int | None = None,
) -> tuple[Engine, list[str]]:
    """Build what computes a recipe's features; also return warnings, one line each.

    Parameters
    ----------
    recipe : Recipe
        What `registry.resolve` returned.
    choice : {"auto", "onnx", "torch"}
        "auto": ONNX Runtime on a CPU, if it is installed and agrees with torch.
    state : mapping of str to Tensor, optional
        Fine-tuned weights instead of the recipe's.
    memory : Path, optional
        Cache folder in which exported networks are kept; fine-tuned ones are not.
    threads : int, optional
        torch's threads in the thread that releases the engine; None: as in this one.
    """
    if choice not in ENGINES:
        raise InputError(f"engine {choice!r}: must be one of {', '.join(ENGINES)}")
    device = _device()
    if choice == "torch" or (choice == "auto" and device.type != "cpu"):
        return TorchEngine(load_backbone(recipe, state), device, threads), []
    if find_spec("onnxruntime") is None:
        advice = "install it with: pip install 'opensetda[onnx]'"
        if choice == "onnx":
            raise InputError(f"engine 'onnx': ONNX Runtime is not installed; {advice}")
        reason = f"ONNX Runtime is not installed, so that extraction is slower; {advice}"
        return TorchEngine(load_backbone(recipe, state), device, threads), [reason]
    from opensetda.backbones.onnx_engine import ExportError, open_onnx_engine

    try:
        return open_onnx_engine(recipe, state, memory)
    except ExportError as error:
        if choice == "onnx":
            raise InputError(f"engine 'onnx': {recipe.backbone}: {error}") from error
        reason = f"{recipe.backbone}: {error}; torch is used, which is slower"
        return TorchEngine(load_backbone(recipe, state), device, threads), [reason]


def _device() -> torch.device:
    from accelerate import PartialState

    device = PartialState().device
    assert isinstance(device, torch.device)
    return device
