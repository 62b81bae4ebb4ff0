"""The use case export: the model of a run as one ONNX file, which needs neither torch nor us.

The file is compared with the model before it is moved into its place.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from opensetda.backbones.extractor import Extractor, read_content
from opensetda.data.images.decoding import BrokenImageError, decode_bytes
from opensetda.data.tables.loading import TableColumns, read_samples
from opensetda.errors import InputError
from opensetda.runs.folder import MODEL, RunFolder
from opensetda.runs.outputs import check_new_file
from opensetda.runs.pictures import Pictures
from opensetda.runs.predicting import Run, open_run
from opensetda.system.files import (
    check_writable,
    json_bytes,
    new_file,
    new_folder,
    temporary_folder,
)
from opensetda.system.launch import default_cache_folder

if TYPE_CHECKING:
    from opensetda.base import OpenSetClassifier

TOLERANCE = 1e-4
"""Largest difference of a probability between the exported file and `predict`."""

GRAPH, DESCRIPTION, SCRIPT = "model.onnx", MODEL, "use.py"
_FILES = (GRAPH, DESCRIPTION, SCRIPT)
_SUFFIX = ".onnx"
# Samples of the run that the file is checked on: images take their time, and a table is read.
_CHECKED_IMAGES, _CHECKED_ROWS, _LARGEST_TABLE = 8, 1000, 1 << 28
_MADE_UP = ((64, 48), (300, 400), (1, 7))  # heights and widths
_BLOCK = 64
# What `fit` may have done with columns that is done, or described, here as well.
_KNOWN_STEPS = ("left_out", "medians", "categories")
_LARGEST_FILE = 2**31 - 1


@dataclass(frozen=True)
class ExportedModel:
    """A model that `export` wrote.

    Attributes
    ----------
    path, model : Path
        What was asked for, a file or a folder, and the ONNX file.
    has_images : bool
        Whether the input is an image; otherwise rows of a table.
    n_checked, n_own : int
        Samples that the file was checked on, and how many of them were of the run.
    difference : float
        Largest difference of a probability to `predict` on them.
    """

    path: Path
    model: Path
    has_images: bool
    n_checked: int
    n_own: int
    difference: float


def export(run: Run, to: str | Path, *, overwrite: bool = False) -> ExportedModel:
    """Write the model of a run as ONNX, from an image or rows to label and confidence.

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
    _check_destination(place, overwrite)
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        raise InputError("ONNX is not installed; install it with: pip install 'opensetda[onnx]'")
    folder = open_run(run)
    content, description = _exported(folder)
    n_checked, n_own, difference = _check(folder, content)
    written = {"inputs": _inputs(folder), **description}
    if place.suffix.lower() == _SUFFIX:
        with new_file(place) as aside:
            aside.write_bytes(content)
        model = place
    else:
        with new_folder(place) as aside:
            (aside / GRAPH).write_bytes(content)
            (aside / DESCRIPTION).write_bytes(json_bytes(written))
            (aside / SCRIPT).write_text(_script(folder), encoding="utf-8")
        model = place / GRAPH
    return ExportedModel(place, model, folder.has_images, n_checked, n_own, difference)


def _check_destination(place: Path, overwrite: bool) -> None:
    if place.suffix.lower() == _SUFFIX:
        check_new_file("--to", place, (_SUFFIX,), overwrite)
        return
    if place.suffix:
        raise InputError(f"--to {place}: a file must end in {_SUFFIX}, a folder has no ending")
    if place.exists():
        if not place.is_dir():
            raise InputError(f"--to {place}: a file is in the way; choose another name")
        if not overwrite:
            raise InputError(f"--to {place}: exists already; choose another or add --overwrite")
        if strangers := sorted({entry.name for entry in place.iterdir()} - {*_FILES}):
            raise InputError(
                f"--to {place}: holds {strangers[0]!r}, which is no file of an export, so it is "
                "not overwritten; choose another name"
            )
    check_writable(place)


def _exported(folder: RunFolder) -> tuple[bytes, dict[str, Any]]:
    """Return the content of the ONNX file, and its description."""
    from opensetda.export.assembled import assemble, describe, rows_input
    from opensetda.export.pixels import image_input

    columns = folder.settings["columns"]
    for name, value in columns.items():
        if isinstance(value, Mapping) and value and name not in _KNOWN_STEPS:
            raise InputError(
                f"{folder.path}: columns were prepared by {name!r}, which cannot be exported; "
                "prepare the tables before 'osda fit'"
            )
    classifier, names = folder.model(), folder.feature_names()
    more: dict[str, Any] = {"method": folder.settings["method"]}
    if folder.has_images:
        recipe = folder.recipe()
        more |= {"backbone": recipe.backbone, "preprocessing": asdict(recipe.preprocessing)}
        rows = image_input(recipe, folder.backbone_state())
    else:
        medians = columns.get("medians") or {}
        more |= {"feature_names": names, "medians": medians}
        more["categories"] = columns.get("categories") or {}
        rows = rows_input(classifier, names or (), medians)
    description = describe(classifier, **more)
    model = assemble(classifier, rows, description)
    if model.ByteSize() > _LARGEST_FILE:
        raise InputError(f"{folder.path}: larger than 2 GB, which one ONNX file cannot hold")
    return bytes(model.SerializeToString()), description


