"""The data of a fit: two feature tables, two sets of images made into features, or arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.backbones.extraction import Broken, Extraction, FeatureCache, extract
from opensetda.backbones.recipe import Recipe
from opensetda.backbones.registry import DEFAULT_BACKBONE, resolve
from opensetda.data.images.loading import (
    ImageColumns,
    ImageList,
    is_image_data,
    read_image_domains,
    two_kinds,
)
from opensetda.data.names import formula_warning, printable, twins
from opensetda.data.neighbours import is_dataset, rows_of
from opensetda.data.tables import mapped
from opensetda.data.tables.formats import frame_table, is_frame
from opensetda.data.tables.loading import FeatureTable, TableColumns, read_domains
from opensetda.data.tables.preparation import ColumnsError
from opensetda.errors import InputError
from opensetda.progress import CountingProgress, RunListener
from opensetda.rows import row_chunks
from opensetda.runs.folder import BROKEN, RunFolder, predictions_name
from opensetda.runs.kept import Kept
from opensetda.runs.options import ARRAY, FitRequest, ImageOptions, TableOptions, declared
from opensetda.runs.pictures import broken_warning
from opensetda.runs.predictions import IMAGE_ID, row_numbers
from opensetda.system.files import file_record, near

Domains = tuple[FeatureTable, FeatureTable]

_CHUNK = 4096
# Fields of the options, by what they are for.
_FOR_TABLES = ("id", "drop", "keep", "one_hot", "impute", "features")
_FOR_IMAGES = (
    "backbone",
    "weights",
    "size",
    "strict",
    "finetune",
    "prompts",
    "unknown_prompts",
    "root",
)


@dataclass(frozen=True)
class FitData:
    """Source and target as rows, with what the run folder records of them.

    The arrays may be memory maps of any type of number. `inputs` are path, size and SHA-256 of
    both domains; `image_paths` are the files of the source, then of the target.
    """

    source: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    target: npt.NDArray[Any]
    ids: Any | None
    inputs: dict[str, Any]
    columns: dict[str, Any]
    feature_names: tuple[str, ...] | None
    summary: str
    recipe: Recipe | None = None
    image_paths: tuple[str, ...] = ()
    broken: list[Broken] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    source_ids: Any | None = None
    n_marked: int = 0
    """The last rows of the source are so many targets that a person gave a class."""
    base: RunFolder | None = None
    """The run that is adapted, and what it kept; the source is of it."""
    kept: Kept | None = None

    @property
    def noun(self) -> str:
        """What a sample is called."""
        return "row" if self.recipe is None else "image"

    @property
    def target_names(self) -> Any:
        """The ids of the targets, or their row numbers."""
        return row_numbers(len(self.target)) if self.ids is None else self.ids


def image_columns(options: TableOptions) -> ImageColumns:
    """Return the columns of lists and manifests."""
    root = None if options.root is None else Path(options.root)
    return ImageColumns(path=options.path, label=options.label, root=root)


def load(
    request: FitRequest, listener: RunListener, scratch: Path, arrays: Domains | None = None
) -> FitData:
    """Read source and target, unless they are `arrays`; `scratch` is a folder for large data."""
    if arrays is None and is_image_request(request):
        with listener.counting("features") as progress:
            return load_images(request, progress, scratch)
    return load_tables(request, scratch, arrays)


def is_image_request(request: FitRequest) -> bool:
    """Whether source and target are images; an `InputError` at an option for the other kind."""
    source = near(request.source)
    target = near(request.target)
    columns = image_columns(request.tables)
    is_image = is_image_data(source, columns)
    if is_image != is_image_data(target, columns):
        raise two_kinds(source, target) if is_image else two_kinds(target, source)
    for given in (request.tables, request.images):
        for name, (_, option) in declared(type(given)).items():
            is_wrong = name in (_FOR_TABLES if is_image else _FOR_IMAGES)
            if is_wrong and getattr(given, name) != getattr(type(given)(), name):
                problem = f"{source} is a feature table; this option is for images"
                if is_image:
                    problem = f"{source} is images; this option is for tables or lists"
                raise InputError(f"{option.flag.split()[0]}: {problem}")
    return is_image


def load_tables(
    request: FitRequest, scratch: Path | None = None, arrays: Domains | None = None
) -> FitData:
    """Read two feature tables, unless they are `arrays`."""
    columns = table_columns(request.tables)
    try:
        source, target = arrays or read_domains(
            near(request.source), near(request.target), columns, scratch=scratch
        )
    except ColumnsError as error:
        command = list(request.command)
        if "--label-column" in error.options and "--label-column" in command:
            at = command.index("--label-column")  # with the wrong name
            del command[at : at + 2]
        raise ColumnsError(error.problems, error.options, command) from None
    return fit_data(
        request,
        (source, target),
        (source.X, target.X),
        columns=asdict(columns) | asdict(source.plan),
        feature_names=source.feature_names or target.feature_names,
        summary=f"{target.X.shape[1]:,} features",
        warnings=source.notes,
    )


def load_images(
    request: FitRequest, progress: CountingProgress, scratch: Path | None = None
) -> FitData:
    """List two sets of images and turn them into features; broken images are left out."""
    columns = image_columns(request.tables)
    listed = read_image_domains(near(request.source), near(request.target), columns)
    recipe, extraction = features_of(listed, request.images, progress, scratch)
    rows = extraction.rows
    n_source = len(listed[0])
    source = listed[0].select(rows[rows < n_source])
    target = listed[1].select(rows[rows >= n_source] - n_source)
    if not len(target):
        first = extraction.broken[-len(listed[1])]  # The broken ones are in this order, too.
        raise none_readable(target.origin, len(listed[1]), first)
    if lost := sorted(listed[0].class_counts().keys() - source.class_counts().keys()):
        problem = f"no image of the class {lost[0]!r} can be read"
        raise InputError(f"{source.origin}: {problem}; repair or remove its folder")
    return fit_data(
        request,
        (source, target),
        (extraction.X[: len(source)], extraction.X[len(source) :]),
        columns={"label": request.tables.label, "id": IMAGE_ID, "path": request.tables.path},
        feature_names=None,
        summary=(
            f"{recipe.width:,} features of {recipe.backbone} "
            f"({extraction.n_cached:,} from the cache, {extraction.seconds:.1f} s)"
        ),
        recipe=recipe,
        image_paths=(*source.paths, *target.paths),
        # Absolute: the list of broken images may be read from another folder.
        broken=[replace(b, path=str(Path(b.path).absolute())) for b in extraction.broken],
        notes=(*source.notes, *target.notes),
        warnings=extraction.warnings,
    )


def fit_data(
    request: FitRequest,
    domains: tuple[Any, Any],
    rows: tuple[npt.NDArray[Any], npt.NDArray[Any]],
    *,
    summary: str,
    warnings: Iterable[str],
    **more: Any,
) -> FitData:
    """Return both domains, with a record of each: of a table's file, or else of the content."""
    source, target = domains
    assert source.labels is not None, "the readers return a labelled source"
    classes = source.class_counts()
    noun = "image" if isinstance(target, ImageList) else "row"
    inputs: dict[str, Any] = {}
    for name, samples, X in zip(("source", "target"), domains, rows, strict=True):
        path = getattr(request, name)
        if noun == "row" and path != ARRAY and Path(path).is_file():
            record = file_record(Path(path))
        else:
            # Another image gives another feature.
            ids = samples.ids if isinstance(samples, ImageList) else None
            record = {"path": path, "sha256": content_digest(X, ids, samples.labels)}
        inputs[name] = {**record, f"{noun}s": len(X), "features": X.shape[1]}
    inputs["source"]["classes"] = classes
    return FitData(
        source=rows[0],
        labels=source.labels,
        target=rows[1],
        ids=target.ids,
        source_ids=source.ids,
        inputs=inputs,
        summary=(
            f"source: {len(source):,} {noun}s of {len(classes)} classes, "
            f"target: {len(target):,} {noun}{'s' * (len(target) != 1)}, {summary}"
        ),
        warnings=(*warnings, *twins(classes)),
        **more,
    )


