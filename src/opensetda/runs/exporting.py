"""The use case export: the model of a run as one ONNX file, checked before it is in its place."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opensetda.data.images.decoding import BrokenImageError, decode_image
from opensetda.data.tables.loading import TableColumns, read_samples
from opensetda.errors import InputError
from opensetda.runs.folder import MODEL, RunFolder
from opensetda.runs.outputs import check_new_place
from opensetda.runs.pictures import Pictures
from opensetda.runs.predicting import Run, open_run
from opensetda.system import files

if TYPE_CHECKING:
    from opensetda.base import OpenSetClassifier

TOLERANCE = 1e-4  # largest difference of a probability between the exported file and `predict`
GRAPH, SCRIPT = "model.onnx", "use.py"
# Samples of the run that the file is checked on; bytes of a table that is read for them.
_CHECKED_IMAGES, _CHECKED_ROWS, _LARGEST_TABLE, _BLOCK = 8, 1000, 1 << 28, 64


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


def export(run: Run, to: str | Path, *, overwrite: bool = False) -> ExportedModel:
    """Write the model of a run as ONNX, from resized images or rows to label and confidence.

    Parameters
    ----------
    run : str, Path, RunFolder or FittedRun
        The run.
    to : str or Path
        A file, ``model.onnx``, or a folder for it, its description as JSON and a script.
    overwrite : bool
        Replace an existing file, or a folder of an earlier export.
    """
    place = Path(to)
    is_file = check_new_place("--to", place, ".onnx", (GRAPH, MODEL, SCRIPT), overwrite)
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        raise InputError("ONNX is not installed; install it with: pip install 'opensetda[onnx]'")
    folder = open_run(run)
    contents = _contents(folder)
    checked = _check(folder, contents[GRAPH])
    if is_file:
        with files.new_file(place) as aside:
            aside.write_bytes(contents[GRAPH])
    else:
        with files.new_folder(place) as aside:
            for name, content in contents.items():
                (aside / name).write_bytes(content)
    return ExportedModel(place, place if is_file else place / GRAPH, folder.has_images, *checked)


def _contents(folder: RunFolder) -> dict[str, bytes]:
    """Return the ONNX file, its description, and the script that uses it."""
    from opensetda.backbones.model import load_backbone
    from opensetda.export.exported import ROW_SCRIPT, describe, image_script, to_onnx

    classifier = folder.model()
    about = describe(classifier, folder.settings["method"])
    if folder.has_images:
        recipe = folder.recipe()
        how, backbone = recipe.preprocessing, load_backbone(recipe, folder.backbone_state())
        inputs = {"pixels": f"uint8, (n, {how.size}, {how.size}, 3): resized RGB images"}
        about |= {"backbone": recipe.backbone, "preprocessing": asdict(how)}
        content, script = to_onnx(classifier, about, backbone), image_script(how)
    else:
        names, plan = folder.feature_names(), folder.column_plan()
        inputs = {"rows": f"float32, (n, {classifier.n_features_in_}): finite numbers"}
        about |= {"feature_names": names, "medians": plan.medians, "categories": plan.categories}
        content, script = to_onnx(classifier, about), ROW_SCRIPT
    described = files.json_bytes({"inputs": inputs, **about})
    return {GRAPH: content, MODEL: described, SCRIPT: script.encode()}


def _check(folder: RunFolder, content: bytes) -> tuple[int, float]:
    """Compare the file with `predict`; return the number of samples, and the largest difference."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    name, classifier = session.get_inputs()[0].name, folder.model()
    given, features = _images(folder) if folder.has_images else _rows(folder, classifier)
    largest = 0.0
    for start in range(0, len(given), _BLOCK):
        part = slice(start, start + _BLOCK)
        found, probabilities = session.run(["label", "probabilities"], {name: given[part]})
        difference = float(np.abs(probabilities - classifier.predict_proba(features[part])).max())
        same = found == classifier.predict(features[part]).astype(np.str_)
        if not difference <= TOLERANCE or not same.all():
            raise InputError(
                f"{folder.path}: the exported model differs from 'osda predict' by "
                f"{difference:.1e}, so it was not written; use 'osda predict'"
            )
        largest = max(largest, difference)
    return len(given), largest


def _images(folder: RunFolder) -> tuple[Any, Any]:
    """Return some images of the run, made-up ones if they are gone, and their features."""
    from opensetda.backbones.engines import make_engine, probe_images
    from opensetda.backbones.model import resize_image

    how, pictures, found = folder.recipe().preprocessing, Pictures(folder), []
    for row in np.linspace(0, len(folder.labels()) - 1, _CHECKED_IMAGES).astype(int).tolist():
        if (path := pictures.file(row)) is not None:
            with suppress(BrokenImageError):
                found.append(resize_image(decode_image(path), how).permute(1, 2, 0).numpy())
    pixels = np.stack(found) if found else probe_images(how.size)
    engine, _ = make_engine(folder.recipe(), state=folder.backbone_state())
    features = np.concatenate([engine.run(image[None]) for image in pixels])
    engine.release()
    return pixels, features


def _rows(folder: RunFolder, classifier: OpenSetClassifier) -> tuple[Any, Any]:
    """Return rows of the run's target, twice; made-up ones if its file is gone, or large."""
    path = Path(folder.settings["inputs"]["target"].get("path", ""))
    columns = TableColumns(features=folder.column("features") or "X")
    width = int(classifier.n_features_in_)
    rows = np.random.default_rng(0).normal(size=(_BLOCK, width))
    # It may not be the table that it was.
    with suppress(InputError, OSError), files.temporary_folder() as scratch:
        if path.is_file() and path.stat().st_size <= _LARGEST_TABLE:
            known = folder.feature_names(), columns, folder.column("id")
            X = read_samples(path, width, *known, scratch, folder.column_plan()).X
            rows = np.array(X[:: max(1, len(X) // _CHECKED_ROWS)][:_CHECKED_ROWS])
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    return rows, rows
