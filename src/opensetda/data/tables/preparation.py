"""From columns of any kind to features: what is left out, filled in, or told as one problem."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from opensetda.data.names import shown
from opensetda.data.tables import mapped
from opensetda.data.tables.column_problems import (
    MOST_CATEGORIES,
    Problems,
    TableColumns,
    check_gaps,
    close_names,
    compare,
    count,
    numeric_columns,
    with_label,
)
from opensetda.data.tables.formats import listing
from opensetda.data.tables.interface import Matrix, TableFile
from opensetda.data.tables.mapped import OnRead
from opensetda.data.tables.parquet_parts import check_once
from opensetda.data.tables.screening import suspicious_columns
from opensetda.errors import InputError
from opensetda.rows import row_chunks

IMPUTATIONS = ("none", "median")
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


class Prepared(NamedTuple):
    """Features of source and target, their names, the plan, and warnings."""

    X: tuple[Matrix, Matrix]
    names: tuple[str, ...]
    plan: ColumnPlan
    notes: tuple[str, ...]


def divide_names(given: Iterable[str], there: Collection[str]) -> tuple[str, ...]:
    """Return names of columns; ``a,b`` are two, unless a column has this name."""
    names = (
        part for text in given for part in ([text] if text in there else re.split(", *", text))
    )
    return tuple(dict.fromkeys(names))


def feature_columns(table: TableFile, columns: TableColumns) -> tuple[str, ...]:
    """Return the columns that are not a label or an id, and not to be dropped."""
    others = {columns.label, columns.id, *columns.drop}
    return tuple(name for name in table.names if name not in others)


def prepare(
    tables: tuple[TableFile, TableFile], columns: TableColumns, on_read: tuple[OnRead, OnRead]
) -> Prepared:
    """Make features of the columns of source and target, or raise one `ColumnsError`.

    No label is read: of the label column only the name is used.
    """
    problems = Problems()
    columns = with_label(tables, columns, problems)
    own = [feature_columns(table, columns) for table in tables]
    for table, names in zip(tables, own, strict=True):
        if not names:
            raise InputError(f"{table.path}: no feature column left; it has {listing(table.names)}")
    compare(tables, own, columns, problems)
    shared = [name for name in own[0] if name in {*own[1]}]
    numeric = numeric_columns(tables, shared, columns, problems)
    if not shared or (problems.lines and any(_is_large(table, numeric) for table in tables)):
        # The numbers of a large table are not read in vain.
        problems.raise_any()
    X = [
        table.features(numeric, told, fill={}) for table, told in zip(tables, on_read, strict=True)
    ]
    left_out = suspicious_columns(numeric, *X)
    left_out = {name: why for name, why in left_out.items() if name not in columns.keep}
    kept = [name for name in numeric if name not in left_out]
    places = [place for place, name in enumerate(numeric) if name not in left_out]
    gaps = [_gaps(rows)[:, places] for rows in X]
    check_gaps(tables, kept, gaps, [len(rows) for rows in X], columns, problems)
    problems.raise_any()
    if not kept and not columns.one_hot:
        reasons = "; ".join(f"{shown(name)}: {why}" for name, why in [*left_out.items()][:3])
        path = tables[0].path
        raise InputError(f"{path}: no feature left ({reasons}); keep features with --keep NAME")
    medians: list[dict[str, float]] = [{}, {}]
    if columns.impute == "median":
        medians = [_medians(rows, numeric, left_out) for rows in X]
    filled = [
        _complete(table, rows, numeric, kept, fill, gap[0].any())
        for table, rows, fill, gap in zip(tables, X, medians, gaps, strict=True)
    ]
    categories = _categories(tables, columns)
    joined = [
        _joined(table, rows, categories)[0] for table, rows in zip(tables, filled, strict=True)
    ]
    names = (*kept, *_category_names(categories))
    check_once(tables[0].path, names)
    plan = ColumnPlan(left_out, medians[1], categories)
    return Prepared((joined[0], joined[1]), names, plan, _notes(left_out))


def prepare_later(
    table: TableFile, feature_names: tuple[str, ...], plan: ColumnPlan
) -> tuple[Matrix, tuple[str, ...]]:
    """Make the features of a later table as `plan` says; also return warnings."""
    n_categories = len(_category_names(plan.categories))
    numeric = feature_names[: len(feature_names) - n_categories]
    missing = [name for name in (*numeric, *plan.categories) if name not in {*table.names}]
    if missing:
        hints = close_names(missing, [n for n in table.names if n not in {*feature_names}])
        hint = f"; did you mean {shown(hints[missing[0]])}?" if missing[0] in hints else ""
        raise InputError(
            f"{table.path}: {count(missing, 'feature column')} of the model not found: "
            f"{listing(missing, 3)}; it has {listing(table.names, 3)}{hint}"
        )
    table.check_kinds(numeric)
    X = table.features(numeric, fill=plan.medians or None)
    X, unseen = _joined(table, X, plan.categories)
    notes = [
        f"{table.path}: column {shown(name)}: {count(values, 'value')} that fit has not seen: "
        f"{listing(values, 3)}; taken as none of those it has"
        for name, values in unseen.items()
    ]
    return X, tuple(notes)


def _gaps(X: Matrix) -> npt.NDArray[np.intp]:
    """Return the number of empty cells per column, and the row of the first: (2, D)."""
    found = np.zeros((2, X.shape[1]), dtype=np.intp)
    for start, chunk in row_chunks(X, range(len(X)), _CHUNK):
        empty = np.isnan(chunk)
        new = empty.any(axis=0) & (found[0] == 0)
        found[1][new] = start + empty[:, new].argmax(axis=0)
        found[0] += empty.sum(axis=0)
    return found


def _notes(left_out: Mapping[str, str]) -> tuple[str, ...]:
    if not left_out:
        return ()
    some = [f"{shown(name)} ({why})" for name, why in [*left_out.items()][:8]]
    more = f", ... ({len(left_out)} in all)" if len(left_out) > len(some) else ""
    how = "keep one with --keep NAME"
    return (f"left out {count(left_out, 'column')}: {', '.join(some)}{more}; {how}",)


# Features ----------------------------------------------------------------------------------------


def _is_large(table: TableFile, names: Sequence[str]) -> bool:
    return mapped.is_large((getattr(table, "__len__", int)(), len(names)))


def _medians(X: Matrix, names: Sequence[str], left_out: Collection[str]) -> dict[str, float]:
    sample = X[:: max(1, -(-len(X) // _SAMPLED_ROWS))]
    found = {}
    for place, name in enumerate(names):
        if name not in left_out:
            values = np.asarray(sample[:, place], dtype=np.float64)
            values = values[~np.isnan(values)]
            found[name] = float(np.float32(np.median(values))) if len(values) else 0.0
    return found


def _complete(
    table: TableFile,
    X: Matrix,
    names: Sequence[str],
    kept: Sequence[str],
    fill: Mapping[str, float],
    has_gaps: bool,
) -> Matrix:
    """Return the columns that are kept, without empty cells."""
    if len(kept) == len(names) and not has_gaps:
        return X
    if isinstance(X, np.memmap):
        return table.features(kept, fill=fill or None)
    X = X[:, [place for place, name in enumerate(names) if name in {*kept}]]
    if has_gaps:
        X = np.where(np.isnan(X), np.array([fill[name] for name in kept], dtype=X.dtype), X)
    return np.ascontiguousarray(X)


def _categories(tables: Sequence[TableFile], columns: TableColumns) -> dict[str, tuple[str, ...]]:
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


def _category_names(categories: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{name}={value}" for name, values in categories.items() for value in values]


def _joined(
    table: TableFile, X: Matrix, categories: Mapping[str, Sequence[str]]
) -> tuple[Matrix, dict[str, list[str]]]:
    """Return features with one for each category, 0 or 1, and values that are no category."""
    if not categories:
        return X, {}
    if isinstance(X, np.memmap):
        raise InputError(f"{table.path}: too large for --one-hot; drop the columns of text")
    parts, unseen = [X], {}
    for name, values in categories.items():
        cells = table.text(name)
        parts.append((cells[:, None] == np.array(values, dtype=object)).astype(np.float32))
        if others := {*cells.tolist()} - {*values, None}:
            unseen[name] = sorted(others)
    return np.concatenate(parts, axis=1), unseen
