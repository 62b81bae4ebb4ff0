"""A fitted method as an ONNX file, from rows or pixels to labels, and scripts that use the file.

The scripts need neither torch nor this package.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from opensetda import __version__
from opensetda.backbones.engines import ExportError, FromPixels, export
from opensetda.backbones.model import ImageBackbone, resized
from opensetda.backbones.recipe import Preprocessing
from opensetda.base import OpenSetClassifier
from opensetda.errors import InputError
from opensetda.state import json_float

_START = """\
import os
import sys
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before the import
import numpy as np
import onnxruntime
"""

ROW_SCRIPT = f'''\
"""Label rows: python use.py TABLE.csv, or ROWS.npy (needs onnxruntime and numpy)."""

import csv
import json
{_START}
session = onnxruntime.InferenceSession(Path(__file__).with_name("model.onnx"))
about = session.get_modelmeta().custom_metadata_map
if sys.argv[1].endswith(".npy"):
    rows = np.load(sys.argv[1], allow_pickle=False)
else:
    names, categories = json.loads(about["feature_names"]), json.loads(about["categories"])
    values = [(name, value) for name, kinds in categories.items() for value in kinds]
    numbers = names[: len(names) - len(values)]
    with Path(sys.argv[1]).open(newline="") as table:
        rows = [[float(row[name] or "nan") for name in numbers] + [row[c] == v for c, v in values]
                for row in csv.DictReader(table)]  # fmt: skip
rows = np.array(rows, np.float32)
for start in range(0, len(rows), 64):  # More at a time need more memory, and no less time.
    found = session.run(["label", "confidence"], {{"rows": rows[start : start + 64]}})
    for number, (name, share) in enumerate(zip(*found), start=start + 1):
        print(number, name, f"{{share:.3f}}")
'''


class Exported(nn.Module):
    """A fitted method with what comes before and after its scorer.

    `medians` replace NaN, column by column (NaN: nothing does); a `backbone` makes pixels rows.

    Shapes: rows (n, D) or pixels (n, S, S, 3) -> indices of labels (n,), C for unknown; their
    probabilities (n,); all probabilities (n, C + 1); known scores (n,).
    """

    medians: Tensor | None

    def __init__(
        self,
        classifier: OpenSetClassifier,
        medians: Sequence[float] | None = None,
        backbone: ImageBackbone | None = None,
    ) -> None:
        super().__init__()
        self.features = nn.Identity() if backbone is None else FromPixels(backbone)
        self.register_buffer("medians", None if medians is None else torch.tensor(medians))
        self.scaler, self.scorer = classifier.scaler_, classifier.scorer_
        self.rejection = _rejection(classifier)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Label samples, each on its own."""
        rows: Tensor = self.features(x)
        if self.medians is not None:
            rows = torch.where(rows.isnan(), self.medians, rows)
        classes, known = self.scorer(self.scaler(rows))
        threshold, slope = self.rejection
        unknown = torch.zeros_like(known)
        if np.isfinite(threshold):
            unknown = torch.sigmoid(slope * (threshold - known))
        of_classes = classes.softmax(dim=1) * (1 - unknown)[:, None]
        probabilities = torch.cat([of_classes, unknown[:, None]], dim=1)
        # A score that is not a number is not known, either.
        index = torch.where(known >= threshold, classes.argmax(dim=1), classes.shape[1])
        return index, probabilities.gather(1, index[:, None])[:, 0], probabilities, known


def _rejection(classifier: OpenSetClassifier) -> tuple[float, float]:
    return classifier.rejection if classifier.has_target_ else (-np.inf, 0.0)


def describe(classifier: OpenSetClassifier, method: str | None = None) -> dict[str, Any]:
    """Return what a user of the model needs to know, as JSON can hold it."""
    threshold, slope = _rejection(classifier)
    names = getattr(classifier, "feature_names_in_", None)
    return {
        "method": method or type(classifier).__name__,
        "opensetda_version": __version__,
        "classes": [str(name) for name in classifier.classes_.tolist()],
        "unknown_label": str(classifier.unknown_label),
        "threshold": json_float(threshold),
        "slope": float(slope),
        "scaling": classifier.scaler_.name,
        "feature_names": None if names is None else names.tolist(),
    }


def to_onnx(
    classifier: OpenSetClassifier,
    about: Mapping[str, Any] | None = None,
    backbone: ImageBackbone | None = None,
) -> bytes:
    """Return a fitted classifier as the content of an ONNX file, with the outputs of `osda export`.

    Its input is `rows`, float32 (n, D), or with a `backbone` `pixels`, uint8 (n, S, S, 3), of
    resized images. `about` is the metadata, by default from `describe`; `medians` in it, by
    `feature_names`, replace NaN. Without targets in `fit` nothing is unknown.
    """
    about = about or describe(classifier)
    known = about.get("medians")
    medians = [known.get(name, np.nan) for name in about["feature_names"]] if known else None
    name, example = "rows", torch.zeros(2, int(classifier.n_features_in_))
    if backbone is not None:
        side = backbone.recipe.preprocessing.size
        name, example = "pixels", torch.zeros(2, side, side, 3, dtype=torch.uint8)
    module = Exported(classifier, medians, backbone)
    outputs = ["index", "confidence", "probabilities", "known_score"]
    try:
        model = onnx.load_from_string(export(module, example, name, outputs))
    except ExportError as error:
        raise InputError(f"{type(classifier).__name__} {error}") from error
    text, graph = TensorProto.STRING, model.graph  # torch has no text: the labels are added here
    labels = [label.encode() for label in (*about["classes"], about["unknown_label"])]
    graph.initializer.append(helper.make_tensor("labels", text, [len(labels)], labels))
    graph.node.append(helper.make_node("Gather", ["labels", "index"], ["label"]))
    graph.output[0].CopyFrom(helper.make_tensor_value_info("label", text, ["n"]))
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()}
    helper.set_model_props(model, texts)
    return bytes(model.SerializeToString())


def image_script(how: Preprocessing) -> str:
    """Return the script for images, which resizes them with the function that `fit` used."""
    arguments = f"{how.size}, {how.shorter_side}, {how.resize!r}, {how.interpolation!r}"
    return f'''\
"""Label images: python use.py IMAGES... (needs onnxruntime, numpy and pillow)."""

{_START}from PIL import Image, ImageOps


{inspect.getsource(resized)}

options = onnxruntime.SessionOptions()
options.add_free_dimension_override_by_name("n", 1)  # faster, one image at a time
session = onnxruntime.InferenceSession(Path(__file__).with_name("model.onnx"), options)
for path in sys.argv[1:]:
    image = ImageOps.exif_transpose(Image.open(path))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    pixels = np.asarray(resized(image.convert("RGB"), {arguments}))
    label, confidence = session.run(["label", "confidence"], {{"pixels": pixels[None]}})
    print(path, label[0], f"{{confidence[0]:.3f}}")
'''
