"""Feature tables: one row per sample, read from arrays or from tables with columns.

Problems of a file are found here, before anything is trained, and reported in one line. Rows are
counted from 1 in every message. Target labels are dropped here: `read_domains` never returns them,
whatever the file holds. Only `read_truth`, for evaluation, reads them.

Large tables stay in their file, as a memory map; large Parquet tables are first unpacked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from opensetda.data.names import label_problem
from opensetda.data.tables import mapped
from opensetda.data.tables.column_files import ColumnTable
from opensetda.data.tables.column_problems import TableColumns as TableColumns
from opensetda.data.tables.formats import find_name, open_table
from opensetda.data.tables.mapped import Labels, Matrix, TableFile, TextColumn
from opensetda.data.tables.parquet_parts import table_bytes
from opensetda.data.tables.preparation import ColumnPlan, feature_columns, prepare, prepare_later
from opensetda.errors import InputError

Readable = str | Path | ColumnTable

_IMPUTATIONS = ("none", "median")
_NO_LABEL, _NO_ID = "label the row or remove it", "name the row or leave --id-column out"
TRUTH_ADVICE = "write the true class, or the word for unknown"


@dataclass(frozen=True)
class FeatureTable:
    """Samples as rows of features.

    `X` holds finite features: float32 in memory, or a read-only `numpy.memmap` of any number type,
    of which only some rows should be in memory at a time. `labels` are None for everything but a
    source. `ids` are unique. Only columns have names. `plan` is what was done with columns,
    `notes` are warnings about them.
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
    """True labels of a target and perhaps names of its samples, read for evaluation only.

    A label is "" where the truth is not known.
    """

    labels: Labels
    ids: Labels | None
    path: Path


