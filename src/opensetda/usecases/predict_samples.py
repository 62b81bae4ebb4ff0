"""The use cases predict, labels of samples that came after `fit`, and features, of any images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from opensetda.backbones.extraction import Broken, Extraction, Extractor, check_there
from opensetda.data.images.loading import (
    ImageColumns,
    all_there,
    is_image_data,
    iterate_entries,
    read_images,
)
from opensetda.data.names import formula_warning
from opensetda.data.neighbours import is_dataset, rows_of
from opensetda.data.tables.loading import FeatureTable
from opensetda.errors import InputError
from opensetda.progress import RunListener, worded
from opensetda.rows import release_pages
from opensetda.runs.folder import RunFolder
from opensetda.runs.integrity import MANIFEST
from opensetda.runs.options import ImageOptions, TableOptions, absolute
from opensetda.runs.pictures import many_images, write_broken_list
from opensetda.runs.place import ReplacedRunError
from opensetda.runs.predictions import IMAGE_ID, PredictionTable, PredictionWriter, row_numbers
from opensetda.system.files import check_new_file, file_record, new_file, temporary_folder
from opensetda.usecases import on_cluster
from opensetda.usecases.drift_of_samples import Drift, SampleOfRows
from opensetda.usecases.fit_run import FittedRun
from opensetda.usecases.read_domains import features_of, image_columns, none_readable
from opensetda.usecases.read_run import manifest_columns, read_rows

SUFFIXES = (".csv", ".parquet")
# Images, and rows, whose features are in memory at a time.
PART = 512
PART_ROWS = 8192
# A run that is replaced as often as that while it is read is not worth waiting for.
_TRIES = 3

T = TypeVar("T")

Run = str | Path | RunFolder | FittedRun
"""A run folder: its path, opened, or as `fit` returned it."""

_Parts = Generator[tuple[npt.NDArray[np.float32], npt.NDArray[Any]], None, None]
"""Features of some samples, and their names, part by part."""


@dataclass(frozen=True)
class WrittenLabels:
    """A file of labels that `predict` wrote; `counts` has how many samples got each label.

    `n_broken` images could not be read and were left out; `broken_list` is a CSV file of them.
    `drift` says whether the samples still look like the run's target; None of cluster work, and of
    runs that kept nothing of it.
    """

    path: Path
    counts: Counter[str]
    unknown_label: str
    noun: str
    n_broken: int
    broken_list: Path | None
    drift: Drift | None = None


@worded
def predict(
    run: Run,
    samples: Any,
    out: str | Path | None = None,
    *,
    tables: TableOptions | None = None,
    overwrite: bool = False,
    listener: RunListener | None = None,
    scheduler: Any = None,
    backbone: Any = None,
) -> PredictionTable | WrittenLabels:
    """Label later samples with the model of a run, independently of each other.

    Parameters
    ----------
    run : str, Path, RunFolder or FittedRun
        The run.
    samples : str, Path, sequence of paths, DataFrame, or array of shape (n, d)
        Images (files, folders, lists, manifests, tar shards), one feature table, or features.
    out : str or Path, optional
        File to write, ``.csv`` or ``.parquet``; without it the labels are returned.
    tables : TableOptions, optional
        Columns and arrays of a table or manifest; by default as in `fit`.
    overwrite : bool
        Replace an existing file.
    listener : RunListener, optional
        Receives warnings and progress.
    scheduler : str, Path or distributed.Client, optional
        Label pieces on the workers of dask: an address, a scheduler file, ``local:N`` for worker
        processes here, or a client. `out` is then a folder of Parquet parts.
    backbone : str, nn.Module or callable, optional
        The network of a run that was fitted with one of your own, see `opensetda.use_backbone`.

    Returns
    -------
    PredictionTable or WrittenLabels
        The labels, or with `out` what was written.
    """
    tables = tables or TableOptions()
    listener = listener or RunListener()
    give_backbone(backbone)
    if is_dataset(samples):
        rows = rows_of(samples, "samples")
        samples = rows[0] if isinstance(rows, tuple) else rows
    place = None if out is None else Path(out)
    if place is not None and scheduler is None:
        check_new_file("--out", place, SUFFIXES, overwrite)

    def label(folder: RunFolder) -> PredictionTable | WrittenLabels:
        images = find_images(folder, samples, tables)
        if scheduler is not None:
            how = place, scheduler, overwrite, listener
            return _predict_parts(folder, samples, images, tables, how)
        return _predict_here(folder, samples, images, tables, place, listener)

    return with_run(run, label)


def give_backbone(backbone: Any) -> None:
    """Make a network of the user's own known, for a run that was fitted with it."""
    if backbone is not None:
        from opensetda.backbones.own import use_backbone

        use_backbone(backbone)