def image_recipe(options: ImageOptions) -> Recipe:
    """Return how images become features."""
    name = options.backbone or DEFAULT_BACKBONE
    views = options.views or 1
    return resolve(name, options.weights, options.size, views)


def features_of(
    lists: Sequence[ImageList],
    options: ImageOptions,
    progress: CountingProgress,
    scratch: Path | None = None,
) -> tuple[Recipe, Extraction]:
    """Turn images into features; an `InputError` at a broken one if `options` are strict."""
    recipe = image_recipe(options)
    if options.finetune:
        # The views are computed anew, as the backbone is trained.
        recipe = replace(recipe, views=1)
    ids = [name for images in lists for name in images.ids.tolist()]
    paths = [path for images in lists for path in images.paths]
    folder = options.cache and FeatureCache(Path(options.cache), recipe.key, recipe.width)
    with folder or nullcontext() as cache:
        extraction = extract(recipe, ids, paths, cache, progress, scratch=scratch)
    if options.strict and extraction.broken:
        first = extraction.broken[0]
        advice = "repair or remove it, or leave out --strict"
        raise InputError(f"{first.path}: {first.reason}; {advice}")
    return recipe, extraction


def none_readable(where: Path, count: int, first: Broken) -> InputError:
    """Return the error for images of which none can be read."""
    reason = f"the first is {printable(first.id)} ({first.reason})"
    return InputError(f"{where}: none of its {count:,} images can be read; {reason}")


