"""The use case export: the model of a run as one ONNX file, checked before it is in its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

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
# Samples of the run that the file is checked on: images take their time, and a table is read.
_CHECKED_IMAGES, _CHECKED_ROWS, _LARGEST_TABLE, _BLOCK = 8, 1000, 1 << 28, 64


@dataclass(frozen=True)
class ExportedModel:
    """A model that `export` wrote: `path`, a file or a folder, and the ONNX file `model`.

    It was checked on `n_checked` samples, `n_own` of them of the run: their probabilities differ
    from those of `predict` by at most `difference`.
    """

    path: Path
    model: Path
    has_images: bool
    n_checked: int
    n_own: int
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
    from opensetda.export import scripts
    from opensetda.export.exported import describe, to_onnx

    classifier = folder.model()
    about = describe(classifier, folder.settings["method"])
    if folder.has_images:
        recipe = folder.recipe()
        how, backbone = recipe.preprocessing, load_backbone(recipe, folder.backbone_state())
        inputs = {"pixels": f"uint8, (n, {how.size}, {how.size}, 3): resized RGB images"}
        about |= {"backbone": recipe.backbone, "preprocessing": asdict(how)}
        content, script = to_onnx(classifier, about, backbone), scripts.image_script(how)
    else:
        names, plan = folder.feature_names(), folder.column_plan()
        inputs = {"rows": f"float32, (n, {classifier.n_features_in_}): finite numbers"}
        about |= {"feature_names": names, "medians": plan.medians, "categories": plan.categories}
        content, script = to_onnx(classifier, about), scripts.ROWS
    described = files.json_bytes({"inputs": inputs, **about})
    return {GRAPH: content, MODEL: described, SCRIPT: script.encode()}


def _check(folder: RunFolder, content: bytes) -> tuple[int, int, float]:
    """Compare the file with `predict`; return the samples, the run's own, and the difference."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    name, classifier = session.get_inputs()[0].name, folder.model()
    largest, checked = 0.0, {True: 0, False: 0}
    samples = _images(folder) if folder.has_images else _rows(folder, classifier)
    for given, features, is_own in samples:
        found, probabilities = session.run(["label", "probabilities"], {name: given})
        difference = float(np.abs(probabilities - classifier.predict_proba(features)).max())
        same = found == classifier.predict(features).astype(np.str_)
        if not difference <= TOLERANCE or not same.all():
            raise InputError(
                f"{folder.path}: the exported model differs from 'osda predict' by "
                f"{difference:.1e}, so it was not written; use 'osda predict'"
            )
        largest = max(largest, difference)
        checked[is_own] += len(features)
    return sum(checked.values()), checked[True], largest


def _images(folder: RunFolder) -> Iterator[tuple[Any, Any, bool]]:
    """Yield two made-up images, and some of the run that are still there, with their features."""
    from opensetda.backbones.engines import make_engine, probe_images
    from opensetda.backbones.model import resize_image

    how, pictures = folder.recipe().preprocessing, Pictures(folder)
    samples = [(pixels, False) for pixels in probe_images(how.size)]
    for row in np.linspace(0, len(folder.labels()) - 1, _CHECKED_IMAGES).astype(int).tolist():
        if (path := pictures.file(row)) is not None:
            with suppress(BrokenImageError):
                image = resize_image(decode_image(path), how)
                samples.append((image.permute(1, 2, 0).numpy(), True))
    engine, _ = make_engine(folder.recipe(), state=folder.backbone_state())
    for pixels, is_own in samples:
        yield pixels[None], engine.run(pixels[None]), is_own
    engine.release()


def _rows(folder: RunFolder, classifier: OpenSetClassifier) -> Iterator[tuple[Any, Any, bool]]:
    """Yield made-up rows, of values that the scaling knows, and rows of the run's target."""
    rng, tables = np.random.default_rng(0), classifier.scaler_.tables
    shape = _BLOCK, int(classifier.n_features_in_)
    table = tables.get("target", rng.normal(size=shape))
    rows = np.take_along_axis(table, rng.integers(0, len(table), shape), axis=0)
    rows = rows / tables.get("scale", 1.0) + tables.get("offset", 0.0)
    own = _target_rows(folder, shape[1])
    for start in range(-_BLOCK, len(own), _BLOCK):
        part = rows if start < 0 else own[start : start + _BLOCK]
        part = np.ascontiguousarray(part, dtype=np.float32)
        yield part, part, start >= 0


def _target_rows(folder: RunFolder, width: int) -> npt.NDArray[Any]:
    """Return some rows of the target's file; none if it is not there, or large."""
    path = Path(folder.settings["inputs"]["target"].get("path", ""))
    columns = TableColumns(features=folder.column("features") or "X")
    # It may not be the table that it was.
    with suppress(InputError, OSError), files.temporary_folder() as scratch:
        if path.is_file() and path.stat().st_size <= _LARGEST_TABLE:
            known = folder.feature_names(), columns, folder.column("id")
            X = read_samples(path, width, *known, scratch, folder.column_plan()).X
            return np.array(X[:: max(1, len(X) // _CHECKED_ROWS)][:_CHECKED_ROWS])
    return np.zeros((0, width))