def _predict_here(
    folder: RunFolder,
    samples: Any,
    images: list[Path] | None,
    tables: TableOptions,
    place: Path | None,
    listener: RunListener,
) -> PredictionTable | WrittenLabels:
    """Label samples in this process."""
    counts = Counter[str]()
    broken = list[Broken]()
    made = list[PredictionTable]()
    listed = None
    formulas: list[str] = []
    sample = SampleOfRows()
    with temporary_folder(None if place is None else place.resolve()) as scratch:
        id_name = "id" if images is None else IMAGE_ID
        if images is None:
            parts = _row_parts(read_rows(folder, samples, scratch, tables), listener)
        else:
            columns = manifest_columns(folder, tables)
            parts = image_parts(folder, images, columns, broken, listener)
        model = folder.model()
        with closing(parts):
            labelled = ((X, PredictionTable.of_samples(model, X, ids, id_name)) for X, ids in parts)
            if place is None:
                made += (table for _, table in labelled)
            else:
                with new_file(place) as aside, PredictionWriter(aside) as writer:
                    for rows, table in labelled:
                        sample.add(rows, table)
                        counts.update(table.labels.tolist())
                        formulas = formulas or formula_warning(place, table.names())
                        writer.write(table.to_arrow())
                listed = write_broken_list(place, broken, listener.warn)
    for warning in formulas:
        listener.warn(warning)
    if broken:
        listener.warn(f"{many_images(len(broken))} cannot be read: {listed or 'left out'}")
    if place is None:
        names = ("ids", "labels", "known_scores", "nearest", "proba")
        whole: dict[str, Any]
        whole = {name: np.concatenate([getattr(part, name) for part in made]) for name in names}
        return replace(made[0], **whole)
    noun = "row" if images is None else "image"
    drift = None if folder.kept() is None else sample.drift_of(folder)
    return WrittenLabels(place, counts, folder.unknown_label, noun, len(broken), listed, drift)


def _predict_parts(
    folder: RunFolder,
    samples: Any,
    images: list[Path] | None,
    tables: TableOptions,
    place: Any,
) -> WrittenLabels:
    """Label samples on dask."""
    if place[0] is None:
        raise InputError("scheduler: give out, too, a folder to make")
    run = absolute(folder.path)
    sha256 = file_record(folder.path / MANIFEST)["sha256"]
    job = on_cluster.LabelsBy(run, sha256, tables, absolute("."), read_rows)
    broken = list[Broken]()
    listed = None
    noun = "row" if images is None else "image"
    if images is None:
        samples = samples[0] if isinstance(samples, list | tuple) else samples
        written: Any = on_cluster.rows_in_parts(job, folder, samples, place)
    else:
        columns = manifest_columns(folder, tables)
        written, broken, listed = on_cluster.images_in_parts(job, images, columns, place)
    counts = on_cluster.count_labels(written)
    return WrittenLabels(place[0], counts, folder.unknown_label, noun, len(broken), listed)


def with_run(run: Run, use: Callable[[RunFolder], T]) -> T:
    """Return what `use` makes of a run; a run that is replaced meanwhile is opened again."""
    for _ in range(_TRIES - 1):
        folder = open_run(run)
        try:
            return use(folder)
        except InputError as error:
            if not folder.was_replaced:
                raise
            if isinstance(run, RunFolder):
                # Only the caller can open the run that is there now.
                problem = "another run took its place since it was opened; open it again"
                raise ReplacedRunError(f"{run.path}: {problem}") from error
    return use(open_run(run))


def open_run(run: Run) -> RunFolder:
    """Return a run folder, opened for reading."""
    if isinstance(run, RunFolder):
        return run
    return run.folder if isinstance(run, FittedRun) else RunFolder.open(run)


def find_images(folder: RunFolder, samples: Any, options: TableOptions) -> list[Path] | None:
    """Return the paths of images; None if the samples are a table, or rows of features."""
    several = samples if isinstance(samples, list | tuple) else [samples]
    paths = [Path(sample) for sample in several if isinstance(sample, str | Path)]
    columns = ImageColumns(path=options.path or folder.column("path"))
    tables = [path for path in paths if not is_image_data(path, columns)]
    if tables and len(paths) > 1:
        raise InputError(f"{tables[-1]}: a feature table among others; label it on its own")
    is_images = bool(paths) and not tables
    if is_images and not folder.has_images:
        fitted = f"{folder.path} was fitted to a feature table"
        raise InputError(f"{paths[0]}: images, but {fitted}; give a table, or fit to images")
    if not is_images and folder.is_finetuned:
        tuned = f"the backbone of {folder.path} was fine-tuned"
        raise InputError(f"{(*paths, 'samples')[0]}: features, but {tuned}; give the images")
    return paths if is_images else None


