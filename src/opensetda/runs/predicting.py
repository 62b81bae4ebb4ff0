"""The use case predict: label samples that came after `fit`, with the model of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from opensetda.backbones.extraction import Broken, Extractor
from opensetda.data.images.lists import ImageColumns, printable
from opensetda.data.images.loading import is_image_data, iterate_images
from opensetda.data.tables.column_files import ColumnTable, frame_table, is_frame
from opensetda.data.tables.loading import TableColumns, read_samples
from opensetda.errors import InputError
from opensetda.rows import release_pages
from opensetda.runs.domain_arrays import feature_rows
from opensetda.runs.fit_and_resume import FittedRun
from opensetda.runs.folder import RunFolder
from opensetda.runs.listening import RunListener
from opensetda.runs.outputs import check_new_file, many_images, write_broken_list
from opensetda.runs.predictions import IMAGE_ID, PredictionTable, PredictionWriter, numbers_of
from opensetda.system.files import new_file, temporary_folder

SUFFIXES = (".csv", ".json", ".parquet")
TOP_K = 5
# Images, and rows, whose features are in memory at a time.
PART, PART_ROWS = 512, 8192

Run = str | Path | RunFolder | FittedRun
"""A run folder: its path, opened, or as `fit` returned it."""


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
    columns = _Columns(id_column, drop, features_key, path_column, images_root)
    if out is None:
        folder = open_run(run)
        with temporary_folder() as scratch:
            place = scratch / "labels.parquet"
            labeller = _Labeller(folder, place, None, None, listener)
            written = labeller.label(samples, columns, strict)
            _warn_of(written, "left out", listener)
            table = PredictionTable.read_parquet(place)
        return replace(table, unknown_label=folder.unknown_label)
    place = Path(out)
    check_new_file("--out", place, SUFFIXES, overwrite)
    labeller = _Labeller(open_run(run), place, top_k, top_k or TOP_K, listener)
    written = labeller.label(samples, columns, strict)
    _warn_of(written, f"{written.broken_list}", listener)
    return written


def _warn_of(written: WrittenLabels, where: str, listener: RunListener) -> None:
    if written.broken_list is not None:
        listener.warn(f"{many_images(len(written.broken))} cannot be read: {where}")


def open_run(run: Run) -> RunFolder:
    """Return a run folder, opened for reading."""
    if isinstance(run, RunFolder):
        return run
    return run.folder if isinstance(run, FittedRun) else RunFolder.open(run)


def _check_kinds(folder: RunFolder, paths: list[Path], images: list[Path]) -> None:
    """Raise an `InputError` unless all paths are images, or one is a table, as the run needs."""
    if not paths:
        raise InputError("no samples; give images or a feature table")
    if images and not folder.has_images:
        raise InputError(
            f"{images[0]}: images, but {folder.path} was fitted to a feature table; give a "
            "table, or fit to images"
        )
    if images and len(images) < len(paths):
        table = next(path for path in paths if path not in images)
        raise InputError(f"{table}: a feature table among images; label it in a run of its own")
    if not images:
        _refuse_features_of_another_backbone(folder, f"{paths[0]}: a feature table")
    if not images and len(paths) > 1:
        raise InputError(f"{paths[1]}: one feature table at a time; label it in a run of its own")


def _refuse_features_of_another_backbone(folder: RunFolder, what: str) -> None:
    if folder.is_finetuned:
        raise InputError(
            f"{what}, but the backbone of {folder.path} was fine-tuned, and "
            "features of any other do not fit; give the images"
        )


class _Columns(NamedTuple):
    """Options for tables, then those for manifests of images."""

    id: str | None
    drop: Sequence[str] | None
    features: str | None
    path: str | None
    root: str | Path | None

    def check(self, first: Path, is_images: bool, strict: bool) -> None:
        """Raise an `InputError` at an option for samples of the other kind."""
        for_tables = {"--id-column": self.id, "--drop": self.drop, "--features-key": self.features}
        for_images = {"--strict": strict, "--path-column": self.path, "--images-root": self.root}
        what, is_for = ("images", "tables") if is_images else ("a feature table", "images")
        for name, value in (for_tables if is_images else for_images).items():
            if value:
                raise InputError(f"{name}: {first} is {what}; this option is for {is_for}")


@dataclass
class _Labeller:
    """Labels samples of any kind into a file."""

    folder: RunFolder
    out: Path
    top_k: int | None
    image_top_k: int | None
    listener: RunListener

    def label(self, samples: Any, columns: _Columns, strict: bool) -> WrittenLabels:
        folder = self.folder
        several = list(samples) if isinstance(samples, list | tuple) else [samples]
        if not all(isinstance(sample, str | Path) for sample in several):
            _refuse_features_of_another_backbone(folder, "the array")
            if is_frame(samples):
                return self._read_table(frame_table(samples, "samples"), columns)
            return self._table(lambda width, _: (feature_rows(samples, "samples", width), None))
        paths = [Path(sample) for sample in several]
        root = None if columns.root is None else Path(columns.root)
        image_columns = ImageColumns(path=columns.path or folder.column("path"), root=root)
        images = [path for path in paths if is_image_data(path, image_columns)]
        _check_kinds(folder, paths, images)
        columns.check(paths[0], bool(images), strict)
        if images:
            return self._images(images, image_columns, strict)
        return self._read_table(paths[0], columns)

    def _read_table(self, path: Path | ColumnTable, columns: _Columns) -> WrittenLabels:
        folder = self.folder
        table = TableColumns(
            label=folder.column("label") or "y",
            id=columns.id,
            features=columns.features or folder.column("features") or "X",
            drop=tuple(columns.drop or folder.column("drop") or ()),
        )

        def read(width: tuple[int, str], scratch: Path) -> tuple[Any, Any]:
            names, usual_id, plan = (
                folder.feature_names(),
                folder.column("id"),
                folder.column_plan(),
            )
            found = read_samples(path, width[0], names, table, usual_id, scratch, plan)
            for warning in found.notes:
                self.listener.warn(warning)
            return found.X, found.ids

        return self._table(read)

    def _images(self, paths: list[Path], columns: ImageColumns, strict: bool) -> WrittenLabels:
        total = sum(1 for _ in iterate_images(paths, columns))
        with (
            self.listener.counting("predict") as progress,
            new_file(self.out) as aside,
            PredictionWriter(aside, self.image_top_k) as writer,
        ):
            progress(0, total)
            names = (path for _, path in iterate_images(paths, columns))
            labelled = self._label_images(names, writer, strict, lambda n: progress(n, total))
            counts, broken, warnings = labelled
            if not counts:
                raise InputError(
                    f"{paths[0]}: none of the {total:,} images can be read; the first is "
                    f"{broken[0].id} ({broken[0].reason})"
                )
        for warning in warnings:
            self.listener.warn(warning)
        listed = write_broken_list(self.out, broken)
        return WrittenLabels(self.out, counts, self.folder.unknown_label, True, broken, listed)

    def _label_images(
        self,
        paths: Iterable[str],
        writer: PredictionWriter,
        strict: bool,
        progress: Callable[[int], None],
    ) -> tuple[Counter[str], list[Broken], list[str]]:
        """Write labels in constant memory; return their counts, broken images, and warnings."""
        run, model = self.folder, self.folder.model()
        counts: Counter[str] = Counter()
        broken: list[Broken] = []
        names, done = iter(paths), 0

        def finished(more: int) -> None:
            nonlocal done
            done += more
            progress(done)

        with Extractor(run.recipe(), state=run.backbone_state()) as extractor:
            while part := list(islice(names, PART)):
                features, reasons = extractor.features(part, finished)
                results = list(zip(part, reasons, strict=True))
                read = [path for path, reason in results if reason is None]
                failed = [
                    Broken(path, path, reason) for path, reason in results if reason is not None
                ]
                if failed and strict:
                    first = failed[0]
                    raise InputError(
                        f"{first.id}: {first.reason}; repair or remove it, or leave out --strict"
                    )
                broken += failed
                if read:
                    ids = np.array([printable(path) for path in read])
                    table = PredictionTable.of_samples(model, features, ids, IMAGE_ID)
                    counts.update(table.labels.tolist())
                    writer.write(table)
        return counts, broken, extractor.warnings

    def _table(self, read: Callable[[tuple[int, str], Path], tuple[Any, Any]]) -> WrittenLabels:
        """Label rows; `read` gets the number of features and a folder, returns rows and ids.

        Rows and ids may be stored in files.
        """
        model = self.folder.model()
        counts: Counter[str] = Counter()
        with (
            self.listener.counting("predict", "row") as progress,
            temporary_folder(self.out.resolve()) as scratch,
        ):
            X, ids = read((model.n_features_in_, "the model"), scratch)
            progress(0, len(X))
            with new_file(self.out) as aside, PredictionWriter(aside, self.top_k) as writer:
                for start in range(0, len(X), PART_ROWS):
                    part = slice(start, min(start + PART_ROWS, len(X)))
                    names = numbers_of(part) if ids is None else np.asarray(ids[part])
                    features = X[part].astype(np.float32, copy=False)
                    table = PredictionTable.of_samples(model, features, names)
                    release_pages(X)
                    counts.update(table.labels.tolist())
                    writer.write(table)
                    progress(part.stop, len(X))
        return WrittenLabels(self.out, counts, self.folder.unknown_label, False, [])
