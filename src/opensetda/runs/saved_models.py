"""Fitted estimators as folders: JSON and safetensors, checked when they are read; no pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy
from typing_extensions import TypedDict

from opensetda.base import OpenSetClassifier
from opensetda.errors import InputError
from opensetda.runs.checked import parse_json
from opensetda.runs.folder import MODEL, WEIGHTS, RunFolder, restored
from opensetda.runs.manifest import MANIFEST, SETTINGS, Manifest
from opensetda.runs.methods import method_name
from opensetda.system.files import check_writable, new_folder, write_json


class _Saved(TypedDict):
    format: Literal["opensetda-model"]
    version: Literal[1]
    method: str
    state: dict[str, Any]


def save(classifier: OpenSetClassifier, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a fitted classifier into a folder, for `load`.

    What is kept is what `predict` needs; labels of the targets of `fit` and the history are not.
    `overwrite` replaces an earlier saved model.
    """
    place, method = Path(path), method_name(classifier)
    state, arrays = classifier.get_state()
    if place.exists() and not (overwrite and _is_saved(place)):
        how = "add overwrite=True" if _is_saved(place) else "move it away"
        raise InputError(f"{place}: exists already; choose another path or {how}")
    check_writable(place)
    content = {"format": "opensetda-model", "version": 1, "method": method, "state": state}
    with new_folder(place) as aside:
        write_json(aside / MODEL, content)
        contiguous = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
        (aside / WEIGHTS).write_bytes(safetensors.numpy.save(contiguous))
        Manifest.of(aside).write()


def load(path: str | Path) -> OpenSetClassifier:
    """Return the classifier that `save` wrote, or that of a run folder; it predicts the same."""
    place = Path(path)
    if (place / SETTINGS).exists():
        return RunFolder.open(place).model()
    if not (place / MANIFEST).exists():
        raise InputError(f"{place}: not a saved model; make one with opensetda.save(clf, path)")
    manifest = Manifest.read(place)
    saved = parse_json(manifest.content(MODEL), _Saved, place / MODEL, "save it again")
    return restored(manifest, saved["method"], saved["state"])


def _is_saved(place: Path) -> bool:
    names = {MODEL, WEIGHTS, MANIFEST}
    return place.is_dir() and {entry.name for entry in place.iterdir()} == names
