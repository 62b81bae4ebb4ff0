"""The data of a fit: two feature tables, two sets of images made into features, or arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from opensetda.data.images.lists import ImageColumns
from opensetda.data.images.loading import ImageList, is_image_data, read_image_domains
from opensetda.data.images.tar_shards import is_shard
from opensetda.data.tables.loading import FeatureTable, TableColumns, read_domains
from opensetda.data.tables.parquet_parts import table_bytes, table_files
from opensetda.errors import InputError
from opensetda.rows import row_chunks
from opensetda.runs.arrays import DomainArrays, array_record
from opensetda.runs.listening import CountingProgress, RunListener
from opensetda.runs.predictions import IMAGE_ID
from opensetda.runs.request import FitRequest, TableOptions
from opensetda.system.files import file_record, near
from opensetda.system.team import ALONE, Team

if TYPE_CHECKING:
    from opensetda.backbones.extraction import Broken, Extraction
    from opensetda.backbones.recipe import Recipe

_MEGABYTE = 10**6
_HASHED_ROWS = 4096


@dataclass(frozen=True)
class FitData:
    """Source and target as rows, with what the run folder records of them.

    Attributes
    ----------
    source, target : arrays of shape (n_s, d) and (n_t, d)
        Of float32, or a memory map of any type of number.
    labels : array of str of shape (n_s,)
    ids, source_ids : arrays of str of shape (n_t,) and (n_s,) or None
        Names of the samples; those of a memory map stay in their file.
    inputs : dict
        Source and target for the record: path, size and SHA-256.
    columns : dict
        Names of columns, for the record.
    feature_names : tuple of str or None
        Names of the features, if they have names.
    summary : str
        One line about the data.
    noun : str
        What a sample is called: "row" or "image".
    recipe : Recipe or None
        How images became features.
    image_paths : tuple of str
        Image files of the source, then of the target.
    broken : list of Broken
        Images that were left out.
    notes, warnings : tuple of str
        What the reader found in the data.
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
    team: Team = ALONE,
    arrays: DomainArrays | None = None,
) -> FitData:
    """Read source and target; `scratch` is a folder for large data that all of the team see."""
    if arrays is not None:
        return _arrays(arrays)
    if is_image_request(request):
        with listener.counting("features") as progress:
            return load_images(request, progress, scratch, team)
    with listener.counting("reading", "MB") as progress:
        return load_tables(request, progress, scratch, team)


def _arrays(arrays: DomainArrays) -> FitData:
    n_classes = len(np.unique(arrays.labels))
    return FitData(
        source=arrays.source,
        labels=arrays.labels,
        target=arrays.target,
        ids=None,
        inputs={
            "source": array_record(arrays.source, arrays.labels),
            "target": array_record(arrays.target),
        },
        columns=_column_record(TableColumns()),
        feature_names=None,
        summary=_summary(len(arrays.source), n_classes, *arrays.target.shape),
    )


def _column_record(columns: TableColumns) -> dict[str, Any]:
    return {
        "label": columns.label,
        "id": columns.id,
        "features": columns.features,
        "drop": list(columns.drop),
    }


def _summary(n_source: int, n_classes: int, n_target: int, width: int) -> str:
    return (
        f"source: {n_source:,} rows of {n_classes} classes, "
        f"target: {n_target:,} rows, {width:,} features"
    )


