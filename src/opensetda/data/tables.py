"""Feature tables: one row a sample, read from ``.npz``, ``.csv`` or ``.parquet``.

What can be wrong with a file is found here, before anything is trained, and
said in one line. Rows are counted from 1 in every message.

The labels of a target are dropped at this door: `read_domains` never returns
them, whatever the file holds. Only `read_truth`, for evaluation, reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opensetda.data.readers import TableFile, TextColumn, find_name, listing, open_table
from opensetda.errors import InputError

Labels = npt.NDArray[np.str_]


@dataclass(frozen=True)
class TableColumns:
    """What is where in a table.

    Attributes
    ----------
    label : str
        Column (in ``.npz`` files: array) of the labels.
    id : str or None
        Column or array that names the samples, for example by their file.
    features : str
        Array of the features in ``.npz`` files. In the other formats every column
        that is not named here is a feature.
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
    X : array of float32 of shape (n, d)
        Finite features.
    labels : array of str of shape (n,) or None
        Classes, as text; None for everything but a source.
    ids : array of str of shape (n,) or None
        Names of the samples, each once.
    feature_names : tuple of str or None
        Names of the columns; ``.npz`` files have none.
    path : Path
        The file.
    """

    X: npt.NDArray[np.float32]
    labels: Labels | None
    ids: Labels | None
    feature_names: tuple[str, ...] | None
    path: Path

    def __len__(self) -> int:
        return len(self.X)

    def class_counts(self) -> dict[str, int]:
        """Return how many rows each class has; nothing without labels."""
        if self.labels is None:
            return {}
        names, counts = np.unique(self.labels, return_counts=True)
        return dict(zip(names.tolist(), counts.tolist(), strict=True))


@dataclass(frozen=True)
class TruthTable:
    """True labels of a target, read for evaluation only.

    Attributes
    ----------
    labels : array of str of shape (n,)
        Classes, as text.
    ids : array of str of shape (n,) or None
        Names of the samples.
    path : Path
        The file.
    """

    labels: Labels
    ids: Labels | None
    path: Path


def read_domains(
    source: str | Path,
    target: str | Path,
    columns: TableColumns | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[FeatureTable, FeatureTable]:
    """Read labelled rows of at least two classes, and rows to be labelled.

    The target has the features of the source, in the order of the source. A label
    column in the target is neither a feature nor returned. `progress` is told the bytes of
    each file that has been read.
    """
    columns = columns or TableColumns()
    tables = [_open(source, columns), _open(target, columns)]
    for name in columns.drop:
        if not any(table.has_columns and name in table.names for table in tables):
            find_name(tables[0], name, "--drop")
            raise InputError(f"--drop {name}: an .npz file has arrays, not columns to drop")
    tell = progress or (lambda n_bytes: None)
    labelled = _source(tables[0], columns)
    tell(labelled.path.stat().st_size)
    unlabelled = _target(tables[1], labelled, columns)
    tell(unlabelled.path.stat().st_size)
    return labelled, unlabelled


def _source(table: TableFile, columns: TableColumns) -> FeatureTable:
    label_column = find_name(table, columns.label, "--label-column")
    X, names = _features(table, columns)
    advice = "label the row or remove it"
    labels = _complete(table, table.labels(label_column), label_column, len(X), advice)
    classes = np.unique(labels)
    if len(classes) < 2:
        raise InputError(
            f"{table.path}: one class only ({str(classes[0])!r} in {label_column!r}); "
            "give labelled rows of at least two classes"
        )
    return FeatureTable(X, labels, None, names, table.path)


def _target(table: TableFile, source: FeatureTable, columns: TableColumns) -> FeatureTable:
    X, names = _features(table, columns)
    if names is not None and source.feature_names is not None:
        place = {name: index for index, name in enumerate(names)}
        missing = [name for name in source.feature_names if name not in place]
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
        X = X[:, [place[name] for name in source.feature_names]]
        names = source.feature_names
    _check_width(table.path, X.shape[1], source.X.shape[1], str(source.path))
    return FeatureTable(X, None, _ids(table, columns, len(X)), names, table.path)


def read_samples(
    path: str | Path,
    width: int,
    feature_names: Sequence[str] | None = None,
    columns: TableColumns | None = None,
    usual_id: str | None = None,
) -> FeatureTable:
    """Read later samples for a fitted model.

    If the model knows its features by name, they are taken by name and other
    columns do not matter. If `columns` names no id, the column `usual_id` is
    taken for it where there is one.
    """
    columns = columns or TableColumns()
    asked = columns if columns.id else replace(columns, id=usual_id)
    table = _open(path, asked)
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
        X, names = table.features(feature_names), tuple(feature_names)
        _check_not_empty(table, len(X))
        return FeatureTable(X, None, _ids(table, columns, len(X)), names, table.path)
    X, own_names = _features(table, columns)
    _check_width(table.path, X.shape[1], width, "the model")
    return FeatureTable(X, None, _ids(table, columns, len(X)), own_names, table.path)


def read_truth(path: str | Path, columns: TableColumns | None = None) -> TruthTable:
    """Read true labels for evaluation; features, if there are any, are ignored."""
    columns = columns or TableColumns()
    table = _open(path, columns)
    label_column = find_name(table, columns.label, "--label-column")
    advice = "write the true class, or the word for unknown"
    labels = _complete(table, table.labels(label_column), label_column, None, advice)
    return TruthTable(labels, _ids(table, columns, len(labels)), table.path)


def _check_width(path: Path, width: int, expected: int, of: str) -> None:
    """Raise an `InputError` unless a table has as many features as it must."""
    if width != expected:
        raise InputError(
            f"{path}: {width} features, but {of} has {expected}; "
            "both must come from the same feature extractor"
        )


def _open(path: str | Path, columns: TableColumns) -> TableFile:
    text = [columns.label, *([columns.id] if columns.id else [])]
    return open_table(Path(path), text)


def _features(
    table: TableFile, columns: TableColumns
) -> tuple[npt.NDArray[np.float32], tuple[str, ...] | None]:
    if table.has_columns:
        left_out = {columns.label, columns.id, *columns.drop}
        names = tuple(name for name in table.names if name not in left_out)
        if not names:
            raise InputError(f"{table.path}: no feature column left; it has {listing(table.names)}")
        X = table.features(names)
        _check_not_empty(table, len(X))
        return X, names
    X = table.features([find_name(table, columns.features, "--features-key")])
    _check_not_empty(table, len(X))
    if X.shape[1] == 0:
        raise InputError(f"{table.path}: array {columns.features!r} has no feature")
    return X, None


def _check_not_empty(table: TableFile, n_rows: int) -> None:
    if n_rows == 0:
        raise InputError(f"{table.path}: the table is empty; give at least one row")


def _ids(table: TableFile, columns: TableColumns, n_rows: int) -> Labels | None:
    if columns.id is None:
        return None
    name = find_name(table, columns.id, "--id-column")
    advice = "name the row or leave --id-column out"
    ids = _complete(table, table.text(name), name, n_rows, advice)
    unique, first, count = np.unique(ids, return_index=True, return_counts=True)
    if len(unique) < len(ids):
        repeated = str(unique[count > 1][np.argmin(first[count > 1])])
        rows = np.flatnonzero(ids == repeated)[:2] + 1
        raise InputError(
            f"{table.path}: {name!r}, rows {rows[0]} and {rows[1]}: the id {repeated!r} is there "
            "twice; every row needs its own"
        )
    return ids


def _complete(
    table: TableFile, values: TextColumn, name: str, n_rows: int | None, advice: str
) -> Labels:
    """Return a column of text that has no gap and is as long as the features."""
    _check_not_empty(table, len(values))
    if n_rows is not None and len(values) != n_rows:
        raise InputError(
            f"{table.path}: {len(values)} entries in {name!r} for {n_rows} rows of features"
        )
    empty = np.array([value is None for value in values])
    if empty.any():
        row = int(empty.argmax()) + 1
        raise InputError(f"{table.path}: {name!r}, row {row}: empty; {advice}")
    return values.astype(np.str_)


def _count(names: Sequence[str], noun: str) -> str:
    return f"1 {noun}" if len(names) == 1 else f"{len(names)} {noun}s"
