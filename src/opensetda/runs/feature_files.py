"""The use case features: turn images into a feature table that other commands can read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from opensetda.data.images.loading import ImageList, read_images
from opensetda.errors import InputError
from opensetda.runs.fit_data import features_of, image_columns, none_readable
from opensetda.runs.listening import RunListener
from opensetda.runs.options import ImageOptions, TableOptions
from opensetda.runs.outputs import check_new_file, write_broken_list
from opensetda.system.files import new_file, temporary_folder


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
    tables: TableOptions | None = None,
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
    tables : TableOptions, optional
        Columns of a manifest, and the folder that relative paths start from.
    overwrite : bool
        Replace an existing file.
    listener : RunListener, optional
        Receives notes, warnings and progress.
    """
    options, listener, place = options or ImageOptions(), listener or RunListener(), Path(out)
    check_new_file("--out", place, (".npz", ".parquet"), overwrite)
    columns = image_columns(tables or TableOptions())
    try:
        found = read_images(images, columns, labelled=True)
    except InputError as error:
        found = read_images(images, columns)
        listener.note(f"no classes are written: {error}")
    for line in found.notes:
        listener.note(line)
    with temporary_folder(place.resolve()) as scratch:
        with listener.counting("features") as progress:
            _, made = features_of([found], options, progress, scratch)
        for warning in made.warnings:
            listener.warn(warning)
        if not len(made.rows):
            raise none_readable(Path(images), len(found), made.broken[0])
        with new_file(place) as aside:
            _write(aside, found.select(made.rows), made.X)
        listed = write_broken_list(place, made.broken)
    n_broken = len(made.broken)
    if listed is not None:
        listener.warn(f"{n_broken:,} of {len(found):,} images cannot be read: {listed}")
    return WrittenFeatures(place, *made.X.shape, n_broken, made.n_cached, listed, made.seconds)


def _write(path: Path, images: ImageList, X: Any) -> None:
    columns: dict[str, Any]
    if path.suffix.lower() == ".npz":
        # Numbers and text only: an array of objects would be pickled.
        columns = {"X": X, "paths": images.ids.astype(np.str_)}
        if images.labels is not None:
            classes, y = np.unique(images.labels, return_inverse=True)
            columns |= {"y": y.astype(np.int64), "classes": classes.astype(np.str_)}
        with path.open("wb") as stream:
            np.savez(stream, **columns)
        return
    columns = {f"f{n}": np.ascontiguousarray(column) for n, column in enumerate(X.T)}
    columns["path"] = pa.array(images.ids.tolist(), pa.string())
    if images.labels is not None:
        columns["label"] = pa.array(images.labels.tolist(), pa.string())
    pyarrow.parquet.write_table(pa.table(columns), path)
