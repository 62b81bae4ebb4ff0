"""Feature tables: one row per sample, read from arrays or from tables with columns.

Problems of a file are found here, before anything is trained. Rows are counted from 1 in every
message. Target labels are dropped here: `read_domains` never returns them, whatever the file
holds. Only `read_truth`, for evaluation, reads them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.data.names import label_problem
from opensetda.data.tables import mapped
from opensetda.data.tables.formats import ColumnTable, TableFile, find_name, open_table
from opensetda.data.tables.mapped import Labels, Matrix, TextColumn
from opensetda.data.tables.preparation import ColumnPlan, feature_columns, prepare, prepare_later
from opensetda.data.tables.preparation import TableColumns as TableColumns
from opensetda.errors import InputError

Readable = str | Path | TableFile

_TRUTH = "write the true class, or the word for unknown"


@dataclass(frozen=True)
class FeatureTable:
    """Samples as rows of features.

    `X` is finite: float32 in memory, or a read-only `numpy.memmap` of any number type. Only sources
    have `labels`, only columns names; `plan` is what was done with them, `notes` are warnings.
    """

    X: Matrix
    labels: Labels | None
    ids: Labels | TextColumn | None
    feature_names: tuple[str, ...] | None
    path: Path
    plan: ColumnPlan = field(default_factory=ColumnPlan)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.X)

    def class_counts(self) -> dict[str, int]:
        """Return the number of rows per class; empty without labels."""
        return count_classes(self.labels)


@dataclass(frozen=True)
class TruthTable:
    """True labels of a target, "" where not known, and perhaps ids: for evaluation only."""

    labels: Labels
    ids: Labels | None
    path: Path


def read_domains(
    source: Readable,
    target: Readable,
    columns: TableColumns | None = None,
    scratch: Path | None = None,
) -> tuple[FeatureTable, FeatureTable]:
    """Read labelled rows of at least two classes, and rows to be labelled.

    The target has the features of the source, in the order of the source, and no labels. Large
    Parquet tables and compressed arrays are unpacked in the folder `scratch`, None for the
    system's temporary folder, to files that are removed with the last use of the tables.
    """
    columns = columns or TableColumns()
    tables = _open(source, columns, scratch), _open(target, columns, scratch)
    of_source, of_target = tables
    is_other = bool(of_source.names) and columns.label not in of_source.names
    if is_other and columns.label in of_target.names:
        raise InputError(
            f"{of_source.path}: no {columns.label!r}, but {of_target.path} has it: the labelled "
            "table is the source; give it first"
        )
    if isinstance(of_source, ColumnTable) and isinstance(of_target, ColumnTable):
        of_target = of_target.in_case_of(of_source.names)
    tables = of_source, of_target
    columns = _divided(tables, columns)
    plan = ColumnPlan()
    notes = tuple[str, ...]()
    if not isinstance(of_source, ColumnTable) or not isinstance(of_target, ColumnTable):
        find_name(of_source, columns.label, "--label-column")
        X, of_X = _features(of_source, columns)
        Z, of_Z = _features(of_target, columns, (X.shape[1], str(of_source.path)))
    else:
        (X, Z), of_X, plan, notes = prepare(of_source, of_target, columns)
        notes = (*of_source.notes, *of_target.notes, *notes)
        of_Z = of_X
    cells = of_source.labels(columns.label)
    _check_length(of_source, cells, columns.label, X)
    advice = "label the row or remove it"
    mapped.check_cells(cells, of_source.path, columns.label, advice, label_problem)
    labels = mapped.fixed_width(cells, of_source.path, columns.label)
    if len(classes := np.unique(labels)) < 2:
        problem = f"one class only ({str(classes[0])!r} in {columns.label!r})"
        raise InputError(f"{of_source.path}: {problem}; give labelled rows of at least two classes")
    return (
        FeatureTable(X, labels, None, of_X, of_source.path, plan, notes),
        FeatureTable(Z, None, _ids(of_target, columns, Z), of_Z, of_target.path, plan),
    )


def read_samples(
    path: Readable,
    width: int,
    feature_names: Sequence[str] | None = None,
    columns: TableColumns | None = None,
    usual_id: str | None = None,
    scratch: Path | None = None,
    plan: ColumnPlan | None = None,
) -> FeatureTable:
    """Read later samples for a fitted model.

    Columns are taken by the names of the model's features, if it has any, and as the `plan` of
    `fit` says. Without an id in `columns`, `usual_id` is used if there.
    """
    columns = columns or TableColumns()
    plan = plan or ColumnPlan()
    asked = replace(columns, id=columns.id or usual_id, one_hot=tuple(plan.categories))
    table = _open(path, asked, scratch)
    if asked.id in table.names:
        columns = asked
    names: tuple[str, ...] | None
    if feature_names is not None and isinstance(table, ColumnTable):
        names = tuple(feature_names)
        table = table.in_case_of([*names, *plan.categories])
        X = prepare_later(table, names, plan)
    else:
        X, names = _features(table, columns, (width, "the model"))
    notes = table.notes if isinstance(table, ColumnTable) else ()
    return FeatureTable(X, None, _ids(table, columns, X), names, table.path, notes=notes)


def read_truth(
    path: Readable, columns: TableColumns | None = None, partial: bool = False
) -> TruthTable:
    """Read true labels for evaluation, some of which may be empty if `partial`; no features."""
    columns = columns or TableColumns()
    table = _open(path, columns)
    name = find_name(table, columns.label, "--label-column")
    cells = table.labels(name)
    mapped.check_cells(cells, table.path, name, None if partial else _TRUTH, label_problem)
    if not any(names := [label or "" for label in cells.tolist()]):
        raise InputError(f"{table.path}: no label in {name!r}; {_TRUTH} of some samples")
    labels = mapped.fixed_width(names, table.path, name)
    ids = _ids(table, columns, labels)
    return TruthTable(labels, None if ids is None else np.asarray(ids), table.path)


def count_classes(labels: Labels | None) -> dict[str, int]:
    """Return the number of labels per class."""
    names, counts = np.unique([] if labels is None else labels, return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def _open(path: Readable, columns: TableColumns, scratch: Path | None = None) -> TableFile:
    # Whether a category is 007 or 7 must not depend on the other rows.
    categories = [n for names in columns.one_hot for n in (names, *re.split(", *", names))]
    text = filter(None, (columns.label, columns.id, *categories))
    table = open_table(Path(path), text, scratch) if isinstance(path, str | Path) else path
    if isinstance(table, ColumnTable) and not len(table):
        raise InputError(f"{table.path}: the table is empty; give at least one row")
    return table


def _divided(tables: Sequence[TableFile], columns: TableColumns) -> TableColumns:
    """Return the columns with their lists of names divided, after checking that they are there."""
    if columns.impute not in ("none", "median"):
        raise InputError(f"--impute {columns.impute}: choose one of none, median")
    with_columns = [table for table in tables if isinstance(table, ColumnTable)]
    there = {name for table in with_columns for name in table.names}
    divided: dict[str, Any] = {}
    for option in ("drop", "keep", "one_hot"):
        # "a,b" are two names, unless a column has this one.
        parts = ([n] if n in there else re.split(", *", n) for n in getattr(columns, option))
        divided[option] = tuple(dict.fromkeys(name for some in parts for name in some))
        for name in sorted({*divided[option]} - there):
            flag = f"--{option.replace('_', '-')}"
            if with_columns:
                find_name(with_columns[0], name, flag)
            raise InputError(f"{flag} {name}: {tables[0].path} has arrays, not columns")
    return replace(columns, **divided)


def _features(
    table: TableFile, columns: TableColumns, expected: tuple[int, str] | None = None
) -> tuple[Matrix, tuple[str, ...] | None]:
    """Read features and their names; `expected` is their number, and what has it."""
    names = None
    if isinstance(table, ColumnTable):
        names = feature_columns(table, columns)
        X = table.features(names)
    else:
        name = find_name(table, columns.features, "--features-key") if table.names else ""
        X = table.features(name)
    if expected is not None and X.shape[1] != expected[0]:
        counts = f"{X.shape[1]} features, but {expected[1]} has {expected[0]}"
        raise InputError(f"{table.path}: {counts}; take both from the same feature extractor")
    return X, names


def _ids(
    table: TableFile, columns: TableColumns, rows: Matrix | Labels
) -> Labels | TextColumn | None:
    """Return unique names of the samples; None without a column of them."""
    if columns.id is None:
        return None
    name = find_name(table, columns.id, "--id-column")
    cells = table.text(name)
    _check_length(table, cells, name, rows)
    mapped.check_cells(cells, table.path, name, "name the row or leave --id-column out")
    places: dict[str, int] = {}
    for row, text in enumerate(cells.tolist()):
        if (first := places.setdefault(text, row)) != row:
            problem = f"the id {text!r} is there twice; every row needs its own"
            raise InputError(f"{table.path}: {name!r}, rows {first + 1} and {row + 1}: {problem}")
    # Of many rows, the longest name must not set the memory of all.
    return cells if isinstance(rows, np.memmap) else mapped.fixed_width(cells, table.path, name)


def _check_length(table: TableFile, cells: TextColumn, name: str, rows: Matrix) -> None:
    if len(cells) != len(rows):
        counts = f"{len(cells)} entries in {name!r} for {len(rows)} rows of features"
        raise InputError(f"{table.path}: {counts}; give one for each")
