"""Files of `osda predict`, read again: the labels of later samples, for evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from opensetda.data.names import shown
from opensetda.data.reading import check_path, no_such
from opensetda.errors import InputError
from opensetda.runs.checked import CheckedTable
from opensetda.runs.folder import RunFolder
from opensetda.runs.predictions import CLASS_PREFIX, PredictionTable, row_numbers
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
        make = CheckedTable if path.suffix.lower() == ".parquet" else CheckedTable.of_csv
        table = make(stream, path, advice=_AGAIN)
    for name in _NEEDED:
        if name not in table.names:
            raise InputError(f"{path}: no column {name!r}; give a run or a file of 'osda predict'")
    if run is None:
        classes, unknown = _names_of(table)
    else:
        classes, unknown = run.settings["classes"], run.unknown_label
    found = replace(PredictionTable.of_table(table, classes), unknown_label=unknown)
    _check(found, classes, path, run)
    return labelled_of(found, path, {} if run is None else run.settings["columns"])


def labelled_of(
    table: PredictionTable,
    where: Path = Path("the predictions"),
    columns: Mapping[str, Any] = MappingProxyType({}),
) -> Labelled:
    """Return labels of later samples that `predict` returned."""
    has_ids = table.ids.tolist() != row_numbers(len(table)).tolist()
    return Labelled(where, table, {}, columns, has_ids)


def _names_of(table: CheckedTable) -> tuple[list[str], str]:
    """Return the known classes and the unknown label, by the columns of a file."""
    by_column = [
        name.removeprefix(CLASS_PREFIX) for name in table.names if name.startswith(CLASS_PREFIX)
    ]
    if by_column:
        others = sorted({*table.text("label").tolist()} - {*by_column})
        return by_column, others[0] if others else "unknown"
    raise InputError(
        f"{table.path}: names only the likeliest classes of each sample; "
        "give the run that labelled them with --run"
    )


def _check(
    found: PredictionTable, classes: Sequence[str], path: Path, run: RunFolder | None
) -> None:
    of_run = "the run" if run is None else str(run.path)
    if found.classes != tuple(classes):
        raise InputError(
            f"{path}: its classes are not those of {of_run}; give the run that made it"
        )
    for labels, allowed in (
        (found.labels, {*classes, found.unknown_label}),
        (found.nearest, {*classes}),
    ):
        if strange := {*np.unique(labels).tolist()} - allowed:
            raise InputError(
                f"{path}: the label {shown(min(strange))} is not a class of {of_run}; {_AGAIN}"
            )
