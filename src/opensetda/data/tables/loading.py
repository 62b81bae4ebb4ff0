"""Feature tables: one row per sample, read from ``.npz``, ``.npy``, ``.csv`` or ``.parquet``.

Problems of a file are found here, before anything is trained, and reported in one line. Rows are
counted from 1 in every message.

Target labels are dropped here: `read_domains` never returns them, whatever the file holds. Only
`read_truth`, for evaluation, reads them.

Large tables stay in their file, as a memory map: an ``.npy`` file, or an uncompressed array of an
``.npz`` file. A large Parquet file, or folder of them, is first written to a scratch file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opensetda.data.tables.cells import TextColumn, empty_cell
from opensetda.data.tables.formats import Matrix, TableFile, find_name, listing, open_table
from opensetda.data.tables.mapped import ignore, is_mapped
from opensetda.data.tables.parquet_parts import table_bytes
from opensetda.data.tables.stored_text import StoredText, first_repeated
from opensetda.errors import InputError

Labels = npt.NDArray[np.str_]
OnRead = Callable[[int], None]

_NO_ID = "name the row or leave --id-column out"


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table.

    Attributes
    ----------
    label : str
        Column (in ``.npz`` files: array) of the labels.
    id : str or None
        Column or array of sample names, for example file names.
    features : str
        Array of the features in ``.npz`` files. In other formats every column that is not
        named here is a feature.
    drop : tuple of str
        Columns to leave out.
    """

    label: str = "y"
    id: str | None = None
    features: str = "X"
    drop: tuple[str, ...] = ()


@dataclass(frozen=True)
class FeatureTable:
    """Samples as rows of features.

    Attributes
    ----------
    X : array of shape (n, d)
        Finite features: float32 in memory, or a read-only `numpy.memmap` of any number type,
        of which only some rows should be in memory at a time.
    labels : array of str of shape (n,) or None
        Classes, as text; None for everything but a source.
    ids : array of str of shape (n,), StoredText or None
        Unique names of the samples; text that stays in a file if the features do.
    feature_names : tuple of str or None
        Names of the columns; ``.npz`` and ``.npy`` files have none.
    path : Path
        The file, or the folder of its parts.
    """

    X: Matrix
    labels: Labels | None
    ids: Labels | StoredText | None
    feature_names: tuple[str, ...] | None
    path: Path

    def __len__(self) -> int:
        return len(self.X)

    def class_counts(self) -> dict[str, int]:
        """Return the number of rows per class; empty without labels."""
        if self.labels is None:
            return {}
        names, counts = np.unique(self.labels, return_counts=True)
        return dict(zip(names.tolist(), counts.tolist(), strict=True))


@dataclass(frozen=True)
class TruthTable:
    """True labels of a target and perhaps names of its samples, read for evaluation only."""

    labels: Labels
    ids: Labels | None
    path: Path


def read_domains(
    source: str | Path,
    target: str | Path,
    columns: TableColumns | None = None,
    progress: Callable[[int], None] | None = None,
    scratch: Path | None = None,
) -> tuple[FeatureTable, FeatureTable]:
    """Read labelled rows of at least two classes, and rows to be labelled.

    The target has the features of the source, in the order of the source. A label
    column in the target is neither a feature nor returned.

    Parameters
    ----------
    source, target : str or Path
        Tables; a source needs labels, which an ``.npy`` file does not have.
    columns : TableColumns, optional
        Their columns.
    progress : callable, optional
        Called with the number of bytes read since its last call.
    scratch : Path, optional
        Folder for unpacked large Parquet tables, which the caller removes after the last use
        of the tables. None: a temporary folder that is removed when the program ends.
    """
    columns = columns or TableColumns()
    tables = [_open(source, columns, scratch), _open(target, columns, scratch)]
    for name in columns.drop:
        if not any(table.has_columns and name in table.names for table in tables):
            if tables[0].names:
                find_name(tables[0], name, "--drop")
            kind = tables[0].path.suffix.lower()
            raise InputError(f"--drop {name}: an {kind} file has arrays, not columns to drop")
    with _counted(tables[0], progress) as on_read:
        labelled = _source(tables[0], columns, on_read)
    with _counted(tables[1], progress) as on_read:
        unlabelled = _target(tables[1], labelled, columns, on_read)
    return labelled, unlabelled