def _row_parts(table: FeatureTable, listener: RunListener) -> _Parts:
    """Yield rows and their ids, numbers without any."""
    X = table.X
    ids = table.ids
    for note in table.notes:
        listener.warn(note)
    with listener.counting("predict", "row") as progress:
        progress(0, len(X))
        for start in range(0, len(X), PART_ROWS):
            part = slice(start, min(start + PART_ROWS, len(X)))
            names = row_numbers(part.stop, start) if ids is None else np.asarray(ids[part])
            yield X[part].astype(np.float32, copy=False), names
            release_pages(X)
            progress(part.stop, len(X))


def image_parts(
    folder: RunFolder,
    images: list[Path],
    columns: ImageColumns,
    broken: list[Broken],
    listener: RunListener,
    chosen: frozenset[int] | None = None,
) -> _Parts:
    """Yield the features of images, in constant memory; `broken` gets those that are left out.

    `chosen` are the places of some images, None for all.
    """
    total = sum(1 for _ in iterate_entries(images, columns))
    entries = all_there(iterate_entries(images, columns), total, images)
    done = count(1)
    if chosen is not None:
        total = len(chosen)
        entries = (entry for place, entry in enumerate(entries) if place in chosen)
    with (
        listener.counting("predict") as progress,
        Extractor(folder.recipe(), state=folder.backbone_state()) as extractor,
    ):
        progress(0, total)
        while part := list(islice(entries, PART)):
            files = [entry.path for entry in part]
            features, reasons = extractor.features(files, lambda _: progress(next(done), total))
            for entry, why in zip(part, reasons, strict=True):
                # Those of a list need not exist.
                if not entry.place:
                    check_there(entry.path, why)
                if why is not None:
                    broken.append(Broken(entry.id, entry.path, why))
            if len(features):
                read = [entry.id for entry, why in zip(part, reasons, strict=True) if why is None]
                yield features, np.array(read)
    if len(broken) == total:
        raise none_readable(images[0], total, broken[0])
    for warning in extractor.warnings:
        listener.warn(warning)


@worded
def extract_features(
    images: str | Path,
    out: str | Path,
    options: ImageOptions | None = None,
    *,
    tables: TableOptions | None = None,
    overwrite: bool = False,
    listener: RunListener | None = None,
    scheduler: Any = None,
) -> Extraction | on_cluster.WrittenFeatures:
    """Turn images into a feature table, one row per image, and return what it was made from.

    Parameters
    ----------
    images : str or Path
        A folder, list, manifest or tar shards.
    out : str or Path
        File to make, ``.npz``: X, paths and, if the images have classes, y and classes.
        Images that cannot be read are listed beside it, in a CSV file.
    options : ImageOptions, optional
        The backbone and its cache.
    tables : TableOptions, optional
        Columns of a manifest, and the folder that relative paths start from.
    overwrite : bool
        Replace an existing file.
    listener : RunListener, optional
        Receives notes, warnings and progress.
    scheduler : str, Path or distributed.Client, optional
        As in `predict`; `out` is then a folder of Parquet parts, and no cache is used.
    """
    options = options or ImageOptions()
    listener = listener or RunListener()
    place = Path(out)
    columns = image_columns(tables or TableOptions())
    if scheduler is not None:
        how = place, scheduler, overwrite, listener
        return on_cluster.features_in_parts(Path(images), options, columns, how)
    check_new_file("--out", place, (".npz",), overwrite)
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
        read = found.select(made.rows)
        # Numbers and text only: an array of objects would be pickled.
        arrays: dict[str, Any] = {"X": made.X, "paths": read.ids.astype(np.str_)}
        if read.labels is not None:
            classes, y = np.unique(read.labels, return_inverse=True)
            arrays |= {"y": y.astype(np.int64), "classes": classes.astype(np.str_)}
        with new_file(place) as aside, aside.open("wb") as stream:
            np.savez(stream, **arrays)
        listed = write_broken_list(place, made.broken, listener.warn)
    if listed is not None:
        n = f"{len(made.broken):,} of {len(found):,} images"
        listener.warn(f"{n} cannot be read: {listed}")
    return made
