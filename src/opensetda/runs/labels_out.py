"""The labels of a run for other programs: COCO-style JSON, and FiftyOne."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from opensetda.runs.folder import RunFolder
from opensetda.runs.predictions import PredictionTable
from opensetda.system.files import check_new_file, new_file, write_json


def write_labels(
    run: str | Path | PredictionTable,
    out: str | Path,
    style: Literal["coco", "fiftyone"] = "coco",
    overwrite: bool = False,
) -> Path:
    """Write labels and their probabilities as JSON, and return its path.

    Parameters
    ----------
    run : str, Path or PredictionTable
        A run, for the labels of its target, or what `predict` returned.
    out : str or Path
        The ``.json`` file to make.
    style : {"coco", "fiftyone"}
        COCO's images, categories and annotations, the latter with `score` and without boxes; or
        the labels of ``fiftyone.types.FiftyOneImageClassificationDataset``.
    overwrite : bool
        Replace an existing file.
    """
    place = Path(out)
    check_new_file("out", place, (".json",), overwrite)
    table = run if isinstance(run, PredictionTable) else RunFolder.open(run).predictions()
    content = _coco(table) if style == "coco" else _fiftyone(table)
    with new_file(place) as aside:
        write_json(aside, content)
    return place


def _coco(table: PredictionTable) -> dict[str, Any]:
    names = [*table.classes, table.unknown_label]
    numbers = range(1, len(table) + 1)
    found = zip(numbers, table.columns_of(table.labels), table.confidence.tolist(), strict=True)
    return {
        "images": [
            {"id": number, "file_name": name}
            for number, name in zip(numbers, table.ids.tolist(), strict=True)
        ],
        "categories": [{"id": number, "name": name} for number, name in enumerate(names, start=1)],
        "annotations": [
            {"id": number, "image_id": number, "category_id": column + 1, "score": score}
            for number, column, score in found
        ],
    }


def _fiftyone(table: PredictionTable) -> dict[str, Any]:
    # FiftyOne names samples by their path without the suffix.
    names = [Path(name).with_suffix("").as_posix() for name in table.ids.tolist()]
    return {
        "classes": [*table.classes, table.unknown_label],
        "labels": dict(zip(names, table.columns_of(table.labels), strict=True)),
    }
