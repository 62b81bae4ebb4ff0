"""Files of `osda predict`, read again: the labels of later samples, for evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from opensetda.data.names import shown
from opensetda.data.reading import check_path, no_such
from opensetda.errors import InputError
from opensetda.runs.checked import CheckedTable
from opensetda.runs.folder import RunFolder
from opensetda.runs.predictions import PredictionTable, row_numbers
from opensetda.runs.true_labels import Labelled
from opensetda.system.files import open_regular

SUFFIXES = (".csv", ".parquet")
_AGAIN = "write it again with 'osda predict'"
_NEEDED = ("label", "p_unknown", "known_score", "nearest_class")


def read_label_file(path: Path, run: RunFolder | None = None) -> Labelled:
    """Read a file of `predict`, whose classes are those of the run, or of its columns."""
    check_path(path)
    if not path.exists():
        raise no_such(path, lambda name: name.lower().endswith(SUFFIXES))
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"{path}: neither a run folder nor a .csv or .parquet file of 'osda predict'; give one"
        )
    with open_regular(path) as stream:
        table = CheckedTable(stream, path, advice=_AGAIN)
    for name in _NEEDED:
        if name not in table.names:
            raise InputError(f"{path}: no column {name!r}; give a run or a file of 'osda predict'")
    found = PredictionTable.of_table(table, () if run is None else run.settings["classes"])
    if not found.classes:
        raise InputError(
            f"{path}: names only the likeliest classes of each sample; "
            "give the run that labelled them with --run"
        )
    others = sorted({*found.labels.tolist()} - {*found.classes})
    unknown = run.unknown_label if run is not None else others[0] if others else "unknown"
    of_run = "the run" if run is None else str(run.path)
    if run is not None and found.classes != tuple(run.settings["classes"]):
        raise InputError(
            f"{path}: its classes are not those of {of_run}; give the run that made it"
        )
    if strange := {*others, *found.nearest.tolist()} - {*found.classes, unknown}:
        raise InputError(
            f"{path}: the label {shown(min(strange))} is not a class of {of_run}; {_AGAIN}"
        )
    columns: Mapping[str, Any] = {} if run is None else run.settings["columns"]
    return labelled_of(replace(found, unknown_label=unknown), path, columns)


def labelled_of(
    table: PredictionTable,
    where: Path = Path("the predictions"),
    columns: Mapping[str, Any] = MappingProxyType({}),
) -> Labelled:
    """Return labels of later samples that `predict` returned."""
    has_ids = table.ids.tolist() != row_numbers(len(table)).tolist()
    return Labelled(where, table, {}, columns, has_ids)