def spreadsheet_warnings(run: Path, data: FitData, classes: npt.NDArray[Any]) -> list[str]:
    """Return warnings about cells in the tables of a run that start a formula."""
    ids = [] if data.ids is None else data.ids.tolist()
    path = run / predictions_name(len(data.target))
    of_labels = formula_warning(path, chain(ids, map(str, classes.tolist())))
    return of_labels + broken_warning(run / BROKEN, data.broken)


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


class GivenArrays(mapped.Arrays):
    """Arrays of a caller, checked like those of a file; errors begin with `name`."""

    def __init__(self, name: str, **arrays: Any) -> None:
        self.path = Path(name)
        self.names = tuple(arrays)
        self._arrays = {key: np.asanyarray(values) for key, values in arrays.items()}

    def _array(self, name: str) -> tuple[npt.NDArray[Any], str]:
        array = self._arrays[name]
        return array if isinstance(array, np.memmap) else np.ascontiguousarray(array), repr(name)


def domain_tables(source: Any, target: Any, options: TableOptions | None = None) -> Domains:
    """Check what a caller gave, or raise an `InputError` that names the array and the row."""
    label = None if options is None else options.label
    source = rows_of(source, "source", label) if is_dataset(source) else source
    target = rows_of(target, "target", label) if is_dataset(target) else target
    target = target[0] if isinstance(target, tuple) else target
    source, labels = source if isinstance(source, tuple) else (source, None)
    columns = table_columns(options or TableOptions())
    if is_frame(source) and is_frame(target):
        own = None if labels is None else (columns.label, GivenArrays("source", y=labels).text("y"))
        return read_domains(
            frame_table(source, "source", own), frame_table(target, "target"), columns
        )
    if columns != TableColumns():
        raise InputError("tables: for files and DataFrames; source and target are arrays")
    if labels is None:
        raise InputError("source: labels are missing; give (X, y)")
    return read_domains(GivenArrays("source", X=source, y=labels), GivenArrays("target", X=target))


def table_columns(options: TableOptions) -> TableColumns:
    """Return the columns of feature tables."""
    more = {name: getattr(options, name) for name in ("drop", "keep", "one_hot", "impute")}
    return TableColumns(options.label or "y", options.id, options.features, **more)
