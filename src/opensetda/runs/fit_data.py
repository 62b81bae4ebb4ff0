"""The data of a fit: two feature tables, two sets of images made into features, or arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.backbones.cache import FeatureCache
from opensetda.backbones.extraction import Broken, Extraction, extract
from opensetda.backbones.recipe import Recipe
from opensetda.backbones.registry import DEFAULT_BACKBONE, resolve
from opensetda.data.images.lists import ImageColumns, is_shard
from opensetda.data.images.loading import (
    ImageList,
    is_image_data,
    read_image_domains,
    two_kinds,
)
from opensetda.data.names import twins
from opensetda.data.tables.column_problems import ColumnsError
from opensetda.data.tables.loading import FeatureTable, read_domains
from opensetda.data.tables.parquet_parts import table_bytes, table_files
from opensetda.errors import InputError
from opensetda.rows import row_chunks
from opensetda.runs.domain_arrays import DomainArrays, table_columns
from opensetda.runs.domain_arrays import label_text as label_text
from opensetda.runs.listening import CountingProgress, RunListener
from opensetda.runs.predictions import IMAGE_ID
from opensetda.runs.request import ARRAY, FitRequest, ImageOptions, TableOptions
from opensetda.system.files import file_record, near

_MEGABYTE = 10**6
_CHUNK = 4096


@dataclass(frozen=True)
class FitData:
    """Source and target as rows, with what the run folder records of them.

    The arrays may be memory maps of any type of number. `inputs` are path, size and SHA-256 of
    both domains, `noun` is "row" or "image", `recipe` is how images became features,
    `image_paths` are the files of the source, then of the target, `broken` images were left out.
    """

    source: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    target: npt.NDArray[Any]
    ids: Any | None
    inputs: dict[str, Any]
    columns: dict[str, Any]
    feature_names: tuple[str, ...] | None
    summary: str
    noun: str = "row"
    recipe: Recipe | None = None
    image_paths: tuple[str, ...] = ()
    broken: list[Broken] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    source_ids: Any | None = None


def load(
    request: FitRequest,
    listener: RunListener,
    scratch: Path,
    arrays: DomainArrays | None = None,
) -> FitData:
    """Read source and target; `scratch` is a folder for large data."""
    if arrays is not None:
        inputs = {
            "source": array_record(arrays.source, arrays.labels),
            "target": array_record(arrays.target),
        }
        summary = _summary(arrays.source, np.unique(arrays.labels), arrays.target)
        columns = asdict(table_columns(request.tables))
        domains = arrays.source, arrays.labels, arrays.target
        told, ids, names = twins(np.unique(arrays.labels).tolist()), None, None
        if arrays.tables is not None:
            source, target = arrays.tables
            columns, ids, names = columns | asdict(source.plan), target.ids, source.feature_names
            told = (*source.notes, *told)
        return FitData(*domains, ids, inputs, columns, names, summary, warnings=told)
    if is_image_request(request):
        with listener.counting("features") as progress:
            return load_images(request, progress, scratch)
    with listener.counting("reading", "MB") as progress:
        return load_tables(request, progress, scratch)


def is_image_request(request: FitRequest) -> bool:
    """Whether source and target are images; an `InputError` if only one of them is."""
    columns = image_columns(request.tables)
    domains = near(request.source), near(request.target)
    kinds = [is_image_data(path, columns) for path in domains]
    if kinds[0] != kinds[1]:
        raise two_kinds(*domains[:: 1 if kinds[0] else -1])
    options, given = request.images, request.tables
    for_images = {
        "--backbone": options.backbone,
        "--weights": options.weights,
        "--image-size": options.size,
        "--strict": options.strict,
        "--finetune": options.finetune,
        "--images-root": given.root,
    }
    for_tables = {
        "--id-column": given.id,
        "--drop": given.drop,
        "--keep": given.keep,
        "--one-hot": given.one_hot,
        "--impute": given.impute != "none",
        "--features-key": given.features != TableOptions().features,
    }
    if all(is_shard(path.name) or path.is_dir() for path in domains):
        # There is no list that has columns or paths.
        for_lists = {"--label-column": given.label, "--path-column": given.path}
        for_tables |= {**for_lists, "--images-root": given.root}
    is_for, what = ("tables or lists", "images") if kinds[0] else ("images", "a feature table")
    for name, value in (for_tables if kinds[0] else for_images).items():
        if value:
            hint = "" if kinds[0] else " (a manifest's further columns need --path-column)"
            raise InputError(f"{name}: {domains[0]} is {what}; this option is for {is_for}{hint}")
    return kinds[0]


def image_columns(options: TableOptions) -> ImageColumns:
    """Return the columns of lists and manifests."""
    root = None if options.root is None else Path(options.root)
    return ImageColumns(path=options.path, label=options.label, root=root)


def load_tables(
    request: FitRequest,
    progress: CountingProgress | None = None,
    scratch: Path | None = None,
) -> FitData:
    """Read two feature tables; `progress` counts megabytes, each twice: read and hashed."""
    columns = table_columns(request.tables)
    domains = near(request.source), near(request.target)
    total = 2 * sum(table_bytes(path) for path in domains if path.exists())
    done = 0

    def tell(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if progress is not None:
            progress(done // _MEGABYTE, total // _MEGABYTE)

    tell(0)
    try:
        source, target = read_domains(*domains, columns, tell, scratch)
    except ColumnsError as error:
        raise error.for_command(request.command) from None
    assert source.labels is not None, "read_domains returns a labelled source"
    _check_unknown_label(request, source.class_counts())
    inputs = {"source": _table_record(source, tell), "target": _table_record(target, tell)}
    return FitData(
        source=source.X,
        labels=source.labels,
        target=target.X,
        ids=target.ids,
        inputs=inputs,
        columns={**asdict(columns), **asdict(source.plan)},
        feature_names=source.feature_names or target.feature_names,
        summary=_summary(source.X, source.class_counts(), target.X),
        warnings=(*source.notes, *twins(source.class_counts())),
        source_ids=source.ids,
    )


def _check_unknown_label(request: FitRequest, classes: Collection[str]) -> None:
    """Raise an `InputError` before features are computed, if unknowns are called as a class is."""
    if request.unknown_label in classes:
        raise InputError(
            f"--unknown-label {request.unknown_label!r} is a class of the source "
            f"{near(request.source)}; choose another"
        )


def _summary(source: npt.NDArray[Any], classes: Any, target: npt.NDArray[Any]) -> str:
    return (
        f"source: {len(source):,} rows of {len(classes)} classes, "
        f"target: {len(target):,} rows, {target.shape[1]:,} features"
    )


def load_images(
    request: FitRequest,
    progress: CountingProgress,
    scratch: Path | None = None,
) -> FitData:
    """List two sets of images and turn them into features; broken images are left out."""
    columns = image_columns(request.tables)
    listed = read_image_domains(near(request.source), near(request.target), columns)
    _check_unknown_label(request, listed[0].class_counts())
    recipe, extraction = features_of(listed, request.images, progress, scratch)
    source, target = _kept(*listed, extraction)
    X, broken = extraction.X, extraction.broken
    rows = X[: len(source)], X[len(source) :]
    assert source.labels is not None, "read_image_domains returns a labelled source"
    inputs = {"source": _image_record(source, rows[0]), "target": _image_record(target, rows[1])}
    return FitData(
        source=rows[0],
        labels=source.labels,
        target=rows[1],
        ids=target.ids,
        inputs=inputs,
        columns={"label": request.tables.label, "id": IMAGE_ID, "path": request.tables.path},
        feature_names=None,
        summary=(
            f"source: {len(source):,} images of {len(source.class_counts())} classes, "
            f"target: {len(target):,} images, {recipe.width:,} features of {recipe.backbone} "
            f"({extraction.n_cached:,} from the cache, {extraction.seconds:.1f} s)"
        ),
        noun="image",
        recipe=recipe,
        image_paths=(*source.paths, *target.paths),
        # Absolute: the list of broken images may be read from another folder.
        broken=[replace(image, path=str(Path(image.path).absolute())) for image in broken],
        notes=(*source.notes, *target.notes),
        warnings=(*twins(source.class_counts()), *extraction.warnings),
        source_ids=source.ids,
    )


def recipe_of(options: ImageOptions) -> Recipe:
    """Return how images become features."""
    return resolve(options.backbone or DEFAULT_BACKBONE, options.weights, options.size)


def features_of(
    lists: Sequence[ImageList],
    options: ImageOptions,
    progress: CountingProgress,
    scratch: Path | None = None,
    recipe: Recipe | None = None,
) -> tuple[Recipe, Extraction]:
    """Turn images into features; an `InputError` at a broken one if `options` are strict."""
    folder = None if options.cache is None else Path(options.cache)
    recipe = recipe or recipe_of(options)
    ids = [name for images in lists for name in images.ids.tolist()]
    paths = [path for images in lists for path in images.paths]
    with ExitStack() as stack:
        cache = None
        if folder is not None:
            cache = stack.enter_context(FeatureCache(folder, recipe.key, recipe.width))
        extraction = extract(recipe, ids, paths, cache, progress, scratch=scratch)
    if options.strict and extraction.broken:
        first = extraction.broken[0]
        raise InputError(
            f"{first.path}: {first.reason} ({len(extraction.broken):,} broken images in all); "
            "repair or remove it, or leave out --strict"
        )
    return recipe, extraction


def _kept(
    source: ImageList, target: ImageList, extraction: Extraction
) -> tuple[ImageList, ImageList]:
    """Leave out images that could not be read; an `InputError` if a class has no image left."""
    rows = extraction.rows
    kept = source.select(rows[rows < len(source)])
    left = target.select(rows[rows >= len(source)] - len(source))
    for images, before in ((kept, source), (left, target)):
        if not len(images):
            own = {*before.paths}
            first = next(image for image in extraction.broken if image.path in own)
            raise InputError(
                f"{before.origin}: none of its {len(before):,} images can be read; "
                f"the first is {first.id} ({first.reason})"
            )
    lost = sorted(source.class_counts().keys() - kept.class_counts().keys())
    if lost:
        raise InputError(
            f"{source.origin}: no image of the class {lost[0]!r} can be read; "
            "repair or remove its folder"
        )
    return kept, left


def array_record(
    X: npt.NDArray[Any] | None, labels: npt.NDArray[np.str_] | None = None
) -> dict[str, Any]:
    """Return what distinguishes arrays from others, for the record of a run."""
    digest = hashlib.sha256()
    record: dict[str, Any] = {"path": ARRAY}
    if X is not None:
        _add_rows(digest, X)
        record |= {"rows": len(X), "features": X.shape[1]}
    if labels is not None:
        digest.update(_lines(labels.tolist()))
        names, counts = np.unique(labels, return_counts=True)
        classes = dict(zip(names.tolist(), counts.tolist(), strict=True))
        record |= {"rows": len(labels), "classes": classes}
    return {**record, "sha256": digest.hexdigest()}


def _table_record(table: FeatureTable, progress: Callable[[int], None]) -> dict[str, Any]:
    files = table_files(table.path)
    parts = [file_record(file, progress) for file in files]
    record = parts[0]
    if files != [table.path]:
        # A folder of parts: their names and contents, in order.
        names = [f"{file.name} {part['sha256']}" for file, part in zip(files, parts, strict=True)]
        record = {
            "path": str(table.path.resolve()),
            "bytes": sum(part["bytes"] for part in parts),
            "sha256": hashlib.sha256(_lines(names)).hexdigest(),
        }
    record |= {"rows": len(table), "features": table.X.shape[1]}
    return record if table.labels is None else {**record, "classes": table.class_counts()}


def _image_record(images: ImageList, features: npt.NDArray[np.float32]) -> dict[str, Any]:
    # Names, labels and features: another image gives another feature.
    digest = hashlib.sha256(_lines(images.ids.tolist()))
    if images.labels is not None:
        digest.update(_lines(images.labels.tolist()))
    _add_rows(digest, features)
    path, sha256 = str(images.origin.resolve()), digest.hexdigest()
    record = {"path": path, "images": len(images), "sha256": sha256}
    return record if images.labels is None else {**record, "classes": images.class_counts()}


def _lines(names: Sequence[str]) -> bytes:
    return "\n".join(names).encode("utf-8", "surrogateescape")


def _add_rows(digest: Any, X: npt.NDArray[Any]) -> None:
    for _, chunk in row_chunks(X, range(len(X)), _CHUNK):
        digest.update(np.ascontiguousarray(chunk).data)