def is_image_request(request: FitRequest) -> bool:
    """Whether source and target are images; an `InputError` if only one of them is."""
    columns = image_columns(request.tables)
    domains = near(request.source), near(request.target)
    kinds = [is_image_data(path, columns) for path in domains]
    if kinds[0] != kinds[1]:
        images, rows = domains[:: 1 if kinds[0] else -1]
        raise InputError(
            f"{images} holds images, but {rows} is a feature table; both must be of one kind "
            "('osda features' makes tables of images)"
        )
    options, columns_given = request.images, request.tables
    for_images = {
        "--backbone": options.backbone,
        "--weights": options.weights,
        "--image-size": options.size,
        "--strict": options.strict,
        "--finetune": options.finetune,
        "--images-root": columns_given.root,
    }
    for_tables = {
        "--id-column": columns_given.id,
        "--drop": columns_given.drop,
        "--features-key": columns_given.features != TableOptions().features,
    }
    if all(is_shard(path.name) or path.is_dir() for path in domains):
        # There is no list that has columns or paths.
        for_tables |= {
            "--label-column": columns_given.label,
            "--path-column": columns_given.path,
            "--images-root": columns_given.root,
        }
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
    team: Team = ALONE,
) -> FitData:
    """Read two feature tables; `progress` counts megabytes, each twice: read and hashed."""
    options = request.tables
    columns = TableColumns(options.label or "y", options.id, options.features, options.drop)
    domains = near(request.source), near(request.target)
    total = 2 * sum(table_bytes(path) for path in domains if path.exists())
    done = 0

    def tell(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if progress is not None:
            progress(done // _MEGABYTE, total // _MEGABYTE)

    tell(0)
    own = None if scratch is None else scratch / f"tables-{team.rank:04d}"
    if own is not None:
        own.mkdir(exist_ok=True)
    source, target = read_domains(*domains, columns, tell, own)
    assert source.labels is not None, "read_domains returns a labelled source"
    return FitData(
        source=source.X,
        labels=source.labels,
        target=target.X,
        ids=target.ids,
        inputs={"source": _table_record(source, tell), "target": _table_record(target, tell)}
        if team.is_first
        else _names_only(request),
        columns=_column_record(columns),
        feature_names=source.feature_names or target.feature_names,
        summary=_summary(len(source), len(source.class_counts()), *target.X.shape),
        source_ids=source.ids,
    )


def load_images(
    request: FitRequest,
    progress: CountingProgress | None = None,
    scratch: Path | None = None,
    team: Team = ALONE,
) -> FitData:
    """List two sets of images and turn them into features; broken images are left out."""
    from opensetda.backbones.cache import FeatureCache
    from opensetda.backbones.extraction import extract
    from opensetda.backbones.registry import DEFAULT_BACKBONE, resolve

    options, columns = request.images, image_columns(request.tables)
    source, target = read_image_domains(near(request.source), near(request.target), columns)
    folder = None if options.cache is None else Path(options.cache)
    recipe = resolve(options.backbone or DEFAULT_BACKBONE, options.weights, options.size, folder)
    ids = [*source.ids.tolist(), *target.ids.tolist()]
    paths = [*source.paths, *target.paths]
    with ExitStack() as stack:
        cache = None
        if folder is not None:
            cache = stack.enter_context(FeatureCache(folder, recipe.key, recipe.width))
        extraction = extract(recipe, ids, paths, cache, progress, scratch=scratch, team=team)
    if options.strict and extraction.broken:
        first = extraction.broken[0]
        raise InputError(
            f"{first.path}: {first.reason} ({len(extraction.broken)} broken images in all); "
            "repair or remove it, or leave out --strict"
        )
    kept, broken = _kept(source, target, extraction), extraction.broken
    n_source = len(kept[0])
    features = extraction.X
    assert kept[0].labels is not None, "read_image_domains returns a labelled source"
    return FitData(
        source=features[:n_source],
        labels=kept[0].labels,
        target=features[n_source:],
        ids=kept[1].ids,
        inputs={
            "source": _image_record(kept[0], features[:n_source]),
            "target": _image_record(kept[1], features[n_source:]),
        }
        if team.is_first
        else _names_only(request),
        columns={"label": request.tables.label, "id": IMAGE_ID, "path": request.tables.path},
        feature_names=None,
        summary=(
            f"source: {len(kept[0]):,} images of {len(kept[0].class_counts())} classes, "
            f"target: {len(kept[1]):,} images, {recipe.width:,} features of {recipe.backbone} "
            f"({extraction.n_cached:,} from the cache, {extraction.seconds:.1f} s)"
        ),
        noun="image",
        recipe=recipe,
        image_paths=(*kept[0].paths, *kept[1].paths),
        # Absolute: the list of broken images may be read from another folder.
        broken=[replace(image, path=str(Path(image.path).absolute())) for image in broken],
        notes=(*kept[0].notes, *kept[1].notes),
        warnings=tuple(extraction.warnings),
        source_ids=kept[0].ids,
    )


def _kept(
    source: ImageList, target: ImageList, extraction: Extraction
) -> tuple[ImageList, ImageList]:
    """Leave out images that could not be read; an `InputError` if a class has no image left."""
    rows = extraction.rows
    kept = source.select(rows[rows < len(source)])
    left = target.select(rows[rows >= len(source)] - len(source))
    for images, before in ((kept, source), (left, target)):
        if not len(images):
            first = next(b for b in extraction.broken if b.path in set(before.paths))
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


def _table_record(table: FeatureTable, progress: Callable[[int], None]) -> dict[str, Any]:
    files = table_files(table.path)
    whole = file_record(files[0], progress)
    if files != [table.path]:
        # A folder of parts: their names and contents, in order.
        parts = [whole, *(file_record(file, progress) for file in files[1:])]
        names = [f"{file.name} {part['sha256']}" for file, part in zip(files, parts, strict=True)]
        whole = {
            "path": str(table.path.resolve()),
            "bytes": sum(part["bytes"] for part in parts),
            "sha256": hashlib.sha256(
                "\n".join(names).encode("utf-8", "surrogateescape")
            ).hexdigest(),
        }
    record = {**whole, "rows": len(table), "features": table.X.shape[1]}
    if table.labels is not None:
        record["classes"] = table.class_counts()
    return record


def _names_only(request: FitRequest) -> dict[str, Any]:
    """Return the record of the inputs in a process that does not write the run folder."""
    return {"source": {"path": request.source}, "target": {"path": request.target}}


def _image_record(images: ImageList, features: npt.NDArray[np.float32]) -> dict[str, Any]:
    # Names, labels and features: another image gives another feature.
    digest = hashlib.sha256("\n".join(images.ids.tolist()).encode("utf-8", "surrogateescape"))
    if images.labels is not None:
        digest.update("\n".join(images.labels.tolist()).encode("utf-8", "surrogateescape"))
    for _, chunk in row_chunks(features, range(len(features)), _HASHED_ROWS):
        digest.update(np.ascontiguousarray(chunk).data)
    record = {
        "path": str(images.origin.resolve()),
        "images": len(images),
        "sha256": digest.hexdigest(),
    }
    if images.labels is not None:
        record["classes"] = images.class_counts()
    return record