@contextmanager
def _counted(table: TableFile, progress: OnRead | None) -> Iterator[OnRead]:
    """Yield a callback for bytes read; at the end, `progress` has got the size of the table."""
    left = table_bytes(table.path)

    def on_read(n_bytes: int) -> None:
        nonlocal left
        n_bytes = min(n_bytes, left)
        left -= n_bytes
        if progress is not None:
            progress(n_bytes)

    yield on_read
    on_read(left)


def _source(table: TableFile, columns: TableColumns, on_read: OnRead) -> FeatureTable:
    label_column = find_name(table, columns.label, "--label-column")
    names = _feature_names(table, columns)
    X = _features(table, columns, names, on_read=on_read)
    advice = "label the row or remove it"
    labels = _complete(table, table.labels(label_column), label_column, len(X), advice)
    classes = np.unique(labels)
    if len(classes) < 2:
        raise InputError(
            f"{table.path}: one class only ({str(classes[0])!r} in {label_column!r}); "
            "give labelled rows of at least two classes"
        )
    return FeatureTable(X, labels, None, names, table.path)


def _target(
    table: TableFile, source: FeatureTable, columns: TableColumns, on_read: OnRead
) -> FeatureTable:
    names = _feature_names(table, columns)
    if names is not None and source.feature_names is not None:
        table.check_kinds(names)
        there = set(names)
        missing = [name for name in source.feature_names if name not in there]
        expected = set(source.feature_names)
        extra = [name for name in names if name not in expected]
        if missing:
            raise InputError(
                f"{table.path}: {_count(missing, 'feature column')} of {source.path} "
                f"not found here: {listing(missing, 3)}; both need the same features"
            )
        if extra:
            raise InputError(
                f"{table.path}: {_count(extra, 'column')} that {source.path} does not have: "
                f"{listing(extra, 3)}; leave out with --drop"
            )
        names = source.feature_names
    width = source.X.shape[1], str(source.path)
    X = _features(table, columns, names, width, on_read)
    return FeatureTable(X, None, _ids(table, columns, X), names, table.path)


def read_samples(
    path: str | Path,
    width: int,
    feature_names: Sequence[str] | None = None,
    columns: TableColumns | None = None,
    usual_id: str | None = None,
    scratch: Path | None = None,
) -> FeatureTable:
    """Read later samples for a fitted model.

    If the model has feature names, features are taken by name and other columns are ignored.
    If `columns` names no id, the column `usual_id` is used if there is one. `scratch` is as in
    `read_domains`.
    """
    columns = columns or TableColumns()
    asked = columns if columns.id else replace(columns, id=usual_id)
    table = _open(path, asked, scratch)
    if asked.id in table.names:
        columns = asked
    if feature_names is not None and table.has_columns:
        there = set(table.names)
        missing = [name for name in feature_names if name not in there]
        if missing:
            raise InputError(
                f"{table.path}: {_count(missing, 'feature column')} of the model not found: "
                f"{listing(missing, 3)}; it has {listing(table.names, 3)}"
            )
        X = _features(table, columns, feature_names)
        names: tuple[str, ...] | None = tuple(feature_names)
    else:
        names = _feature_names(table, columns)
        X = _features(table, columns, names, (width, "the model"))
    return FeatureTable(X, None, _ids(table, columns, X), names, table.path)


def read_truth(path: str | Path, columns: TableColumns | None = None) -> TruthTable:
    """Read true labels for evaluation; features, if there are any, are ignored."""
    columns = columns or TableColumns()
    table = _open(path, columns)
    label_column = find_name(table, columns.label, "--label-column")
    advice = "write the true class, or the word for unknown"
    labels = _complete(table, table.labels(label_column), label_column, None, advice)
    return TruthTable(labels, _ids_in_memory(table, columns, len(labels)), table.path)