def read_domains(
    source: Readable,
    target: Readable,
    columns: TableColumns | None = None,
    progress: Callable[[int], None] | None = None,
    scratch: Path | None = None,
) -> tuple[FeatureTable, FeatureTable]:
    """Read labelled rows of at least two classes, and rows to be labelled.

    The target has the features of the source, in the order of the source. A label column in the
    target is neither a feature nor returned. `progress` is called with the size of each
    table in bytes when it is read.

    Large Parquet tables and compressed arrays are unpacked in the folder `scratch`, None for the
    system's temporary folder, to files that are removed with the last use of the tables.
    """
    columns = columns or TableColumns()
    tables = _open(source, columns, scratch), _open(target, columns, scratch)
    columns = _divided(tables, columns)
    of_source, of_target = tables
    if isinstance(of_source, ColumnTable) and isinstance(of_target, ColumnTable):
        (X, Z), names, plan, notes = prepare((of_source, of_target), columns)
        both_names: list[tuple[str, ...] | None] = [names, names]
    else:
        find_name(of_source, columns.label, "--label-column")
        X, of_X = _features(of_source, columns)
        Z, of_Z = _features(of_target, columns, (X.shape[1], str(of_source.path)))
        both_names, plan, notes = [of_X, of_Z], ColumnPlan(), ()
    for table in tables:
        # A DataFrame has no file.
        if progress is not None and table.path.exists():
            progress(table_bytes(table.path))
    labels = _text(of_source, columns.label, len(X), _NO_LABEL)
    if len(classes := np.unique(labels)) < 2:
        problem = f"one class only ({str(classes[0])!r} in {columns.label!r})"
        raise InputError(f"{of_source.path}: {problem}; give labelled rows of at least two classes")
    return (
        FeatureTable(X, labels, None, both_names[0], of_source.path, plan, notes),
        FeatureTable(Z, None, _ids(of_target, columns, Z), both_names[1], of_target.path, plan),
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

    If the model has feature names, features are taken by name, as the `plan` of `fit` says, and
    other columns are ignored. Without an id in `columns`, `usual_id` is used if there. `scratch`
    is as in `read_domains`.
    """
    columns = columns or TableColumns()
    asked = columns if columns.id else replace(columns, id=usual_id)
    table = _open(path, asked, scratch)
    if asked.id in table.names:
        columns = asked
    notes: tuple[str, ...] = ()
    if feature_names is not None and isinstance(table, ColumnTable):
        names: tuple[str, ...] | None = tuple(feature_names)
        X, notes = prepare_later(table, tuple(feature_names), plan or ColumnPlan())
    else:
        X, names = _features(table, columns, (width, "the model"))
    return FeatureTable(X, None, _ids(table, columns, X), names, table.path, notes=notes)


def read_truth(
    path: str | Path, columns: TableColumns | None = None, partial: bool = False
) -> TruthTable:
    """Read true labels for evaluation; features, if there are any, are ignored.

    If `partial`, labels may be empty, but not all of them.
    """
    columns = columns or TableColumns()
    table = _open(path, columns)
    name = find_name(table, columns.label, "--label-column")
    if partial:
        labels = labels_with_gaps(table.labels(name), table.path, name)
    else:
        labels = _text(table, name, None, TRUTH_ADVICE)
    ids = _ids(table, columns, labels)
    return TruthTable(labels, None if ids is None else np.asarray(ids), table.path)


def labels_with_gaps(cells: TextColumn, path: Path, column: str) -> Labels:
    """Return true labels, "" where a cell is empty; an `InputError` if all are."""
    mapped.check_cells(cells, path, column, None, label_problem)
    if not any(names := [name or "" for name in cells.tolist()]):
        raise InputError(f"{path}: no label in {column!r}; {TRUTH_ADVICE} of some samples")
    return mapped.fixed_width(names, path, column)


def count_classes(labels: Labels | None) -> dict[str, int]:
    """Return the number of labels per class."""
    names, counts = np.unique([] if labels is None else labels, return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def _open(path: Readable, columns: TableColumns, scratch: Path | None = None) -> TableFile:
    table: TableFile
    if isinstance(path, ColumnTable):
        table = path
    else:
        table = open_table(Path(path), filter(None, (columns.label, columns.id)), scratch)
    if isinstance(table, ColumnTable) and not len(table):
        raise InputError(f"{table.path}: the table is empty; give at least one row")
    return table


def _divided(tables: Sequence[TableFile], columns: TableColumns) -> TableColumns:
    """Return the columns with their lists of names divided, after checking that they are there."""
    if columns.impute not in _IMPUTATIONS:
        raise InputError(f"--impute {columns.impute}: choose one of {', '.join(_IMPUTATIONS)}")
    there = {name for table in tables if table.has_columns for name in table.names}
    divided = {}
    for option in ("drop", "keep", "one_hot"):
        # "a,b" are two names, unless a column has this one.
        parts = ([n] if n in there else re.split(", *", n) for n in getattr(columns, option))
        divided[option] = tuple(dict.fromkeys(name for some in parts for name in some))
        flag = f"--{option.replace('_', '-')}"
        for name in divided[option]:
            if name not in there and tables[0].has_columns:
                find_name(tables[0], name, flag)
            elif name not in there:
                kind = tables[0].path.suffix.lower()
                raise InputError(f"{flag} {name}: an {kind} file has arrays, not columns")
    drop, keep, one_hot = divided.values()
    return replace(columns, drop=drop, keep=keep, one_hot=one_hot)


def _features(
    table: TableFile, columns: TableColumns, expected: tuple[int, str] | None = None
) -> tuple[Matrix, tuple[str, ...] | None]:
    """Read features and their names; `expected` is their number, and what has it."""
    if isinstance(table, ColumnTable):
        names = feature_columns(table, columns)
    else:
        names = (find_name(table, columns.features, "--features-key"),) if table.names else ()
    X = table.features(names)
    if expected is not None and X.shape[1] != expected[0]:
        counts = f"{X.shape[1]} features, but {expected[1]} has {expected[0]}"
        advice = "both must come from the same feature extractor"
        raise InputError(f"{table.path}: {counts}; {advice}")
    return X, names if table.has_columns else None


def _text(table: TableFile, name: str, n_rows: int | None, advice: str) -> Labels:
    """Return labels, of `n_rows` samples if it is known; none is empty."""
    cells = table.labels(name)
    if n_rows is not None:
        _check_length(table, len(cells), name, n_rows)
    elif not len(cells):
        raise InputError(f"{table.path}: the table is empty; give at least one row")
    mapped.check_cells(cells, table.path, name, advice, label_problem)
    return mapped.fixed_width(cells, table.path, name)


def _ids(
    table: TableFile, columns: TableColumns, rows: Matrix | Labels
) -> Labels | TextColumn | None:
    """Return unique names of the samples; None without a column of them."""
    if columns.id is None:
        return None
    name = find_name(table, columns.id, "--id-column")
    cells = table.text(name)
    _check_length(table, len(cells), name, len(rows))
    mapped.check_cells(cells, table.path, name, _NO_ID)
    places: dict[str, int] = {}
    for row, text in enumerate(cells.tolist()):
        if (first := places.setdefault(text, row)) != row:
            problem = f"the id {text!r} is there twice; every row needs its own"
            raise InputError(f"{table.path}: {name!r}, rows {first + 1} and {row + 1}: {problem}")
    # Of many rows, the longest name must not set the memory of all.
    is_long = isinstance(rows, np.memmap)
    return cells if is_long else mapped.fixed_width(cells, table.path, name)


def _check_length(table: TableFile, n: int, name: str, n_rows: int) -> None:
    if n != n_rows:
        raise InputError(f"{table.path}: {n} entries in {name!r} for {n_rows} rows of features")
