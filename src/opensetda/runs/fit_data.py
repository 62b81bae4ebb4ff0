"""The data of a fit: two feature tables, two sets of images made into features, or arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
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
from opensetda.runs.listening import CountingProgress, RunListener
from opensetda.runs.predictions import IMAGE_ID, row_numbers
from opensetda.runs.request import ARRAY, FitRequest, ImageOptions, TableOptions
from opensetda.system.files import file_record, near

_MEGABYTE = 10**6
_CHUNK = 4096

# Options and their fields, by what they are for.
_FOR_TABLES = {
    **{"--id-column": "id", "--drop": "drop", "--keep": "keep", "--one-hot": "one_hot"},
    **{"--impute": "impute", "--features-key": "features"},
}
_FOR_LISTS = {"--label-column": "label", "--path-column": "path", "--images-root": "root"}
_FOR_IMAGES = {
    **{"--backbone": "backbone", "--weights": "weights", "--image-size": "size"},
    **{"--strict": "strict", "--finetune": "finetune", "--images-root": "root"},
}


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

    @property
    def id_name(self) -> str:
        """The name of the column of the ids."""
        return "id" if self.recipe is None else IMAGE_ID

    @property
    def target_names(self) -> Any:
        """The ids of the targets, or their row numbers."""
        return row_numbers(len(self.target)) if self.ids is None else self.ids


def image_columns(options: TableOptions) -> ImageColumns:
    """Return the columns of lists and manifests."""
    root = None if options.root is None else Path(options.root)
    return ImageColumns(path=options.path, label=options.label, root=root)


def load(
    request: FitRequest,
    listener: RunListener,
    scratch: Path,
    arrays: DomainArrays | None = None,
) -> FitData:
    """Read source and target; `scratch` is a folder for large data."""
    if arrays is not None:
        inputs = {
            name: {"path": ARRAY, **_size(table), "sha256": content_digest(table.X, table.labels)}
            for name, table in arrays._asdict().items()
        }
        return _of_tables(request, *arrays, inputs)
    if is_image_request(request):
        with listener.counting("features") as progress:
            return load_images(request, progress, scratch)
    with listener.counting("reading", "MB") as progress:
        return load_tables(request, progress, scratch)


def is_image_request(request: FitRequest) -> bool:
    """Whether source and target are images; an `InputError` at an option for the other kind."""
    domains = near(request.source), near(request.target)
    kinds = [is_image_data(path, image_columns(request.tables)) for path in domains]
    if kinds[0] != kinds[1]:
        raise two_kinds(*domains[:: 1 if kinds[0] else -1])
    for_tables = _FOR_TABLES
    if all(is_shard(path.name) or path.is_dir() for path in domains):
        # There is no list that has columns or paths.
        for_tables = for_tables | _FOR_LISTS
    given = {**vars(request.tables), **vars(request.images)}
    usual = {**vars(TableOptions()), **vars(ImageOptions())}
    changed = {name for name in given if given[name] != usual[name]}
    wrong = for_tables if kinds[0] else _FOR_IMAGES
    refuse_options((o for o, name in wrong.items() if name in changed), domains[0], kinds[0])
    return kinds[0]


def refuse_options(options: Iterable[str], first: Path, is_images: bool) -> None:
    """Raise an `InputError` at an option for samples of the other kind."""
    what, is_for = "images", "tables or lists"
    if not is_images:
        what = "a feature table"
        is_for = "images (a manifest's further columns need --path-column)"
    for option in options:
        raise InputError(f"{option}: {first} is {what}; this option is for {is_for}")


def load_tables(
    request: FitRequest,
    progress: CountingProgress | None = None,
    scratch: Path | None = None,
) -> FitData:
    """Read two feature tables; `progress` counts megabytes, each twice: read and hashed."""
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
        source, target = read_domains(*domains, table_columns(request.tables), tell, scratch)
    except ColumnsError as error:
        raise error.for_command(request.command) from None
    _check_unknown_label(request, source.class_counts())
    inputs = {"source": _table_record(source, tell), "target": _table_record(target, tell)}
    return _of_tables(request, source, target, inputs)


def _of_tables(
    request: FitRequest, source: FeatureTable, target: FeatureTable, inputs: dict[str, Any]
) -> FitData:
    assert source.labels is not None, "read_domains returns a labelled source"
    classes = source.class_counts()
    return FitData(
        source=source.X,
        labels=source.labels,
        target=target.X,
        ids=target.ids,
        inputs=inputs,
        columns={**asdict(table_columns(request.tables)), **asdict(source.plan)},
        feature_names=source.feature_names or target.feature_names,
        summary=(
            f"source: {len(source):,} rows of {len(classes)} classes, "
            f"target: {len(target):,} rows, {target.X.shape[1]:,} features"
        ),
        warnings=(*source.notes, *twins(classes)),
        source_ids=source.ids,
    )


def _check_unknown_label(request: FitRequest, classes: Collection[str]) -> None:
    """Raise an `InputError` before features are computed, if unknowns are called as a class is."""
    if request.unknown_label in classes:
        raise InputError(
            f"--unknown-label {request.unknown_label!r} is a class of the source "
            f"{near(request.source)}; choose another"
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
    rows = extraction.X[: len(source)], extraction.X[len(source) :]
    assert source.labels is not None, "read_image_domains returns a labelled source"
    classes = source.class_counts()
    return FitData(
        source=rows[0],
        labels=source.labels,
        target=rows[1],
        ids=target.ids,
        inputs={
            "source": {**_image_record(source, rows[0]), "classes": classes},
            "target": _image_record(target, rows[1]),
        },
        columns={"label": request.tables.label, "id": IMAGE_ID, "path": request.tables.path},
        feature_names=None,
        summary=(
            f"source: {len(source):,} images of {len(classes)} classes, "
            f"target: {len(target):,} images, {recipe.width:,} features of {recipe.backbone} "
            f"({extraction.n_cached:,} from the cache, {extraction.seconds:.1f} s)"
        ),
        noun="image",
        recipe=recipe,
        image_paths=(*source.paths, *target.paths),
        # Absolute: the list of broken images may be read from another folder.
        broken=[replace(b, path=str(Path(b.path).absolute())) for b in extraction.broken],
        notes=(*source.notes, *target.notes),
        warnings=(*twins(classes), *extraction.warnings),
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
    recipe = recipe or recipe_of(options)
    ids = [name for images in lists for name in images.ids.tolist()]
    paths = [path for images in lists for path in images.paths]
    folder = options.cache and FeatureCache(Path(options.cache), recipe.key, recipe.width)
    with folder or nullcontext() as cache:
        extraction = extract(recipe, ids, paths, cache, progress, scratch=scratch)
    if options.strict and extraction.broken:
        first = extraction.broken[0]
        raise InputError(
            f"{first.path}: {first.reason} ({len(extraction.broken):,} broken images in all); "
            "repair or remove it, or leave out --strict"
        )
    return recipe, extraction


def none_readable(where: Path, count: int, first: Broken) -> InputError:
    """Return the error for images of which none can be read."""
    return InputError(
        f"{where}: none of its {count:,} images can be read; the first is {first.id} "
        f"({first.reason})"
    )


def _kept(
    source: ImageList, target: ImageList, extraction: Extraction
) -> tuple[ImageList, ImageList]:
    """Leave out images that could not be read; an `InputError` if a class has no image left."""
    rows = extraction.rows
    kept = source.select(rows[rows < len(source)])
    left = target.select(rows[rows >= len(source)] - len(source))
    if not len(left):
        # All of the target are broken, and they come last.
        raise none_readable(target.origin, len(target), extraction.broken[-len(target)])
    if lost := sorted(source.class_counts().keys() - kept.class_counts().keys()):
        raise InputError(
            f"{source.origin}: no image of the class {lost[0]!r} can be read; "
            "repair or remove its folder"
        )
    return kept, left


def content_digest(X: npt.NDArray[Any] | None, *columns: npt.NDArray[Any] | None) -> str:
    """Return the SHA-256 of columns of text, then of rows."""
    digest = hashlib.sha256()
    for names in columns:
        if names is not None:
            digest.update("\n".join(names.tolist()).encode("utf-8", "surrogateescape"))
    if X is not None:
        for _, chunk in row_chunks(X, _CHUNK):
            digest.update(np.ascontiguousarray(chunk).data)
    return digest.hexdigest()


def _table_record(table: FeatureTable, progress: Callable[[int], None]) -> dict[str, Any]:
    parts = [file_record(file, progress) for file in table_files(table.path)]
    record = {**parts[0], "path": str(table.path.resolve())}
    if table.path.is_dir():
        record["bytes"] = sum(part["bytes"] for part in parts)
        names = [f"{Path(part['path']).name} {part['sha256']}" for part in parts]
        record["sha256"] = content_digest(None, np.array(names))
    return record | _size(table)


def _size(table: FeatureTable) -> dict[str, Any]:
    size = {"rows": len(table), "features": table.X.shape[1]}
    return size if table.labels is None else {**size, "classes": table.class_counts()}


def _image_record(images: ImageList, features: npt.NDArray[np.float32]) -> dict[str, Any]:
    # Names, labels and features: another image gives another feature.
    digest = content_digest(features, images.ids, images.labels)
    return {"path": str(images.origin.resolve()), "images": len(images), "sha256": digest}
