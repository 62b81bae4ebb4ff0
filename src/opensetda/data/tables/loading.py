"""Feature tables: one row per sample, read from arrays or from tables with columns.

Problems of a file are found here, before anything is trained, and reported in one line. Rows are
counted from 1 in every message. Target labels are dropped here: `read_domains` never returns them,
whatever the file holds. Only `read_truth`, for evaluation, reads them.

Large tables stay in their file, as a memory map; large Parquet tables are first unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from opensetda.data.limits import MOST_NAMES
from opensetda.data.names import id_problem, label_problem
from opensetda.data.tables import mapped
from opensetda.data.tables.column_files import ColumnTable
from opensetda.data.tables.column_problems import TableColumns as TableColumns
from opensetda.data.tables.formats import find_name, listing, open_table
from opensetda.data.tables.interface import Matrix, TableFile
from opensetda.data.tables.mapped import Labels, OnRead, StoredText, TextColumn
from opensetda.data.tables.parquet_parts import table_bytes
from opensetda.data.tables.preparation import (
    IMPUTATIONS,
    ColumnPlan,
    divide_names,
    feature_columns,
    prepare,
    prepare_later,
)
from opensetda.errors import InputError

Readable = str | Path | ColumnTable

_NO_ID = "name the row or leave --id-column out"
TRUTH_ADVICE = "write the true class, or the word for unknown"


@dataclass(frozen=True)
class FeatureTable:
    """Samples as rows of features.

    `X` holds finite features: float32 in memory, or a read-only `numpy.memmap` of any number type,
    of which only some rows should be in memory at a time. `labels` are None for everything but a
    source. `ids` are unique; they stay in a file if the features do. Only columns have names.
    `plan` is what was done with columns, `notes` are warnings about them.
    """

    X: Matrix
    labels: Labels | None
    ids: Labels | StoredText | None
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
    progress: OnRead | None = None,
    scratch: Path | None = None,
) -> tuple[FeatureTable, FeatureTable]:
    """Read labelled rows of at least two classes, and rows to be labelled.

    The target has the features of the source, in the order of the source. A label column in the
    target is neither a feature nor returned. `progress` is called with the number of bytes read
    since its last call.

    Large Parquet tables are unpacked to the folder `scratch`, which the caller removes after the
    last use of the tables. None: a temporary folder that is removed when the program ends.
    """
    columns = columns or TableColumns()
    tables = _open(source, columns, scratch), _open(target, columns, scratch)
    columns = _found(tables, columns)
    with _counted(tables[0], progress) as of_source, _counted(tables[1], progress) as of_target:
        if all(table.has_columns for table in tables):
            return _prepared(tables, columns, (of_source, of_target))
        labelled = _source(tables[0], columns, of_source)
        return labelled, _target(tables[1], labelled, columns, of_target)


def _found(tables: Sequence[TableFile], columns: TableColumns) -> TableColumns:
    """Return the columns with their lists of names divided, after checking that they are there."""
    if columns.impute not in IMPUTATIONS:
        raise InputError(f"--impute {columns.impute}: choose one of {', '.join(IMPUTATIONS)}")
    there = {name for table in tables if table.has_columns for name in table.names}
    lists = {"drop": columns.drop, "keep": columns.keep, "one_hot": columns.one_hot}
    divided = {option: divide_names(names, there) for option, names in lists.items()}
    for option, names in divided.items():
        flag = f"--{option.replace('_', '-')}"
        for name in names:
            if name in there:
                continue
            if tables[0].names:
                find_name(tables[0], name, flag)
            kind = tables[0].path.suffix.lower()
            raise InputError(f"{flag} {name}: an {kind} file has arrays, not columns to {option}")
    drop, keep, one_hot = divided.values()
    return replace(columns, drop=drop, keep=keep, one_hot=one_hot)


def _prepared(
    tables: tuple[TableFile, TableFile], columns: TableColumns, on_read: tuple[OnRead, OnRead]
) -> tuple[FeatureTable, FeatureTable]:
    """Read two tables with columns; all that is wrong with those is one error."""
    prepared = prepare(tables, columns, on_read)
    for table, X in zip(tables, prepared.X, strict=True):
        if len(X) == 0:
            raise InputError(f"{table.path}: the table is empty; give at least one row")
    labels = _labels(tables[0], columns, len(prepared.X[0]))
    ids = _ids(tables[1], columns, len(prepared.X[1]), isinstance(prepared.X[1], np.memmap))
    names, plan = prepared.names, prepared.plan
    source = FeatureTable(prepared.X[0], labels, None, names, tables[0].path, plan, prepared.notes)
    return source, FeatureTable(prepared.X[1], None, ids, names, tables[1].path, plan)


@contextmanager
def _counted(table: TableFile, progress: OnRead | None) -> Iterator[OnRead]:
    """Yield a callback for bytes read; at the end, `progress` has got the size of the table."""
    # A DataFrame has no file.
    left = table_bytes(table.path) if table.path.exists() else 0

    def on_read(n_bytes: int) -> None:
        nonlocal left
        n_bytes = min(n_bytes, left)
        left -= n_bytes
        if progress is not None:
            progress(n_bytes)

    yield on_read
    on_read(left)


def _source(table: TableFile, columns: TableColumns, on_read: OnRead) -> FeatureTable:
    find_name(table, columns.label, "--label-column")
    names = _feature_names(table, columns)
    X = _features(table, columns, names, on_read=on_read)
    return FeatureTable(X, _labels(table, columns, len(X)), None, names, table.path)


def _labels(table: TableFile, columns: TableColumns, n_rows: int) -> Labels:
    name, advice = columns.label, "label the row or remove it"
    labels = _complete(table, table.labels(name), name, n_rows, advice, label_problem)
    classes = np.unique(labels)
    if len(classes) < 2:
        problem = f"one class only ({str(classes[0])!r} in {name!r})"
        raise InputError(f"{table.path}: {problem}; give labelled rows of at least two classes")
    return labels


def _target(
    table: TableFile, source: FeatureTable, columns: TableColumns, on_read: OnRead
) -> FeatureTable:
    names = _feature_names(table, columns)
    X = _features(table, columns, names, (source.X.shape[1], str(source.path)), on_read)
    ids = _ids(table, columns, len(X), isinstance(X, np.memmap))
    return FeatureTable(X, None, ids, names, table.path)


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
    if feature_names is not None and table.has_columns:
        X, notes = prepare_later(table, tuple(feature_names), plan or ColumnPlan())
        names: tuple[str, ...] | None = tuple(feature_names)
        if len(X) == 0:
            raise InputError(f"{table.path}: the table is empty; give at least one row")
    else:
        names, notes = _feature_names(table, columns), ()
        X = _features(table, columns, names, (width, "the model"))
    ids = _ids(table, columns, len(X), isinstance(X, np.memmap))
    return FeatureTable(X, None, ids, names, table.path, notes=notes)


def read_truth(
    path: str | Path, columns: TableColumns | None = None, partial: bool = False
) -> TruthTable:
    """Read true labels for evaluation; features, if there are any, are ignored.

    If `partial`, labels may be empty, but not all of them.
    """
    columns = columns or TableColumns()
    table = _open(path, columns)
    label_column = find_name(table, columns.label, "--label-column")
    cells = table.labels(label_column)
    if partial:
        labels = labels_with_gaps(cells, table.path, label_column)
    else:
        labels = _complete(table, cells, label_column, None, TRUTH_ADVICE, label_problem)
    ids = _ids(table, columns, len(labels))
    return TruthTable(labels, None if ids is None else np.asarray(ids), table.path)


def labels_with_gaps(cells: TextColumn, path: Path, column: str) -> Labels:
    """Return true labels, "" where a cell is empty; an `InputError` if all are."""
    mapped.check_cells(cells, path, column, None, label_problem)
    if not any(names := [name or "" for name in cells.tolist()]):
        raise InputError(f"{path}: no label in {column!r}; {TRUTH_ADVICE} of some samples")
    return mapped.fixed_width(names, path, column)


def _check_width(path: Path, width: int, expected: int, of: str) -> None:
    if width != expected:
        advice = "both must come from the same feature extractor"
        raise InputError(f"{path}: {width} features, but {of} has {expected}; {advice}")


def _open(path: Readable, columns: TableColumns, scratch: Path | None = None) -> TableFile:
    if isinstance(path, ColumnTable):
        return path
    return open_table(Path(path), filter(None, (columns.label, columns.id)), scratch)


def _feature_names(table: TableFile, columns: TableColumns) -> tuple[str, ...] | None:
    """Return the columns that are features; None for arrays."""
    if not table.has_columns:
        return None
    names = feature_columns(table, columns)
    if not names:
        raise InputError(f"{table.path}: no feature column left; it has {listing(table.names)}")
    return names


def _features(
    table: TableFile,
    columns: TableColumns,
    names: Sequence[str] | None,
    expected: tuple[int, str] | None = None,
    on_read: OnRead = mapped.ignore,
) -> Matrix:
    """Read features; `expected` is their number, and what has it, for messages."""
    if names is None:
        arrays = [columns.features] if table.names else []
        names = [find_name(table, name, "--features-key") for name in arrays]
    width = table.width(names)
    if width and expected is not None:
        # First: an id column that was not declared is text, and one column too many.
        table.check_kinds(names)
        _check_width(table.path, width, *expected)
    X = table.features(names, on_read)
    if len(X) == 0:
        raise InputError(f"{table.path}: the table is empty; give at least one row")
    if X.shape[1] == 0:
        what = f"array {columns.features!r}" if table.names else "the array"
        raise InputError(f"{table.path}: {what} has no feature")
    if expected is not None:
        _check_width(table.path, X.shape[1], *expected)
    return X


def _ids(
    table: TableFile, columns: TableColumns, n_rows: int, stay_in_file: bool = False
) -> Labels | StoredText | None:
    """Return unique names of the samples; None without a column of them."""
    if columns.id is None:
        return None
    name = find_name(table, columns.id, "--id-column")
    stay_in_file = stay_in_file or n_rows > MOST_NAMES
    ids: Labels | StoredText | None = table.stored_text(name, _NO_ID) if stay_in_file else None
    if ids is None:
        ids = _complete(table, table.text(name), name, n_rows, _NO_ID)
    _check_length(table, len(ids), name, n_rows)
    repeated = mapped.first_repeated(ids)
    if repeated is not None:
        row, again, text = repeated
        problem = f"the id {text!r} is there twice; every row needs its own"
        raise InputError(f"{table.path}: {name!r}, rows {row + 1} and {again + 1}: {problem}")
    return ids


def _complete(
    table: TableFile,
    values: TextColumn,
    name: str,
    n_rows: int | None,
    advice: str,
    problem_of: Callable[[str], str | None] = id_problem,
) -> Labels:
    if len(values) == 0:
        raise InputError(f"{table.path}: the table is empty; give at least one row")
    if n_rows is not None:
        _check_length(table, len(values), name, n_rows)
    mapped.check_cells(values, table.path, name, advice, problem_of)
    return mapped.fixed_width(values, table.path, name)


def _check_length(table: TableFile, n: int, name: str, n_rows: int) -> None:
    if n != n_rows:
        raise InputError(f"{table.path}: {n} entries in {name!r} for {n_rows} rows of features")


def count_classes(labels: Labels | None) -> dict[str, int]:
    """Return the number of labels per class."""
    names, counts = np.unique([] if labels is None else labels, return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))