def _script(folder: RunFolder) -> str:
    from opensetda.export import scripts

    if folder.has_images:
        return scripts.IMAGES
    return scripts.ARRAY if folder.feature_names() is None else scripts.TABLE


def _inputs(folder: RunFolder) -> dict[str, str]:
    if folder.has_images:
        return {"image": "uint8, (height, width, 3): one RGB image of any size"}
    return {"rows": f"float32, (n, {folder.model().n_features_in_}): finite numbers"}


# the check -----------------------------------------------------------------------------------


def _check(folder: RunFolder, content: bytes) -> tuple[int, int, float]:
    """Compare the file with `predict`; return the samples, the run's own, and the difference."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    classifier, largest, n_checked, n_own = folder.model(), 0.0, 0, 0
    samples = _images(folder) if folder.has_images else _rows(folder, classifier)
    for feed, features, is_own in samples:
        found, probabilities = session.run(["label", "probabilities"], feed)
        scores = classifier.open_set_scores(features)
        wanted = classifier.rejection.probabilities(scores)
        labels = classifier.predict(features).astype(np.str_)
        difference = float(np.abs(probabilities - wanted).max())
        if not difference <= TOLERANCE or (found != labels).any():
            raise InputError(
                f"{folder.path}: the exported model differs from 'osda predict' by "
                f"{difference:.1e}, so it was not written; use 'osda predict'"
            )
        largest = max(largest, difference)
        n_checked, n_own = n_checked + len(features), n_own + is_own * len(features)
    return n_checked, n_own, largest


_Samples = Iterator[tuple[dict[str, Any], npt.NDArray[np.float32], bool]]


def _images(folder: RunFolder) -> _Samples:
    """Yield images of the run, if they are there, and made-up ones, with their features."""
    pictures, n_targets = Pictures(folder), len(folder.labels())
    contents: list[tuple[bytes, bool]] = [(_noise(*shape), False) for shape in _MADE_UP]
    for row in np.linspace(0, n_targets - 1, _CHECKED_IMAGES).astype(int).tolist():
        path = pictures.file(row)
        try:
            if path is not None:
                contents.append((read_content(str(path)), True))
        except BrokenImageError:
            continue  # It has gone since.
    memory, state = default_cache_folder(), folder.backbone_state()
    with Extractor(folder.recipe(), state=state, memory=memory) as extractor:
        for content, is_own in contents:
            (features,) = extractor.compute([content])
            if not isinstance(features, str):
                yield {"image": decode_bytes(content)}, features[None], is_own


def _noise(height: int, width: int) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def _rows(folder: RunFolder, classifier: OpenSetClassifier) -> _Samples:
    """Yield rows of the run's target, if its file is there, and made-up ones."""
    for rows, is_own in ((_made_up_rows(classifier), False), (_target_rows(folder), True)):
        for start in range(0, len(rows), _BLOCK):
            part = np.ascontiguousarray(rows[start : start + _BLOCK], dtype=np.float32)
            yield {"rows": part}, part, is_own


def _made_up_rows(classifier: OpenSetClassifier) -> npt.NDArray[np.float32]:
    rng, width = np.random.default_rng(0), classifier.n_features_in_
    table = classifier.scaler_.arrays().get("scaling.target")
    if classifier.scaling_ == "ranks" and table is not None:
        # Each value from the column it is in, some of them quantiles and some between two.
        low, high = (rng.integers(0, len(table), (_BLOCK, width)) for _ in range(2))
        columns = np.arange(width)
        rows = (table[low, columns] + table[np.minimum(low, high), columns]) / 2
    else:
        middle = 0.0 if table is None else table[0]
        spread = np.geomspace(0.1, 10, _BLOCK)[:, None] * (1.0 if table is None else table[1])
        rows = middle + spread * rng.normal(size=(_BLOCK, width))
    moderation = classifier.scaler_.moderation
    if moderation is not None:
        rows = np.ldexp(rows, moderation.exponent)
        rows = rows if moderation.offset is None else rows + moderation.offset
    return np.asarray(rows, dtype=np.float32)


def _target_rows(folder: RunFolder) -> npt.NDArray[Any]:
    """Return some rows of the target's file; none if it is not there, or large."""
    path = Path(folder.settings["inputs"]["target"].get("path", ""))
    names, width = folder.feature_names(), folder.model().n_features_in_
    columns = TableColumns(
        label=folder.column("label") or "y",
        features=folder.column("features") or "X",
        drop=tuple(folder.column("drop") or ()),
    )
    try:
        if path.is_file() and path.stat().st_size <= _LARGEST_TABLE:
            with temporary_folder() as scratch:
                own_id, plan = folder.column("id"), folder.column_plan()
                X = read_samples(path, width, names, columns, own_id, scratch, plan).X
                return np.array(X[:: max(1, len(X) // _CHECKED_ROWS)][:_CHECKED_ROWS])
    except (InputError, OSError):
        pass  # It is not the table it was.
    return np.zeros((0, width))
