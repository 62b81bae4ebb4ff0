"""The use case predict: label samples that came after `fit`, with the model of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from opensetda.backbones.extraction import Broken, Extractor
from opensetda.data.images.lists import ImageColumns, printable
from opensetda.data.images.loading import is_image_data, iterate_images
from opensetda.data.tables.column_files import ColumnTable, frame_table, is_frame
from opensetda.data.tables.loading import TableColumns, read_samples
from opensetda.errors import InputError
from opensetda.progress import RunListener
from opensetda.rows import release_pages
from opensetda.runs.fit_and_resume import FittedRun
from opensetda.runs.fit_data import feature_rows, none_readable, refuse_options
from opensetda.runs.folder import RunFolder
from opensetda.runs.outputs import check_new_file, many_images, write_broken_list
from opensetda.runs.predictions import IMAGE_ID, PredictionTable, PredictionWriter, numbers_of
from opensetda.system.files import new_file, temporary_folder

SUFFIXES = (".csv", ".json", ".parquet")
TOP_K = 5
# Images, and rows, whose features are in memory at a time.
PART, PART_ROWS = 512, 8192

Run = str | Path | RunFolder | FittedRun
"""A run folder: its path, opened, or as `fit` returned it."""

_Parts = Generator[tuple[npt.NDArray[np.float32], npt.NDArray[Any]], None, None]
"""Features of some samples, and their names, part by part."""


@dataclass(frozen=True)
class WrittenLabels:
    """A file of labels that `predict` wrote.

    Attributes
    ----------
    counts : Counter
        How many samples got each label.
    broken : list of Broken
        Images that could not be read and were left out; `broken_list` is a CSV file of them.
    """

    path: Path
    counts: Counter[str]
    unknown_label: str
    has_images: bool
    broken: list[Broken]
    broken_list: Path | None = None


def predict(
    run: Run,
    samples: Any,
    out: str | Path | None = None,
    *,
    top_k: int | None = None,
    strict: bool = False,
    id_column: str | None = None,
    drop: Sequence[str] | None = None,
    features_key: str | None = None,
    path_column: str | None = None,
    images_root: str | Path | None = None,
    overwrite: bool = False,
    listener: RunListener | None = None,
) -> PredictionTable | WrittenLabels:
    """Label later samples with the model of a run, independently of each other.

    Parameters
    ----------
    run : str, Path, RunFolder or FittedRun
        The run.
    samples : str, Path, sequence of paths, DataFrame, or array of shape (n, d)
        Images (files, folders, lists, manifests, tar shards), one feature table, or features.
    out : str or Path, optional
        File to write, ``.csv``, ``.json`` or ``.parquet``; without it the labels are returned.
    top_k : int, optional
        Write the likeliest classes only; by default 5 for images, all for tables.
    strict : bool
        Raise an `InputError` at an image that cannot be read, instead of leaving it out.
    id_column, drop, features_key : optional
        Columns and arrays of a table; by default as in `fit`.
    path_column, images_root : optional
        Column of the image files in manifests, and the folder that relative paths start from.
    overwrite : bool
        Replace an existing file.
    listener : RunListener, optional
        Receives warnings and progress.

    Returns
    -------
    PredictionTable or WrittenLabels
        The labels, or with `out` what was written.
    """
    listener = listener or RunListener()
    if out is not None:
        check_new_file("--out", Path(out), SUFFIXES, overwrite)
    folder = open_run(run)
    columns = _Columns(id_column, drop, features_key, path_column, images_root)
    with ExitStack() as stack:
        own = stack.enter_context(temporary_folder()) if out is None else Path()
        place = own / "labels.parquet" if out is None else Path(out)
        scratch = stack.enter_context(temporary_folder(place.resolve()))
        found = _find(folder, samples, columns, strict)
        broken: list[Broken] = []
        if isinstance(found, _Images):
            parts = _image_parts(folder, found, strict, broken, listener)
            id_name, likeliest = IMAGE_ID, None if out is None else top_k or TOP_K
        else:
            parts = _row_parts(*_read(folder, found, columns, scratch, listener), listener)
            id_name, likeliest = "id", top_k
        counts: Counter[str] = Counter()
        model = folder.model()
        with (
            closing(parts),
            new_file(place) as aside,
            PredictionWriter(aside, likeliest) as writer,
        ):
            for features, ids in parts:
                table = PredictionTable.of_samples(model, features, ids, id_name)
                counts.update(table.labels.tolist())
                writer.write(table)
        listed = write_broken_list(place, broken)
        if listed is not None:
            where = "left out" if out is None else listed
            listener.warn(f"{many_images(len(broken))} cannot be read: {where}")
        if out is None:
            made = PredictionTable.read_parquet(place)
            return replace(made, unknown_label=folder.unknown_label)
    has_images = isinstance(found, _Images)
    return WrittenLabels(place, counts, folder.unknown_label, has_images, broken, listed)


def open_run(run: Run) -> RunFolder:
    """Return a run folder, opened for reading."""
    if isinstance(run, RunFolder):
        return run
    return run.folder if isinstance(run, FittedRun) else RunFolder.open(run)


class _Columns(NamedTuple):
    """Options for tables, then those for manifests of images."""

    id: str | None
    drop: Sequence[str] | None
    features: str | None
    path: str | None
    root: str | Path | None


class _Images(NamedTuple):
    """Files, folders, lists and shards of images."""

    paths: list[Path]
    columns: ImageColumns


def _find(
    folder: RunFolder, samples: Any, columns: _Columns, strict: bool
) -> _Images | Path | ColumnTable | npt.NDArray[Any]:
    """Return samples of the kind that the run needs: images, a table, or rows of features."""
    several = list(samples) if isinstance(samples, list | tuple) else [samples]
    unfit = f"the backbone of {folder.path} was fine-tuned, and features of any other do not fit"
    if not all(isinstance(sample, str | Path) for sample in several):
        if folder.is_finetuned:
            raise InputError(f"the array, but {unfit}; give the images")
        if is_frame(samples):
            return frame_table(samples, "samples")
        expected = int(folder.model().n_features_in_), "the model"
        return feature_rows(samples, "samples", expected)
    paths = [Path(sample) for sample in several]
    if not paths:
        raise InputError("no samples; give images or a feature table")
    root = None if columns.root is None else Path(columns.root)
    image_columns = ImageColumns(path=columns.path or folder.column("path"), root=root)
    tables = [path for path in paths if not is_image_data(path, image_columns)]
    if tables and len(paths) > 1:
        raise InputError(
            f"{tables[-1]}: a feature table among others; label it in a run of its own"
        )
    if tables and folder.is_finetuned:
        raise InputError(f"{paths[0]}: a feature table, but {unfit}; give the images")
    if not tables and not folder.has_images:
        raise InputError(
            f"{paths[0]}: images, but {folder.path} was fitted to a feature table; give a "
            "table, or fit to images"
        )
    wrong: dict[str, Any]
    wrong = {"--strict": strict, "--path-column": columns.path, "--images-root": columns.root}
    if not tables:
        wrong = {"--id-column": columns.id, "--drop": columns.drop}
        wrong["--features-key"] = columns.features
    refuse_options((option for option, value in wrong.items() if value), paths[0], not tables)
    return paths[0] if tables else _Images(paths, image_columns)


def _read(
    folder: RunFolder,
    table: Path | ColumnTable | npt.NDArray[Any],
    columns: _Columns,
    scratch: Path,
    listener: RunListener,
) -> tuple[Any, Any]:
    """Return rows and ids of a table, which may be stored in files."""
    if isinstance(table, np.ndarray):
        return table, None
    names = TableColumns(
        label=folder.column("label") or "y",
        id=columns.id,
        features=columns.features or folder.column("features") or "X",
        drop=tuple(columns.drop or folder.column("drop") or ()),
    )
    width = int(folder.model().n_features_in_)
    given = folder.feature_names(), names, folder.column("id"), scratch, folder.column_plan()
    found = read_samples(table, width, *given)
    for warning in found.notes:
        listener.warn(warning)
    return found.X, found.ids


def _row_parts(X: Any, ids: Any, listener: RunListener) -> _Parts:
    """Yield rows and their ids, numbers without any."""
    with listener.counting("predict", "row") as progress:
        progress(0, len(X))
        for start in range(0, len(X), PART_ROWS):
            part = slice(start, min(start + PART_ROWS, len(X)))
            names = numbers_of(part) if ids is None else np.asarray(ids[part])
            yield X[part].astype(np.float32, copy=False), names
            release_pages(X)
            progress(part.stop, len(X))


def _image_parts(
    folder: RunFolder, images: _Images, strict: bool, broken: list[Broken], listener: RunListener
) -> _Parts:
    """Yield the features of images, in constant memory; `broken` gets those that are left out."""
    total = sum(1 for _ in iterate_images(*images))
    paths, done = (path for _, path in iterate_images(*images)), 0
    with (
        listener.counting("predict") as progress,
        Extractor(folder.recipe(), state=folder.backbone_state()) as extractor,
    ):

        def finished(more: int) -> None:
            nonlocal done
            done += more
            progress(done, total)

        finished(0)
        while part := list(islice(paths, PART)):
            features, reasons = extractor.features(part, finished)
            results = list(zip(part, reasons, strict=True))
            failed = [Broken(path, path, why) for path, why in results if why is not None]
            if failed and strict:
                raise InputError(
                    f"{failed[0].id}: {failed[0].reason}; repair or remove it, or leave out "
                    "--strict"
                )
            broken += failed
            if len(features):
                ids = [printable(path) for path, why in results if why is None]
                yield features, np.array(ids)
    if len(broken) == total:
        raise none_readable(images.paths[0], total, broken[0])
    for warning in extractor.warnings:
        listener.warn(warning)
