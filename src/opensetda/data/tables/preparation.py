"""From columns of any kind to features: what is left out, filled in, or told as one problem."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from opensetda.data.names import shown
from opensetda.data.tables.column_files import ColumnTable, check_once
from opensetda.data.tables.column_problems import (
    MOST_CATEGORIES,
    Problems,
    TableColumns,
    Tables,
    check_gaps,
    closest,
    count,
    numeric_columns,
    shared_columns,
    with_label,
)
from opensetda.data.tables.formats import listing
from opensetda.data.tables.mapped import Matrix, TableFile
from opensetda.data.tables.screening import suspicious_columns
from opensetda.errors import InputError
from opensetda.rows import row_chunks

_CHUNK = 4096
_SAMPLED_ROWS = 65_536


@dataclass(frozen=True)
class ColumnPlan:
    """What was done with the columns of two tables, so that later ones are treated alike.

    `left_out` has the reason for each suspicious column, `medians` what fills empty cells of later
    tables, `categories` the values of each column that became a feature per value.
    """

    left_out: Mapping[str, str] = field(default_factory=dict)
    medians: Mapping[str, float] = field(default_factory=dict)
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def category_names(self) -> list[str]:
        """Return the names of the features that are categories."""
        return [f"{name}={value}" for name, values in self.categories.items() for value in values]


def feature_columns(table: TableFile, columns: TableColumns) -> tuple[str, ...]:
    """Return the columns that are not a label or an id, and not to be dropped."""
    others = {columns.label, columns.id, *columns.drop}
    names = tuple(name for name in table.names if name not in others)
    if not names:
        raise InputError(f"{table.path}: no feature column left; it has {listing(table.names)}")
    return names


def prepare(
    tables: Tables, columns: TableColumns
) -> tuple[tuple[Matrix, Matrix], tuple[str, ...], ColumnPlan, tuple[str, ...]]:
    """Return features of source and target, their names, the plan, and warnings.

    All that is wrong with columns is one `ColumnsError`. No label is read: of the label column
    only the name is used.
    """
    problems = Problems()
    columns = with_label(tables, columns, problems)
    own = [feature_columns(table, columns) for table in tables]
    shared = shared_columns(tables, own, columns, problems)
    numeric = numeric_columns(tables, shared, columns, problems)
    if not shared or any(table.is_large(numeric) for table in tables):
        # The numbers of a large table are not read in vain.
        problems.raise_any()
    X = [table.features(numeric, fill={}) for table in tables]
    suspicious = suspicious_columns(numeric, *X)
    left_out = {name: why for name, why in suspicious.items() if name not in columns.keep}
    kept = [name for name in numeric if name not in left_out]
    gaps = [_gaps(rows)[:, [numeric.index(name) for name in kept]] for rows in X]
    check_gaps(tables, kept, gaps, columns, problems)
    problems.raise_any()
    if not kept and not columns.one_hot:
        reasons = "; ".join(f"{shown(name)}: {why}" for name, why in [*left_out.items()][:3])
        none_left = f"no feature left ({reasons}); keep features with --keep NAME"
        raise InputError(f"{tables[0].path}: {none_left}")
    medians: list[dict[str, float]] = [{}, {}]
    if columns.impute == "median":
        medians = [_medians(rows, numeric, kept) for rows in X]
    plan = ColumnPlan(left_out, medians[1], _categories(tables, columns))
    filled = [
        X[domain]
        if kept == numeric and not gaps[domain][0].any()
        else _complete(tables[domain], X[domain], numeric, kept, medians[domain])
        for domain in (0, 1)
    ]
    source, target = (_with_categories(*both, plan)[0] for both in zip(tables, filled, strict=True))
    names = (*kept, *plan.category_names())
    check_once(tables[0].path, names)
    return (source, target), names, plan, _notes(left_out)


def prepare_later(
    table: ColumnTable, feature_names: tuple[str, ...], plan: ColumnPlan
) -> tuple[Matrix, tuple[str, ...]]:
    """Make the features of a later table as `plan` says; also return warnings."""
    numeric = feature_names[: len(feature_names) - len(plan.category_names())]
    missing = [name for name in (*numeric, *plan.categories) if name not in {*table.names}]
    if missing:
        near = closest(missing[0], [name for name in table.names if name not in {*feature_names}])
        hint = f"; did you mean {shown(near)}?" if near else ""
        raise InputError(
            f"{table.path}: {count(missing, 'feature column')} of the model not found: "
            f"{listing(missing, 3)}; it has {listing(table.names, 3)}{hint}"
        )
    X, unseen = _with_categories(table, table.features(numeric, fill=plan.medians or None), plan)
    notes = [
        f"{table.path}: column {shown(name)}: {count(values, 'value')} that fit has not seen: "
        f"{listing(values, 3)}; taken as none of those it has"
        for name, values in unseen.items()
    ]
    return X, tuple(notes)


def _gaps(X: Matrix) -> npt.NDArray[np.intp]:
    """Return the number of empty cells per column, and the row of the first: (2, D)."""
    found = np.zeros((2, X.shape[1]), dtype=np.intp)
    for start, chunk in row_chunks(X, _CHUNK):
        empty = np.isnan(chunk)
        new = empty.any(axis=0) & (found[0] == 0)
        found[1][new] = start + empty[:, new].argmax(axis=0)
        found[0] += empty.sum(axis=0)
    return found


def _notes(left_out: Mapping[str, str]) -> tuple[str, ...]:
    if not left_out:
        return ()
    some = ", ".join(f"{shown(name)} ({why})" for name, why in [*left_out.items()][:8])
    more = ", ..." if len(left_out) > 8 else ""
    return (f"left out {count(left_out, 'column')}: {some}{more}; keep one with --keep NAME",)


def _medians(X: Matrix, names: Sequence[str], kept: Collection[str]) -> dict[str, float]:
    sample = X[:: max(1, -(-len(X) // _SAMPLED_ROWS))]
    found = {}
    for place, name in enumerate(names):
        values = np.asarray(sample[:, place], dtype=np.float64)
        values = values[~np.isnan(values)]
        if name in kept:
            found[name] = float(np.float32(np.median(values))) if len(values) else 0.0
    return found


def _complete(
    table: ColumnTable,
    X: Matrix,
    names: Sequence[str],
    kept: Sequence[str],
    medians: Mapping[str, float],
) -> Matrix:
    """Return the columns that are kept, without empty cells."""
    if isinstance(X, np.memmap):
        return table.features(kept, fill=medians or None)
    X = X[:, [names.index(name) for name in kept]]
    fill = np.array([medians.get(name, np.nan) for name in kept], dtype=X.dtype)
    return np.ascontiguousarray(np.where(np.isnan(X), fill, X))


def _categories(tables: Tables, columns: TableColumns) -> dict[str, tuple[str, ...]]:
    found = {}
    for name in columns.one_hot:
        values = {text for table in tables for text in table.text(name).tolist()} - {None}
        if not values or len(values) > MOST_CATEGORIES:
            raise InputError(
                f"--one-hot {name}: {len(values):,} different values in {tables[0].path} and "
                f"{tables[1].path}, from 1 to {MOST_CATEGORIES} can be features; drop it"
            )
        found[name] = tuple(sorted(values))
    return found


def _with_categories(
    table: ColumnTable, X: Matrix, plan: ColumnPlan
) -> tuple[Matrix, dict[str, list[str]]]:
    """Return features with one for each category, 0 or 1, and values that are no category."""
    if plan.categories and isinstance(X, np.memmap):
        raise InputError(f"{table.path}: too large for --one-hot; drop the columns of text")
    parts, unseen = [X], {}
    for name, values in plan.categories.items():
        cells = table.text(name)
        parts.append((cells[:, None] == np.array(values, dtype=object)).astype(np.float32))
        if others := {*cells.tolist()} - {*values, None}:
            unseen[name] = sorted(others)
    return X if len(parts) == 1 else np.concatenate(parts, axis=1), unseen
