"""Datasets of torch and of Hugging Face: rows as `fit` takes them, images as files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from PIL import Image

from opensetda.data.tables.formats import is_frame
from opensetda.errors import InputError
from opensetda.system.files import check_new_folder, new_folder

MANIFEST = "manifest.csv"


def is_dataset(value: Any) -> bool:
    """Return whether a value is a dataset of Hugging Face, or one of torch with a length."""
    if hasattr(value, "with_format"):
        return True
    is_known = isinstance(value, str | Path | list | tuple | dict) or is_frame(value)
    return not is_known and not hasattr(value, "shape") and hasattr(value, "__getitem__")


def rows_of(dataset: Any, name: str, label: str | None = None) -> Any:
    """Return a dataset of feature rows as a table, as X or as (X, y).

    Of Hugging Face, a column of vectors is X, and `label`, by default the first column of classes,
    is y; without such a column the dataset is a table. Of torch, samples are x or (x, y).
    """
    if hasattr(dataset, "with_format"):
        table = _table(dataset)
        vectors = [n for n in table.column_names if pa.types.is_nested(table.schema.field(n).type)]
        if not vectors:
            return table
        X = np.array(table[vectors[0]].to_pylist())
        label = label or next(iter(_class_names(dataset)), None)
        y = None if label is None else np.array(table[label].to_pylist())
    else:
        samples = list(_samples(dataset, name))
        X = np.stack([np.asarray(sample) for sample, _ in samples])
        labels = [own for _, own in samples if own is not None]
        y = np.array(labels) if len(labels) == len(samples) else None
    if X.ndim != 2:
        advice = "write images to files: opensetda.data.neighbours.write_images(dataset, folder)"
        raise InputError(f"{name}: samples of shape {X.shape[1:]}, not rows of features; {advice}")
    return X if y is None else (X, y)


def write_images(dataset: Any, folder: str | Path) -> Path:
    """Write the images of a dataset as PNG files into a new folder, and return their manifest.

    Samples are images or (image, label): of Pillow, or arrays (3, H, W) or (H, W, 3) of uint8 or of
    floats in [0, 1]; of Hugging Face, columns of images and classes. The result is a source or a
    target of `fit`.
    """
    place = Path(folder)
    paths = []
    labels = []
    check_new_folder("folder", place, (), overwrite=False)
    with new_folder(place) as aside:
        for number, (image, label) in enumerate(_samples(dataset, "dataset")):
            paths.append(f"{number:07}.png")
            labels.append("" if label is None else str(label))
            _picture(image).save(aside / paths[-1])
        columns = {"path": paths} | ({"label": labels} if any(labels) else {})
        pyarrow.csv.write_csv(pa.table(columns), aside / MANIFEST)
    return place / MANIFEST


def _table(dataset: Any) -> pa.Table:
    """Return a dataset of Hugging Face as a table, with the names of its classes."""
    table: pa.Table = dataset.with_format("arrow")[:]
    for name, classes in _class_names(dataset).items():
        column = [None if code is None else classes[code] for code in table[name].to_pylist()]
        table = table.set_column(table.column_names.index(name), name, pa.array(column))
    return table.replace_schema_metadata(None)


def _class_names(dataset: Any) -> dict[str, list[str]]:
    features = getattr(dataset, "features", None) or {}
    return {name: kind.names for name, kind in features.items() if hasattr(kind, "names")}


def _samples(dataset: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """Yield each sample and its label, None without one."""
    classes = getattr(dataset, "classes", None)  # of torchvision
    of_columns = _class_names(dataset)
    for number in range(len(dataset)):
        item = dataset[number]
        if isinstance(item, dict):
            images = [value for value in item.values() if isinstance(value, Image.Image)]
            if not images:
                raise InputError(f"{name}: sample {number} has no column of images; cast it to one")
            label = next(
                (names[item[own]] for own, names in of_columns.items() if item[own] is not None),
                None,
            )
            yield images[0], label
        elif isinstance(item, tuple | list) and len(item) == 2:
            label = item[1].item() if hasattr(item[1], "item") else item[1]
            yield item[0], label if classes is None else classes[int(label)]
        else:
            yield item, None


def _picture(image: Any) -> Image.Image:
    if isinstance(image, Image.Image):
        return image
    pixels = np.asarray(image)
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.dtype.kind == "f":
        if pixels.min() < 0 or pixels.max() > 1:
            raise InputError(
                "dataset: floats beyond [0, 1]; give images before they are normalised"
            )
        pixels = np.rint(255 * pixels)
    return Image.fromarray(pixels.astype(np.uint8).squeeze())