def _check_width(path: Path, width: int, expected: int, of: str) -> None:
    """Raise an `InputError` unless a table has the expected number of features."""
    if width != expected:
        raise InputError(
            f"{path}: {width} features, but {of} has {expected}; "
            "both must come from the same feature extractor"
        )


def _open(path: str | Path, columns: TableColumns, scratch: Path | None = None) -> TableFile:
    text = [columns.label, *([columns.id] if columns.id else [])]
    return open_table(Path(path), text, scratch)


def _feature_names(table: TableFile, columns: TableColumns) -> tuple[str, ...] | None:
    """Return the columns that are features; None for arrays."""
    if not table.has_columns:
        return None
    left_out = {columns.label, columns.id, *columns.drop}
    names = tuple(name for name in table.names if name not in left_out)
    if not names:
        raise InputError(f"{table.path}: no feature column left; it has {listing(table.names)}")
    return names


def _features(
    table: TableFile,
    columns: TableColumns,
    names: Sequence[str] | None,
    expected: tuple[int, str] | None = None,
    on_read: OnRead = ignore,
) -> Matrix:
    """Read features; `expected` is their number, and what has it, for messages."""
    if names is None:
        arrays = [columns.features] if table.names else []
        names = [find_name(table, name, "--features-key") for name in arrays]
    width = table.width(names)
    if width is not None and expected is not None:
        # First: an id column that was not declared is text, and one column too many.
        table.check_kinds(names)
        _check_width(table.path, width, *expected)
    X = table.features(names, on_read)
    _check_not_empty(table, len(X))
    if X.shape[1] == 0:
        what = f"array {columns.features!r}" if table.names else "the array"
        raise InputError(f"{table.path}: {what} has no feature")
    if expected is not None:
        _check_width(table.path, X.shape[1], *expected)
    return X


def _check_not_empty(table: TableFile, n_rows: int) -> None:
    if n_rows == 0:
        raise InputError(f"{table.path}: the table is empty; give at least one row")


def _ids(table: TableFile, columns: TableColumns, X: Matrix) -> Labels | StoredText | None:
    if columns.id is None:
        return None
    if is_mapped(X):
        name = find_name(table, columns.id, "--id-column")
        stored = table.stored_text(name, _NO_ID)
        if stored is not None:
            _check_length(table, len(stored), name, len(X))
            found = first_repeated(stored)
            if found is not None:
                raise _twice(table, name, *found)
            return stored
    return _ids_in_memory(table, columns, len(X))


def _ids_in_memory(table: TableFile, columns: TableColumns, n_rows: int) -> Labels | None:
    if columns.id is None:
        return None
    name = find_name(table, columns.id, "--id-column")
    ids = _complete(table, table.text(name), name, n_rows, _NO_ID)
    unique, first, count = np.unique(ids, return_index=True, return_counts=True)
    if len(unique) < len(ids):
        repeated = str(unique[count > 1][np.argmin(first[count > 1])])
        rows = np.flatnonzero(ids == repeated)
        raise _twice(table, name, int(rows[0]), int(rows[1]), repeated)
    return ids


def _twice(table: TableFile, name: str, row: int, again: int, text: str) -> InputError:
    return InputError(
        f"{table.path}: {name!r}, rows {row + 1} and {again + 1}: the id {text!r} is there "
        "twice; every row needs its own"
    )


def _complete(
    table: TableFile, values: TextColumn, name: str, n_rows: int | None, advice: str
) -> Labels:
    """Return a column of text without gaps, of the length of the features."""
    _check_not_empty(table, len(values))
    if n_rows is not None:
        _check_length(table, len(values), name, n_rows)
    empty = np.array([value is None for value in values])
    if empty.any():
        raise empty_cell(table.path, name, int(empty.argmax()), advice)
    return values.astype(np.str_)


def _check_length(table: TableFile, length: int, name: str, n_rows: int) -> None:
    if length != n_rows:
        raise InputError(
            f"{table.path}: {length} entries in {name!r} for {n_rows} rows of features"
        )


def _count(names: Sequence[str], noun: str) -> str:
    return f"1 {noun}" if len(names) == 1 else f"{len(names)} {noun}s"
