"""What computes features: ONNX Runtime where possible, otherwise torch.

On a CPU every worker thread runs one image at a time on one core, whose activations stay in the
core's caches: two to four times faster than batches on all cores, and the features of an image
do not depend on the batch, bit for bit.

A network is exported to ONNX once, compared with torch, and kept in the cache folder. Fine-tuned
ones are not kept: each belongs to one run, and they would pile up.
"""

from __future__ import annotations

import hashlib
import io
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate import PartialState
from torch import Tensor, nn

from opensetda.backbones.model import ImageBackbone, load_backbone, normalise
from opensetda.backbones.recipe import Recipe
from opensetda.errors import InputError, one_line
from opensetda.system.files import new_folder, open_regular

ENGINES = ("auto", "onnx", "torch")
TOLERANCE = 1e-3  # largest relative difference between exported and eager features

Images = npt.NDArray[np.uint8]
Features = npt.NDArray[np.float32]

_ACCELERATOR_BATCH = 32
_INPUT, _OUTPUT = "images", "features"
_GRAPH_FILE, _DIGEST_FILE, _PROBE_FILE = "network.onnx", "network.sha256", "probe.npy"


class TorchEngine:
    """The network in torch: on a CPU channels-last and with one thread per worker.

    `release` restores torch's number of `threads`; None: that of the calling thread.
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
        images = normalise(pixels, self._preprocessing)
        images = images.contiguous(memory_format=torch.channels_last)
        return np.asarray(self._backbone(images).float().cpu().numpy())


def make_engine(
    recipe: Recipe,
    choice: str = "auto",
    state: Mapping[str, Tensor] | None = None,
    memory: Path | None = None,
    threads: int | None = None,
) -> tuple[TorchEngine | OnnxEngine, list[str]]:
    """Build the engine for a recipe, with its weights or `state`; also return warnings.

    "auto" chooses ONNX Runtime on a CPU, if it is installed and agrees with torch. `memory` is
    the cache folder for exported networks, `threads` that of `TorchEngine`.
    """
    if choice not in ENGINES:
        raise InputError(f"engine {choice!r}: must be one of {', '.join(ENGINES)}")
    device: torch.device = PartialState().device
    if choice == "torch" or (choice == "auto" and device.type != "cpu"):
        return TorchEngine(load_backbone(recipe, state), device, threads), []
    if find_spec("onnxruntime") is None:
        problem = "ONNX Runtime is not installed"
        advice = "; install it with: pip install 'opensetda[onnx]'"
    else:
        try:
            return open_onnx_engine(recipe, state, memory)
        except ExportError as error:
            problem, advice = f"{recipe.backbone}: {error}", ""
    if choice == "onnx":
        raise InputError(f"engine 'onnx': {problem}{advice}")
    reason = f"{problem}; torch is used, which is slower{advice}"
    return TorchEngine(load_backbone(recipe, state), device, threads), [reason]


class ExportError(Exception):
    """A network that ONNX Runtime cannot run; the text says why in a few words."""


@contextmanager
def _exports(problem: str) -> Iterator[None]:
    # The exceptions of the exporter and of ONNX Runtime have no common base but this one.
    try:
        yield
    except Exception as error:
        raise ExportError(f"{problem} ({one_line(error, 120)})") from error


class OnnxEngine:
    """An exported network, given by its content, with one thread per caller."""

    name = "onnx"
    batch = 1

    def __init__(self, graph: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        with _exports("ONNX Runtime cannot load it"):
            self._session = onnxruntime.InferenceSession(
                graph, options, providers=["CPUExecutionProvider"]
            )

    def run(self, images: Images) -> Features:
        """See `TorchEngine.run`."""
        (features,) = self._session.run([_OUTPUT], {_INPUT: images})
        return np.asarray(features, dtype=np.float32)

    def release(self) -> None:
        """Do nothing: `run` changes no global setting."""


def open_onnx_engine(
    recipe: Recipe, state: Mapping[str, Tensor] | None = None, memory: Path | None = None
) -> tuple[OnnxEngine, list[str]]:
    """Load an exported network from the cache folder, or export it; also return warnings.

    Either way its features of two probe images are compared with those of eager torch.
    """
    images = probe_images(recipe.preprocessing.size)
    folder = None
    if memory is not None and state is None:
        folder = memory / "networks" / _key(recipe)
    found: list[str] = []
    if folder is not None and folder.is_dir():
        try:
            with open_regular(folder / _GRAPH_FILE) as stream:
                graph = stream.read()
            if (folder / _DIGEST_FILE).read_text() != hashlib.sha256(graph).hexdigest():
                raise ExportError("its checksum differs")
            expected = np.load(folder / _PROBE_FILE, allow_pickle=False)
            engine = OnnxEngine(graph)
            _compare(engine, images, expected)
            return engine, found
        except Exception as error:
            # Damaged files may raise anything.
            problem = f"a damaged exported network, exported again ({one_line(error, 120)})"
            found.append(f"{folder}: {problem}")
    backbone = load_backbone(recipe, state)
    graph = export(backbone)
    engine = OnnxEngine(graph)
    with torch.no_grad():
        expected = _FromPixels(backbone).eval()(torch.from_numpy(images)).numpy()
    _compare(engine, images, expected)
    if folder is not None:
        # Another process may have been faster, or the disk is full: then it is exported again.
        with suppress(OSError), new_folder(folder) as aside:
            (aside / _GRAPH_FILE).write_bytes(graph)
            (aside / _DIGEST_FILE).write_text(hashlib.sha256(graph).hexdigest())
            np.save(aside / _PROBE_FILE, expected)
    return engine, found


def export(backbone: ImageBackbone) -> bytes:
    """Return a backbone as an ONNX graph from uint8 pixels to features."""
    size = backbone.recipe.preprocessing.size
    graph = io.BytesIO()
    with _exports("cannot be exported to ONNX"), warnings.catch_warnings(), torch.no_grad():
        # The exporter that needs no further package is deprecated.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _FromPixels(backbone).eval(),
            (torch.zeros(2, size, size, 3, dtype=torch.uint8),),
            graph,  # type: ignore[arg-type]
            input_names=[_INPUT],
            output_names=[_OUTPUT],
            dynamic_axes={_INPUT: {0: "n"}, _OUTPUT: {0: "n"}},
            opset_version=17,
            dynamo=False,
        )
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


class _FromPixels(nn.Module):
    """A backbone that takes decoded uint8 pixels, (n, size, size, 3)."""

    scale: Tensor
    shift: Tensor

    def __init__(self, backbone: ImageBackbone) -> None:
        super().__init__()
        preprocessing = backbone.recipe.preprocessing
        mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
        self.backbone = backbone
        self.register_buffer("scale", 1 / (255 * std).view(3, 1, 1))
        self.register_buffer("shift", -(mean / std).view(3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        images = pixels.permute(0, 3, 1, 2).float() * self.scale + self.shift
        features: Tensor = self.backbone(images)
        return features


def _compare(engine: OnnxEngine, images: Images, expected: Features) -> None:
    with _exports("does not run in ONNX Runtime"):
        features = np.concatenate([engine.run(image[None]) for image in images])
    if features.shape != expected.shape:
        raise ExportError(f"ONNX Runtime gives features of shape {features.shape}")
    difference = relative_difference(features, expected)
    if not difference <= TOLERANCE:
        raise ExportError(f"features of ONNX Runtime differ from torch's by {difference:.1e}")


def _key(recipe: Recipe) -> str:
    digest = hashlib.sha256(recipe.key.encode())
    for package in ("torch", "onnxruntime"):
        try:
            digest.update(metadata.version(package).encode())
        except metadata.PackageNotFoundError as error:
            raise InputError(f"{package}: is not installed as a package") from error
    return digest.hexdigest()[:32]
