"""The use case export: the model of a run as one ONNX file, checked before it is in its place.

The scripts beside it need neither torch nor this package.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from opensetda import __version__
from opensetda.backbones import engines
from opensetda.backbones.model import ImageBackbone, load_backbone, resize_image, resized
from opensetda.backbones.recipe import Preprocessing
from opensetda.data.images.decoding import BrokenImageError, decode_image
from opensetda.errors import InputError
from opensetda.methods.base import OpenSetClassifier
from opensetda.runs.folder import MODEL, RunFolder
from opensetda.runs.pictures import Pictures
from opensetda.share.decision import Rejection
from opensetda.system import files
from opensetda.usecases.predict_samples import Run, give_backbone, with_run
from opensetda.usecases.read_run import read_rows

TOLERANCE = 1e-4  # largest difference of a probability between the exported file and `predict`
GRAPH = "model.onnx"
SCRIPT = "use.py"
# Samples of the run that the file is checked on; bytes of a table that is read for them.
_CHECKED_IMAGES = 8
_CHECKED_ROWS = 1000
_LARGEST_TABLE = 1 << 28
_LARGE_CONSTANT = 1 << 16  # bytes of a constant of the graph that single precision makes smaller
_BLOCK = 64

_START = """\
import os
import sys
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before the import
import numpy as np
import onnxruntime
"""

_ROW_SCRIPT = f'''\
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
        self.features = nn.Identity() if backbone is None else engines.FromPixels(backbone)
        self.register_buffer("medians", None if medians is None else torch.tensor(medians))
        self.scaler = classifier.scaler_
        self.scorer = classifier.scorer_
        # Without targets in `fit`, nothing is unknown.
        self.decision = classifier.decision_ if classifier.has_target_ else Rejection(-np.inf, 0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Label samples, each on its own."""
        rows: Tensor = self.features(x)
        if self.medians is not None:
            rows = torch.where(rows.isnan(), self.medians, rows)
        classes, known = self.scorer(self.scaler(rows))
        probabilities, index = self.decision(classes, known)
        return index, probabilities.gather(1, index[:, None])[:, 0], probabilities, known


def describe(classifier: OpenSetClassifier, method: str | None = None) -> dict[str, Any]:
    """Return what a user of the model needs to know, as JSON can hold it."""
    names = getattr(classifier, "feature_names_in_", None)
    return {
        "method": method or type(classifier).__name__,
        "opensetda_version": __version__,
        "classes": [str(name) for name in classifier.classes_.tolist()],
        "unknown_label": str(classifier.unknown_label),
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
    import onnx
    from onnx import TensorProto, helper

    about = about or describe(classifier)
    known = about.get("medians")
    medians = [known.get(name, np.nan) for name in about["feature_names"]] if known else None
    name = "rows"
    example = torch.zeros(2, int(classifier.n_features_in_))
    if backbone is not None:
        side = backbone.recipe.preprocessing.size
        name = "pixels"
        example = torch.zeros(2, side, side, 3, dtype=torch.uint8)
    module = Exported(classifier, medians, backbone)
    outputs = ["index", "confidence", "probabilities", "known_score"]
    with torch.no_grad():
        module.eval()(
            example
        )  # Tables that are prepared at the first use are no part of the graph.
    try:
        model = onnx.load_from_string(engines.export(module, example, name, outputs))
    except engines.ExportError as error:
        raise InputError(f"{type(classifier).__name__} {error}") from error
    _keep_single(model.graph)
    # torch has no text: the labels are added here
    text = TensorProto.STRING
    graph = model.graph
    labels = [label.encode() for label in (*about["classes"], about["unknown_label"])]
    graph.initializer.append(helper.make_tensor("labels", text, [len(labels)], labels))
    graph.node.append(helper.make_node("Gather", ["labels", "index"], ["label"]))
    graph.output[0].CopyFrom(helper.make_tensor_value_info("label", text, ["n"]))
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()}
    helper.set_model_props(model, texts)
    return bytes(model.SerializeToString())


def _keep_single(graph: Any) -> None:
    """Store large tables in single precision if that loses nothing; the model reads doubles."""
    from onnx import TensorProto, helper, numpy_helper

    casts = []
    for table in graph.initializer:
        if table.data_type != TensorProto.DOUBLE or len(table.raw_data) < _LARGE_CONSTANT:
            continue
        values = numpy_helper.to_array(table)
        single = values.astype(np.float32)
        if np.array_equal(single.astype(np.float64), values):
            name = table.name
            table.CopyFrom(numpy_helper.from_array(single, f"{name}.single"))
            casts.append(helper.make_node("Cast", [table.name], [name], to=TensorProto.DOUBLE))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


@dataclass(frozen=True)
class ExportedModel:
    """A model that `export` wrote: `path`, a file or a folder, and the ONNX file `model`.

    On `n_checked` samples, its probabilities differ from those of `predict` by `difference`.
    """

    path: Path
    model: Path
    has_images: bool
    n_checked: int
    difference: float


