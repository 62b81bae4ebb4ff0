"""Samples read as the `fit` of a run read its own, and what it kept: the data of `adapt`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.backbones.extraction import FeatureCache, extract
from opensetda.data.images.loading import ImageColumns, is_image_data, read_images
from opensetda.data.tables.formats import ColumnTable, frame_table, is_frame
from opensetda.data.tables.loading import FeatureTable, TableColumns, read_samples
from opensetda.errors import InputError
from opensetda.progress import RunListener
from opensetda.runs.folder import RunFolder
from opensetda.runs.kept import Kept
from opensetda.runs.options import ARRAY, FitRequest, TableOptions
from opensetda.system.files import in_shell, near
from opensetda.usecases.corrections import marked_targets
from opensetda.usecases.fit_request import is_source_free
from opensetda.usecases.keeping import kept_source
from opensetda.usecases.read_domains import (
    FitData,
    GivenArrays,
    fit_data,
    image_columns,
    none_readable,
)


def manifest_columns(folder: RunFolder, options: TableOptions) -> ImageColumns:
    """Return the columns of lists and manifests, by default as in `fit`."""
    return replace(image_columns(options), path=options.path or folder.column("path"))


def read_rows(
    folder: RunFolder, samples: Any, scratch: Path | None, options: TableOptions | None = None
) -> FeatureTable:
    """Return rows and ids of a table, which may be stored in files, or of an array."""
    options = options or TableOptions()
    samples = samples[0] if isinstance(samples, list | tuple) and len(samples) == 1 else samples
    width = int(folder.model().n_features_in_)
    if not isinstance(samples, str | Path | ColumnTable) and not is_frame(samples):
        return read_samples(GivenArrays("samples", X=samples), width)
    table = frame_table(samples, "samples") if is_frame(samples) else samples
    key = options.features
    names = TableColumns(
        label=folder.column("label") or "y",
        id=options.id,
        features=key if key != TableOptions.features else folder.column("features") or key,
        drop=options.drop or tuple(folder.column("drop") or ()),
    )
    return read_samples(
        table,
        width,
        feature_names=folder.feature_names(),
        columns=names,
        usual_id=folder.column("id"),
        scratch=scratch,
        plan=folder.column_plan(),
    )


def load_kept(
    request: FitRequest, listener: RunListener, scratch: Path, target: Any = None
) -> FitData:
    """Read the source that a run kept, and a new target; `target` are rows that no file holds."""
    run = RunFolder.open(near(request.source))
    source_free = is_source_free(request.method, request.preset, request.settings)
    kept = with_marks(run, kept_source(run, source_free), listener)
    rows, y = kept.source(request.seed)
    labels = np.array(kept.classes)[y]
    source = FeatureTable(rows, labels, None, run.feature_names(), run.path)
    if run.has_images:
        data = _images(run, source, request, listener, scratch)
    else:
        path = near(request.target) if request.target != ARRAY else target
        if isinstance(path, Path) and is_image_data(path, manifest_columns(run, request.tables)):
            fitted = f"{run.path} was fitted to a feature table"
            raise InputError(f"{path}: images, but {fitted}; give a table, or fit to images")
        table = read_rows(run, path, scratch, request.tables)
        data = fit_data(
            request,
            (source, table),
            (rows, table.X),
            columns=run.settings["columns"],
            feature_names=run.feature_names(),
            summary=f"{rows.shape[1]:,} features",
            warnings=(),
        )
    data.inputs["source"]["identity"] = run.settings["identity"]
    how = {
        "rows": "kept",
        "statistics": "drawn from the statistics",
        "none": "(of its target, labelled by its model)",
    }[kept.how]
    note = f"source: {len(rows):,} rows {how} of {near(run.path)}, {kept.n_marked:,} of them marked"
    return replace(data, notes=(*data.notes, note), base=run, kept=kept, n_marked=kept.n_marked)


def with_marks(run: RunFolder, kept: Kept, listener: RunListener) -> Kept:
    """Add the targets of the run that a person gave a class: those whose rows were kept."""
    told, places = marked_targets(run, kept.target_rows)
    # A run that followed these marks, or earlier ones, has kept their rows already.
    kept = kept.without(kept.target[places])
    names = [name for name in told if name != run.unknown_label]
    if not names:
        return kept
    places = places[np.array(told) != run.unknown_label]
    classes = np.unique([*kept.classes, *names])
    moved = np.searchsorted(classes, np.array(kept.classes))
    new = np.searchsorted(classes, np.array(names))
    listener.note(f"marks of {in_shell(run.path)}: {len(names):,} join the labelled rows")
    return kept.joined(kept.target[places], moved, new, tuple(classes.tolist()))


def _images(
    run: RunFolder,
    source: FeatureTable,
    request: FitRequest,
    listener: RunListener,
    scratch: Path,
) -> FitData:
    """List the images of the target, and turn them into features with the backbone of the run."""
    columns = manifest_columns(run, request.tables)
    path = near(request.target)
    if request.target == ARRAY or not is_image_data(path, columns):
        name = "the target" if request.target == ARRAY else path
        raise InputError(f"{name}: no images, but {run.path} was fitted to images; give images")
    listed = read_images(path, columns)
    recipe = run.recipe()
    state = run.backbone_state()
    cache = None
    if request.images.cache is not None and state is None:
        cache = FeatureCache(Path(request.images.cache), recipe.key, recipe.width)
    with listener.counting("features") as progress:
        ids = listed.ids.tolist()
        found = extract(recipe, ids, listed.paths, cache, progress, scratch, state)
    if not len(found.rows):
        raise none_readable(listed.origin, len(listed), found.broken[0])
    if request.images.strict and found.broken:
        first = found.broken[0]
        advice = "repair or remove it, or leave out --strict"
        raise InputError(f"{first.path}: {first.reason}; {advice}")
    target = listed.select(found.rows)
    return fit_data(
        request,
        (source, target),
        (source.X, found.X),
        columns=run.settings["columns"],
        feature_names=None,
        summary=f"{recipe.width:,} features of {recipe.backbone} ({found.n_cached:,} cached)",
        recipe=recipe,
        # Where the images of the kept rows are is not known.
        image_paths=("",) * len(source) + target.paths,
        broken=[replace(one, path=str(Path(one.path).absolute())) for one in found.broken],
        notes=target.notes,
        warnings=found.warnings,
    )
