"""Features and labels in pieces on the workers of dask, as folders of Parquet parts."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from opensetda.backbones.extraction import Broken, Extractor, Features, check_there, chunks
from opensetda.backbones.recipe import Recipe
from opensetda.cluster.pieces import Place, write_parts
from opensetda.data.images.decoding import NO_FILE, Entry
from opensetda.data.images.loading import ImageColumns, all_there, iterate_entries
from opensetda.data.names import check_path
from opensetda.data.tables.formats import is_parts_folder
from opensetda.data.tables.loading import FeatureTable
from opensetda.data.tables.row_groups import RowRange, row_groups
from opensetda.errors import InputError
from opensetda.methods.base import OpenSetClassifier
from opensetda.runs.folder import RunFolder
from opensetda.runs.integrity import MANIFEST
from opensetda.runs.options import ImageOptions, TableOptions, absolute
from opensetda.runs.pictures import many_images, write_broken_list
from opensetda.runs.predictions import IMAGE_ID, PredictionTable, PredictionWriter, row_numbers
from opensetda.system.files import file_record, temporary_folder
from opensetda.system.memory import keep_freed_memory
from opensetda.usecases.read_domains import content_digest, image_recipe, none_readable

# Images of a piece: a 16th of all, between these. Numbers of a piece of rows that is sent.
IMAGES = (64, 1024)
SENT_CELLS = 2**20
BATCH_ROWS = 8192
_NOTES = b"opensetda"
_turn = threading.RLock()


@dataclass(frozen=True)
class FeaturesOf:
    """Writes features of images on a worker; relative paths start from the folder `here`."""

    recipe: Recipe
    labelled: bool
    strict: bool
    here: str

    def __call__(self, entries: list[Entry], aside: Path) -> None:
        """Write the part of a piece."""
        X, read, notes = _extract(_once(_extractor, self.recipe), entries, self.here, self.strict)
        columns: dict[str, Any] = {IMAGE_ID: pa.array([entry.id for entry in read], pa.string())}
        if self.labelled:
            columns["y"] = pa.array([entry.label for entry in read], pa.string())
        columns |= {f"f{place}": X[:, place] for place in range(X.shape[1])}
        with PredictionWriter(aside) as writer:
            writer.write(pa.table(columns).replace_schema_metadata(notes))


class SentRows(NamedTuple):
    """Rows that a worker gets with its piece, and their ids or numbers."""

    X: Any
    ids: Any

    def __str__(self) -> str:
        return f"{self.ids[0]} to {self.ids[-1]}"


@dataclass(frozen=True)
class LabelsBy:
    """Labels samples on a worker, by the model of a run; `read` reads rows of tables."""

    run: str
    sha256: str
    tables: TableOptions
    here: str
    read: Callable[..., FeatureTable]

    def __call__(self, piece: list[Entry] | RowRange | SentRows, aside: Path) -> None:
        """Write the part of a piece."""
        folder, model, extractor = _once(_opened, self.run, self.sha256)
        X: Any
        id_name = "id"
        notes = None
        if isinstance(piece, list):
            X, read, notes = _extract(extractor, piece, self.here)
            ids = np.array([entry.id for entry in read], np.str_)
            id_name = IMAGE_ID
        elif isinstance(piece, RowRange):
            X, ids = self.rows(folder, piece)
        else:
            X = piece.X
            ids = piece.ids
        n = len(X)
        if not n:
            # Without a row there is no table: one is labelled, and left out again.
            X = np.zeros((1, model.n_features_in_))
            ids = np.array([""])
        with PredictionWriter(aside) as writer:
            for start in range(0, len(X), BATCH_ROWS):
                rows = slice(start, start + BATCH_ROWS)
                chunk = X[rows].astype(np.float32, copy=False)
                own = np.asarray(ids[rows])
                table = PredictionTable.of_samples(model, chunk, own, id_name).to_arrow()
                writer.write(table.slice(0, n).replace_schema_metadata(notes))

    def rows(self, folder: RunFolder, piece: RowRange) -> tuple[Any, Any]:
        """Return rows of a Parquet file, and their ids or numbers."""
        table = self.read(folder, piece.open(), None, self.tables)
        numbers = row_numbers(piece.start + piece.rows, piece.start)
        return table.X, numbers if table.ids is None else table.ids


def _once(make: Callable[..., Any], *of: Any) -> Any:
    """Return what a cached function makes; of several threads of a worker, the first makes it."""
    with _turn:
        return make(*of)


def _make_extractor(recipe: Recipe, state: Any = None) -> Extractor:
    """Return what computes features, with as many threads as the worker has."""
    from distributed import get_worker

    # dask has its workers return freed memory at once: features would take a sixth longer.
    keep_freed_memory()
    return Extractor(recipe, state, get_worker().state.nthreads)


_extractor = lru_cache(maxsize=1)(_make_extractor)


@lru_cache(maxsize=1)
def _opened(run: str, sha256: str) -> tuple[RunFolder, OpenSetClassifier, Extractor | None]:
    folder = RunFolder.open(run)
    extractor = None
    if file_record(folder.path / MANIFEST)["sha256"] != sha256:
        raise InputError(f"{run}: not the run that the command was given; share one folder")
    if folder.has_images:
        extractor = _make_extractor(folder.recipe(), folder.backbone_state())
    return folder, folder.model(), extractor


def _extract(
    extractor: Extractor, entries: list[Entry], here: str, strict: bool = False
) -> tuple[Features, list[Entry], dict[bytes, bytes]]:
    """Return features, the images that they are of, and notes of the part on the others."""
    X, reasons = extractor.features([os.path.join(here, entry.path) for entry in entries])  # noqa: PTH118
    pairs = list(zip(entries, reasons, strict=True))
    broken = [(entry.id, entry.path, why) for entry, why in pairs if why is not None]
    if {*reasons} == {NO_FILE}:
        # Not left out as broken: perhaps a disk is missing on this machine only.
        raise InputError(f"{broken[0][1]}: no such file, nor any other of the piece; mount it")
    for entry, why in pairs:
        # Those of a list need not exist.
        if not entry.place:
            check_there(os.path.join(here, entry.path), why)  # noqa: PTH118
    if strict and broken:
        advice = "repair or remove it, or leave out --strict"
        raise InputError(f"{broken[0][1]}: {broken[0][2]}; {advice}")
    # Of a worker that has not computed anything yet, there are none.
    warnings = extractor.warnings if len(X) else []
    notes = json.dumps({"broken": broken, "warnings": warnings}).encode()
    return X, [entry for entry, why in pairs if why is None], {_NOTES: notes}


# In the process that was called ----------------------------------------------------------------


@dataclass(frozen=True)
class WrittenFeatures:
    """A folder of Parquet parts with features; the attributes are as of `Extraction`."""

    path: Path
    shape: tuple[int, int]
    broken: list[Broken]
    seconds: float
    n_cached: int = 0


def features_in_parts(
    images: Path, options: ImageOptions, columns: ImageColumns, place: Place
) -> WrittenFeatures:
    """Write features of images in parts, with classes if the first image has one."""
    started = time.perf_counter()
    labelled = False
    with suppress(InputError):
        labelled = next(iterate_entries([images], columns, True)).label is not None
    job = FeaturesOf(image_recipe(options), labelled, options.strict, absolute("."))
    parts, broken, _ = images_in_parts(job, [images], columns, place)
    rows = sum(metadata.num_rows for metadata in parts.values())
    seconds = time.perf_counter() - started
    return WrittenFeatures(place[0], (rows, job.recipe.width), broken, seconds)


def images_in_parts(
    job: FeaturesOf | LabelsBy, images: Sequence[Path], columns: ImageColumns, place: Place
) -> tuple[dict[Path, Any], list[Broken], Path | None]:
    """Write parts of images; return their metadata, the images that cannot be read, their list."""
    labelled = isinstance(job, FeaturesOf) and job.labelled
    total = 0
    digest = hashlib.sha256()
    for entry in iterate_entries(images, columns, labelled):
        digest.update(repr(entry).encode())
        total += 1
    # Whatever the number of workers.
    size = min(max(total // 16, IMAGES[0]), IMAGES[1])
    files = [str(path.absolute()) for path in images]
    entries = all_there(iterate_entries(images, columns, labelled), total, images)
    pieces = chunks(entries, size)
    identity = *astuple(job)[:4], size, digest.hexdigest()
    written = write_parts(job, pieces, -(-total // size), identity, files, place)
    parts = {part: pyarrow.parquet.read_metadata(part) for part in written}
    broken = []
    warnings = dict[str, None]()
    for metadata in parts.values():
        notes = json.loads(metadata.metadata[_NOTES])
        broken += [Broken(name, path, reason) for name, path, reason in notes["broken"]]
        warnings |= dict.fromkeys(notes["warnings"])
    if len(broken) == total:
        raise none_readable(images[0], total, broken[0])
    listed = write_broken_list(place[0], broken, place[-1].warn)
    if broken:
        warnings[f"{many_images(len(broken))} cannot be read: {listed}"] = None
    for warning in warnings:
        place[-1].warn(warning)
    return parts, broken, listed


def rows_in_parts(job: LabelsBy, folder: RunFolder, samples: Any, place: Place) -> list[Path]:
    """Write labels of rows in parts: of row groups that workers read, or of rows sent to them."""
    is_path = isinstance(samples, str | Path)
    identity = astuple(job)[:4]
    if is_path and (str(samples).lower().endswith(".parquet") or is_parts_folder(samples)):
        path = Path(samples).absolute()
        check_path(path)
        groups = [piece for piece in row_groups(path) if piece.rows]
        if not groups:
            raise InputError(f"{path}: the table is empty; give at least one row")
        # Here, too: what is wrong with columns is wrong everywhere.
        job.rows(folder, groups[0])
        stats = [piece.path.stat() for piece in groups]
        identity = *identity, groups, [(stat.st_size, stat.st_mtime_ns) for stat in stats]
        files = [str(path), job.run]
        return write_parts(job, groups, len(groups), identity, files, place)
    with temporary_folder(place[0].resolve()) as scratch:
        table = job.read(folder, samples, scratch, job.tables)
        X = table.X
        size = max(1, SENT_CELLS // table.X.shape[1])
        ids = row_numbers(len(X)) if table.ids is None else np.asarray(table.ids)
        starts = range(0, len(X), size)
        identity = (*identity, content_digest(X, ids))
        sent = (
            SentRows(np.asarray(X[n : n + size], np.float32), ids[n : n + size]) for n in starts
        )
        return write_parts(job, sent, len(starts), identity, [job.run], place)


def count_labels(parts: Iterable[Path]) -> Counter[str]:
    """Return how many samples of parts got each label."""
    counts: Counter[str] = Counter()
    for part in parts:
        labels = pyarrow.parquet.read_table(part, columns=["label"])["label"].value_counts()
        counts.update({one["values"]: one["counts"] for one in labels.to_pylist()})
    return counts
