"""What computes features: ONNX Runtime if it is installed, otherwise torch.

On a CPU every worker thread runs one image at a time on one core, whose activations stay in the
core's caches: two to four times faster than batches on all cores, and the features of an image
do not depend on the batch, bit for bit.
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from opensetda.backbones.model import ImageBackbone, load_backbone, normalise
from opensetda.backbones.recipe import Recipe
from opensetda.errors import one_line
from opensetda.system.processes import this_process

TOLERANCE = 1e-3  # largest relative difference between exported and eager features

Images = npt.NDArray[np.uint8]
Features = npt.NDArray[np.float32]

_ACCELERATOR_BATCH = 32
_INPUT = "images"
_OUTPUT = "features"
_SAMPLES = "n"


class ExportError(Exception):
    """A network that ONNX Runtime cannot run; the text says why in a few words."""


class TorchEngine:
    """The network in torch: on a CPU channels-last and with one thread per worker."""

    def __init__(self, backbone: ImageBackbone, device: torch.device) -> None:
        self.batch = 1 if device.type == "cpu" else _ACCELERATOR_BATCH
        network: Any = backbone.eval().to(device)
        self._backbone = network.to(memory_format=torch.channels_last)
        self._device = device
        self._threads = torch.get_num_threads()
        self._turn = threading.Lock()
        self._local = threading.local()

    def run(self, images: Images) -> Features:
        """Return features, (n, width), of pixels, (n, size, size, 3); called by many threads."""
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
        if self._device.type == "cpu":
            # This also sets the default of threads without a number of their own, the main thread
            # perhaps among them: see `release`.
            if not hasattr(self._local, "is_single"):
                torch.set_num_threads(1)
                self._local.is_single = True
            return self._features(pixels)
        with self._turn:
            return self._features(pixels.to(self._device))

    def release(self) -> None:
        """Restore the number of threads of the calling thread, after the workers are done."""
        torch.set_num_threads(self._threads)

    @torch.inference_mode()
    def _features(self, pixels: Tensor) -> Features:
        images = normalise(pixels, self._backbone.recipe.preprocessing)
        images = images.contiguous(memory_format=torch.channels_last)
        return np.asarray(self._backbone(images).float().cpu().numpy())


class OnnxEngine:
    """The network in ONNX Runtime, with one thread per caller.

    An `ExportError` if it is not installed, or if the features of two probe images differ from
    those of eager torch.
    """

    batch = 1

    def __init__(self, backbone: ImageBackbone) -> None:
        if find_spec("onnxruntime") is None:
            raise ExportError("ONNX Runtime is not installed (pip install 'opensetda[onnx]')")
        import onnxruntime

        images = probe_images(backbone.recipe.preprocessing.size)
        module = FromPixels(backbone).eval()
        pixels = torch.from_numpy(images)
        graph = export(module, pixels, _INPUT, [_OUTPUT])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        # A sixth faster: with all sizes known, the padding becomes part of convolutions.
        options.add_free_dimension_override_by_name(_SAMPLES, 1)
        try:
            self._session = onnxruntime.InferenceSession(
                graph, options, providers=["CPUExecutionProvider"]
            )
            features = np.concatenate([self.run(image[None]) for image in images])
        except Exception as error:
            # The exceptions of ONNX Runtime have no common base but this one.
            raise ExportError(f"does not run in ONNX Runtime ({one_line(error, 120)})") from error
        with torch.no_grad():
            difference = relative_difference(features, module(pixels).numpy())
        if not difference <= TOLERANCE:
            raise ExportError(f"features of ONNX Runtime differ from torch's by {difference:.1e}")

    def run(self, images: Images) -> Features:
        """See `TorchEngine.run`."""
        (features,) = self._session.run([_OUTPUT], {_INPUT: images})
        return np.asarray(features, dtype=np.float32)

    def release(self) -> None:
        """Do nothing: `run` changes no global setting."""


def make_engine(
    recipe: Recipe, state: Mapping[str, Tensor] | None = None
) -> tuple[TorchEngine | OnnxEngine, list[str]]:
    """Build the engine for a recipe, with its weights or `state`; also return warnings.

    On a CPU it is ONNX Runtime, if that is installed and agrees with torch.
    """
    device: torch.device = this_process().device
    backbone = load_backbone(recipe, state)
    problems = []
    if device.type == "cpu":
        try:
            return OnnxEngine(backbone), []
        except ExportError as error:
            problems = [f"{recipe.backbone}: {error}; torch is used, which is slower"]
    return TorchEngine(backbone, device), problems


def export(module: nn.Module, example: Tensor, name: str, outputs: Sequence[str]) -> bytes:
    """Return a module of one input as the content of an ONNX file; the first size varies."""
    graph = io.BytesIO()
    names = [name, *outputs]
    try:
        with warnings.catch_warnings(), torch.no_grad():
            # The exporter that needs no further package is deprecated.
            warnings.simplefilter("ignore")
            # Otherwise it prints the graph if it fails. Private: it may be gone one day.
            if hasattr(torch._C, "_jit_set_onnx_log_enabled"):
                torch._C._jit_set_onnx_log_enabled(False)
            torch.onnx.export(
                module.eval(),
                (example,),
                graph,  # type: ignore[arg-type]
                input_names=[name],
                output_names=list(outputs),
                dynamic_axes={value: {0: _SAMPLES} for value in names},
                opset_version=17,
                dynamo=False,
            )
    except Exception as error:
        raise ExportError(f"cannot be exported to ONNX ({one_line(error, 120)})") from error
    return graph.getvalue()


def probe_images(size: int) -> Images:
    """Return two images, one smooth and one noisy, always the same."""
    ramp = np.linspace(0, 255, size)
    smooth = np.stack([*np.meshgrid(ramp, ramp), np.full((size, size), 128.0)], axis=-1)
    noisy = np.random.default_rng(0).integers(0, 256, (size, size, 3))
    return np.stack([smooth, noisy]).astype(np.uint8)


def relative_difference(features: Features, expected: Features) -> float:
    """Return the largest |a - b| / |b| over rows."""
    difference = np.linalg.norm(features - expected, axis=1)
    return float((difference / np.maximum(np.linalg.norm(expected, axis=1), 1e-12)).max())


class FromPixels(nn.Module):
    """A backbone that takes decoded uint8 pixels, (n, size, size, 3)."""

    scale: Tensor
    shift: Tensor

    def __init__(self, backbone: ImageBackbone) -> None:
        super().__init__()
        preprocessing = backbone.recipe.preprocessing
        mean = torch.tensor(preprocessing.mean)
        std = torch.tensor(preprocessing.std)
        self.backbone = backbone
        self.register_buffer("scale", 1 / (255 * std).view(3, 1, 1))
        self.register_buffer("shift", -(mean / std).view(3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """Return features, (n, width)."""
        images = pixels.permute(0, 3, 1, 2).float() * self.scale + self.shift
        features: Tensor = self.backbone(images)
        return features
