"""The use case features: turn images into a feature table that other commands can read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from opensetda.backbones.extraction import Extraction
from opensetda.data.images.lists import ImageColumns
from opensetda.data.images.loading import ImageList, read_images
from opensetda.errors import InputError
from opensetda.progress import RunListener
from opensetda.runs.fit_data import features_of, none_readable
from opensetda.runs.options import ImageOptions
from opensetda.runs.outputs import check_new_file, write_broken_list
from opensetda.system.files import new_file, temporary_folder

_SUFFIXES = (".npz", ".parquet")


@dataclass(frozen=True)
class WrittenFeatures:
    """A feature table that was made from images; `n_cached` features came from the cache.

    `n_broken` images could not be read and were left out; `broken_list` is a CSV file of them.
    """

    path: Path
    n_images: int
    n_features: int
    n_broken: int
    n_cached: int
    broken_list: Path | None
    seconds: float


def extract_features(
    images: str | Path,
    out: str | Path,
    options: ImageOptions | None = None,
    *,
    label_column: str | None = None,
    path_column: str | None = None,
    images_root: str | Path | None = None,
    overwrite: bool = False,
    listener: RunListener | None = None,
) -> WrittenFeatures:
    """Turn images into a feature table, one row per image.

    Parameters
    ----------
    images : str or Path
        A folder, list, manifest or tar shards.
    out : str or Path
        File to make: ``.npz`` (X, paths and, if the images have classes, y and classes) or
        ``.parquet`` (f0, f1, ..., path and label).
    options : ImageOptions, optional
        The backbone and its cache.
    label_column, path_column, images_root : optional
        Columns of a manifest, and the folder that relative paths start from.
    overwrite : bool
        Replace an existing file.
    listener : RunListener, optional
        Receives notes, warnings and progress.
    """
    options, listener = options or ImageOptions(), listener or RunListener()
    images, place = Path(images), Path(out)
    check_new_file("--out", place, _SUFFIXES, overwrite)
    root = None if images_root is None else Path(images_root)
    found = _find(images, ImageColumns(path_column, label_column, root), listener)
    with temporary_folder(place.resolve()) as scratch:
        with listener.counting("features") as progress:
            _, extraction = features_of([found], options, progress, scratch)
        for warning in extraction.warnings:
            listener.warn(warning)
        if not len(extraction.rows):
            raise none_readable(images, len(found), extraction.broken[0])
        with new_file(place) as aside:
            _write(aside, found.select(extraction.rows), extraction)
        listed = write_broken_list(place, extraction.broken)
    n_broken, n_cached = len(extraction.broken), extraction.n_cached
    if listed is not None:
        listener.warn(
            f"{n_broken:,} of {len(found):,} images cannot be read and are left out; they are "
            f"listed in {listed}"
        )
    n_images, width = extraction.X.shape
    return WrittenFeatures(place, n_images, width, n_broken, n_cached, listed, extraction.seconds)


def _find(path: Path, columns: ImageColumns, listener: RunListener) -> ImageList:
    """List images, with their classes if each has one."""
    try:
        images = read_images(path, columns, labelled=True)
    except InputError as error:
        images = read_images(path, columns)
        listener.note(f"no classes are written: {error}")
    for line in images.notes:
        listener.note(line)
    return images


def _write(path: Path, images: ImageList, extraction: Extraction) -> None:
    if path.suffix.lower() == ".npz":
        # Numbers and text only: an array of objects would be pickled.
        arrays: dict[str, Any] = {"X": extraction.X, "paths": images.ids.astype(np.str_)}
        if images.labels is not None:
            classes, y = np.unique(images.labels, return_inverse=True)
            arrays |= {"y": y.astype(np.int64), "classes": classes.astype(np.str_)}
        with path.open("wb") as stream:
            np.savez(stream, **arrays)
        return
    columns: dict[str, Any]
    columns = {f"f{n}": np.ascontiguousarray(column) for n, column in enumerate(extraction.X.T)}
    columns["path"] = pa.array(images.ids.tolist(), pa.string())
    if images.labels is not None:
        columns["label"] = pa.array(images.labels.tolist(), pa.string())
    pyarrow.parquet.write_table(pa.table(columns), path)
