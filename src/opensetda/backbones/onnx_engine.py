"""Backbones in ONNX Runtime: exported once, compared with torch, kept in the cache folder.

Fine-tuned ones are not kept: each belongs to one run, and they would pile up.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from opensetda.backbones.model import ImageBackbone, load_backbone
from opensetda.backbones.recipe import Preprocessing, Recipe
from opensetda.errors import InputError
from opensetda.system.files import new_folder

TOLERANCE = 1e-3
"""Largest relative difference between exported and eager features of the probe images."""

Features = npt.NDArray[np.float32]
Images = npt.NDArray[np.uint8]

_OPSET = 17
_INPUT, _OUTPUT = "images", "features"
_GRAPH_FILE, _PROBE_FILE = "network.onnx", "probe.npy"


class ExportError(Exception):
    """A network that cannot be used in ONNX Runtime; the text says why in a few words."""


class OnnxEngine:
    """A network in ONNX Runtime, one thread a caller.

    Parameters
    ----------
    graph : str or bytes
        Path or content of the exported network.
    """

    name = "onnx"
    batch = 1

    def __init__(self, graph: str | bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(
                graph, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            # Its exceptions have no common base but this one.
            raise ExportError(f"ONNX Runtime cannot load it ({_reason(error)})") from error

    def run(self, images: Images) -> Features:
        """Return features, (n, width), of pixels, (n, size, size, 3)."""
        (features,) = self._session.run([_OUTPUT], {_INPUT: images})
        return np.asarray(features, dtype=np.float32)

    def release(self) -> None:
        """Do nothing: running changes nothing for others."""


def open_onnx_engine(
    recipe: Recipe, state: Mapping[str, Tensor] | None = None, memory: Path | None = None
) -> tuple[OnnxEngine, list[str]]:
    """Load an exported network from the cache folder, or export it; a fine-tuned one each time.

    Either way its features of two probe images are compared with those of eager torch.

    Returns
    -------
    engine : OnnxEngine
        Ready to run.
    warnings : list of str
        One line each.
    """
    folder = None
    if memory is not None and state is None:
        folder = memory / "networks" / _key(recipe)
    found: list[str] = []
    if folder is not None and folder.is_dir():
        try:
            return _kept(folder, recipe), found
        except Exception as error:
            # Whatever damaged files raise: cut ones an EOFError, others what numpy stumbles over.
            found.append(f"{folder}: a damaged exported network, made anew ({_reason(error)})")
    backbone = load_backbone(recipe, state)
    graph = export(backbone)
    engine = OnnxEngine(graph)
    images = probe_images(recipe.preprocessing)
    expected = eager_features(backbone, images)
    _compare(engine, images, expected)
    if folder is not None:
        # Somebody else may have been faster, or the disk full: then it is exported again.
        with suppress(OSError), new_folder(folder) as aside:
            (aside / _GRAPH_FILE).write_bytes(graph)
            np.save(aside / _PROBE_FILE, expected)
    return engine, found


def export(backbone: ImageBackbone) -> bytes:
    """Return a backbone as an ONNX graph: bytes of pixels in, features out."""
    size = backbone.recipe.preprocessing.size
    module = _FromPixels(backbone).eval()
    graph = io.BytesIO()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            # The exporter that needs no further package is said to be going away.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                (torch.zeros(2, size, size, 3, dtype=torch.uint8),),
                graph,  # type: ignore[arg-type]
                input_names=[_INPUT],
                output_names=[_OUTPUT],
                dynamic_axes={_INPUT: {0: "n"}, _OUTPUT: {0: "n"}},
                opset_version=_OPSET,
                dynamo=False,
            )
    except Exception as error:
        # Whatever a network does that the exporter does not know ends here.
        raise ExportError(f"cannot be exported to ONNX ({_reason(error)})") from error
    return graph.getvalue()


def probe_images(preprocessing: Preprocessing) -> Images:
    """Return two images, one smooth and one noisy, always the same."""
    size = preprocessing.size
    ramp = np.linspace(0, 255, size)
    smooth = np.stack([*np.meshgrid(ramp, ramp), np.full((size, size), 128.0)], axis=-1)
    noisy = np.random.default_rng(0).integers(0, 256, (size, size, 3))
    return np.stack([smooth, noisy]).astype(np.uint8)


def eager_features(backbone: ImageBackbone, images: Images) -> Features:
    """Return the features that plain torch computes of pixels, (n, size, size, 3)."""
    with torch.no_grad():
        return np.asarray(_FromPixels(backbone).eval()(torch.from_numpy(images)).numpy())


def relative_difference(features: Features, expected: Features) -> float:
    """Return the largest |a - b| / |b| over rows."""
    difference = np.linalg.norm(features - expected, axis=1)
    return float((difference / np.maximum(np.linalg.norm(expected, axis=1), 1e-12)).max())


class _FromPixels(nn.Module):
    """A backbone that takes bytes as they are decoded, (n, size, size, 3)."""

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


def _kept(folder: Path, recipe: Recipe) -> OnnxEngine:
    expected = np.load(folder / _PROBE_FILE, allow_pickle=False)
    engine = OnnxEngine(str(folder / _GRAPH_FILE))
    _compare(engine, probe_images(recipe.preprocessing), expected)
    return engine


def _compare(engine: OnnxEngine, images: Images, expected: Features) -> None:
    try:
        features = np.concatenate([engine.run(image[None]) for image in images])
    except Exception as error:
        # As above.
        raise ExportError(f"does not run in ONNX Runtime ({_reason(error)})") from error
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


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