def export(
    run: Run, to: str | Path, *, overwrite: bool = False, backbone: Any = None
) -> ExportedModel:
    """Write the model of a run as ONNX, from resized images or rows to label and confidence.

    Parameters
    ----------
    run : str, Path, RunFolder or FittedRun
        The run.
    to : str or Path
        A file, ``model.onnx``, or a folder for it, its description as JSON and a script.
    overwrite : bool
        Replace an existing file, or a folder of an earlier export.
    backbone : str, nn.Module or callable, optional
        As in `predict`.
    """
    place = Path(to)
    give_backbone(backbone)
    is_file = bool(place.suffix)
    if is_file:
        files.check_new_file("--to", place, (".onnx",), overwrite)
    else:
        files.check_new_folder("--to", place, (GRAPH, MODEL, SCRIPT), overwrite)
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        raise InputError("ONNX is not installed; install it with: pip install 'opensetda[onnx]'")
    made = with_run(run, _checked_model)
    if is_file:
        with files.new_file(place) as aside:
            aside.write_bytes(made.content)
    else:
        with files.new_folder(place) as aside:
            (aside / GRAPH).write_bytes(made.content)
            files.write_json(aside / MODEL, made.description)
            (aside / SCRIPT).write_text(made.script, encoding="utf-8")
    return ExportedModel(
        path=place,
        model=place if is_file else place / GRAPH,
        has_images=made.has_images,
        n_checked=made.n_checked,
        difference=made.difference,
    )


@dataclass(frozen=True)
class _CheckedModel:
    """An ONNX file that was compared with `predict`, its description and a script that uses it."""

    content: bytes
    description: dict[str, Any]
    script: str
    has_images: bool
    n_checked: int
    difference: float


def _checked_model(folder: RunFolder) -> _CheckedModel:
    """Make the ONNX file of a run, and compare it with `predict`."""
    classifier = folder.model()
    about = describe(classifier, folder.settings["method"])
    if folder.has_images:
        recipe = folder.recipe()
        how = recipe.preprocessing
        backbone = load_backbone(recipe, folder.backbone_state())
        inputs = {"pixels": f"uint8, (n, {how.size}, {how.size}, 3): resized RGB images"}
        about |= {"backbone": recipe.backbone, "preprocessing": asdict(how)}
        content = to_onnx(classifier, about, backbone)
        script = image_script(how)
        given, features = _images(folder)
    else:
        plan = folder.column_plan()
        inputs = {"rows": f"float32, (n, {classifier.n_features_in_}): finite numbers"}
        about["feature_names"] = folder.feature_names()
        about |= {"medians": plan.medians, "categories": plan.categories}
        content = to_onnx(classifier, about)
        script = _ROW_SCRIPT
        given = features = _rows(folder, int(classifier.n_features_in_))
    difference = _difference(content, classifier, given, features)
    if not difference <= TOLERANCE:
        raise InputError(
            f"{folder.path}: the exported model differs from 'osda predict' by {difference:.1e}, "
            "so it was not written; use 'osda predict'"
        )
    return _CheckedModel(
        content=content,
        description={"inputs": inputs, **about},
        script=script,
        has_images=folder.has_images,
        n_checked=len(given),
        difference=difference,
    )


def _difference(content: bytes, classifier: OpenSetClassifier, given: Any, features: Any) -> float:
    """Return the largest difference of a probability to `predict`, 1 if a label differs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    largest = 0.0
    for start in range(0, len(given), _BLOCK):
        part = slice(start, start + _BLOCK)
        found, probabilities = session.run(["label", "probabilities"], {name: given[part]})
        if not (found == classifier.predict(features[part]).astype(np.str_)).all():
            return 1.0
        differences = np.abs(probabilities - classifier.predict_proba(features[part]))
        largest = max(largest, float(differences.max()))
    return largest


def _images(folder: RunFolder) -> tuple[Any, Any]:
    """Return some images of the run, made-up ones if they are gone, and their features."""
    how = folder.recipe().preprocessing
    pictures = Pictures(folder)
    found = []
    for row in np.linspace(0, len(folder.labels()) - 1, _CHECKED_IMAGES).astype(int).tolist():
        if (path := pictures.file(row)) is not None:
            with suppress(BrokenImageError):
                found.append(resize_image(decode_image(path), how).permute(1, 2, 0).numpy())
    pixels = np.stack(found) if found else engines.probe_images(how.size)
    engine, _ = engines.make_engine(folder.recipe(), state=folder.backbone_state())
    features = np.concatenate([engine.run(image[None]) for image in pixels])
    engine.release()
    return pixels, features


def _rows(folder: RunFolder, width: int) -> Any:
    """Return rows of the run's target; made-up ones if its file is gone, or large."""
    path = Path(folder.settings["inputs"]["target"].get("path", ""))
    rows = np.random.default_rng(0).normal(size=(_BLOCK, width))
    # It may not be the table that it was.
    with suppress(InputError, OSError), files.temporary_folder() as scratch:
        if path.is_file() and path.stat().st_size <= _LARGEST_TABLE:
            X = read_rows(folder, path, scratch).X
            rows = np.array(X[:: max(1, len(X) // _CHECKED_ROWS)][:_CHECKED_ROWS])
    return np.ascontiguousarray(rows, dtype=np.float32)
