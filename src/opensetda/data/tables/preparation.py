"""From columns of any kind to features: one list of all problems, one plan for all tables.

Columns that say where and when a row was recorded, not what it is, are found without any label.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from pyarrow import types

from opensetda.data.names import shown
from opensetda.data.tables.formats import ColumnTable, find_name, is_numeric, listing, meant
from opensetda.data.tables.mapped import Matrix
from opensetda.errors import InputError, ListedError
from opensetda.rows import row_chunks

_MOST_CATEGORIES = 50
_LABELS = ("label", "labels", "class", "classes", "category", "target", "species")
_CHUNK = 4096
_SAMPLED_ROWS = 65_536

# Of fewer rows nothing is concluded, except from the name of an index; of fewer different values
# not that they are times.
_FEWEST_ROWS = 20
_FEWEST_TIMES = 10
# Neighbouring rows of the source that show an order, and rows of the whole table for the rest. The
# order of targets is not looked at: it may tell their classes.
_ORDERED_ROWS = 4096
_SPREAD_ROWS = 16384
_COLUMNS_AT_ONCE = 256
# Of row numbers nearly all differ: 32-bit floats make some large ones equal.
_DISTINCT = 0.9
_EVEN = 0.9
_EPOCH = 9e8, 2.1e9  # seconds since 1970: from 1998 to 2036
_UNITS = {"seconds": 1, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
_WHOLE = re.compile(r"^(-?\d+)\.0+$")
_DATES = 19_700_101, 20_991_231
_INDEX = re.compile(r"|index|unnamed: ?\d+(_level_\d+)?|__index_level_\d+__|level_\d+", re.I)
_ID = re.compile(
    r"(.*[ _.-])?(id|ids|uid|uuid|guid|serial|row|record)([ _.-]?(no|nr|num|number))?", re.I
)
_TIME = re.compile(r"(.*[ _.-])?(timestamp|datetime|epoch|unix ?time)([ _.-].*)?", re.I)
# The shift itself, or another unit, moves many columns; a mark of a domain is alone.
_MOST_APART = 0.25

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table, or the arrays of an ``.npz`` file.

    `id` holds names of the samples. Columns that are not named here are features, except those
    that look like counters, times or marks of a domain and are not in `keep`. Text in `one_hot`
    becomes a feature per value. `impute` "median" fills in empty cells, by domain. Several names
    may be in one text, with commas between them.
    """

    label: str = "y"
    id: str | None = None
    features: str = "X"
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    one_hot: tuple[str, ...] = ()
    impute: str = "none"


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


class ColumnsError(ListedError):
    """All that is wrong with the columns of two tables, and the options that help."""

    def __init__(
        self, problems: Sequence[str], options: Sequence[str], command: Sequence[str] = ()
    ) -> None:
        self.problems = problems
        self.options = options
        advice = f"{'run instead:' if command else 'add'} {shlex.join([*command, *options])}"
        lines = [f"{problems[0]}; {advice}"]
        if len(problems) > 1:
            head = f"{len(problems)} problems with the columns of the tables:"
            lines = [head, *(f"  {line}" for line in problems), advice[0].upper() + advice[1:]]
        super().__init__(lines)


class _Problems:
    """What is wrong with the columns of source and target, and the options that help."""

    def __init__(self, source: ColumnTable, target: ColumnTable, columns: TableColumns) -> None:
        self.source = source
        self.target = target
        self.columns = columns
        self.lines: list[str] = []
        self.options: dict[str, str] = {}
        self.dropped: dict[str, None] = {}

    def raise_any(self) -> None:
        """Raise a `ColumnsError` if there is a problem."""
        joined = ",".join(name for name in self.dropped if "," not in name)
        drops = [joined, *(name for name in self.dropped if "," in name)]
        pairs = [*self.options.items(), *(("--drop", names) for names in drops if names)]
        if self.lines:
            raise ColumnsError(self.lines, [word for pair in pairs for word in pair])

    def find_label(self) -> None:
        """Find the likely column of the labels, if the one asked for is missing."""
        asked = self.columns.label
        names = self.source.names
        if asked in names:
            return
        others = {*self.target.names, *self.columns.drop}
        text = [n for n in names if n not in others and not is_numeric(self.source.kinds[n])]
        if not (guesses := [n for n in names if n.strip().lower() in _LABELS] or text):
            find_name(self.source, asked, "--label-column")
        meant_one = shown(guesses[0])
        self.lines.append(f"{self.source.path}: no column {asked!r}; did you mean {meant_one}?")
        self.options["--label-column"] = guesses[0]
        self.columns = replace(self.columns, label=guesses[0])

    def shared(self) -> list[str]:
        """Return the columns that both tables have; the others are problems."""
        source = self.source
        target = self.target
        own = [feature_columns(table, self.columns) for table in (source, target)]
        both = {*own[0]} & {*own[1]}
        missing, extra = ([name for name in names if name not in both] for names in own)
        if not both:
            there = f"no column of {source.path}, which has {listing(own[0], 3)}"
            raise InputError(f"{target.path}: {there}; give tables of the same features")
        self.dropped |= dict.fromkeys(missing)
        for name in extra:
            self._leave_out(name, [target])
        for table, other, names in ((source, target, missing), (target, source, extra)):
            if names:
                found = f"{_count(names, 'column')} not in {other.path}: {listing(names, 3)}"
                hint = meant(names[0], extra) if table is source else ""
                self.lines.append(f"{table.path}: {found}{hint}")
        return [name for name in own[0] if name in both]

    def numeric(self, shared: Iterable[str]) -> list[str]:
        """Return the columns of numbers; others are problems, unless asked for as categories."""
        tables = (self.source, self.target)
        numeric = []
        for name in (name for name in shared if name not in self.columns.one_hot):
            wrong = [table for table in tables if not is_numeric(table.kinds[name])]
            if not wrong:
                numeric.append(name)
                continue
            where = " and ".join(str(table.path) for table in wrong)
            line = f"{where}: column {shown(name)} is not numeric ({wrong[0].example(name)})"
            if 1 < len(_values(wrong, name)) <= _MOST_CATEGORIES:
                line += f"; --one-hot {shlex.quote(name)} makes a feature of each value"
            self.lines.append(line)
            self._leave_out(name, tables)
        return numeric

    def _leave_out(self, name: str, tables: Sequence[ColumnTable]) -> None:
        """Suggest to drop a column, or to take it for the ids if its text names every row."""
        needs_id = self.columns.id is None and "--id-column" not in self.options
        if needs_id and all(len(_values([table], name)) == len(table) for table in tables):
            self.options["--id-column"] = name
        else:
            self.dropped[name] = None

    def gaps(self, table: ColumnTable, names: Iterable[str], counts: npt.NDArray[np.intp]) -> None:
        """Find empty cells that nothing fills; `counts` are their numbers by column."""
        fills = self.columns.impute == "median"
        most = len(table) - 1 if fills else len(table) // 2
        least = most + 1 if fills else 1
        gaps = {name: n for name, n in zip(names, counts.tolist(), strict=True) if n >= least}
        self.dropped |= dict.fromkeys(name for name, n in gaps.items() if n > most)
        if any(n <= most for n in gaps.values()):
            self.options["--impute"] = "median"
        if gaps:
            some = ", ".join([f"{shown(name)} ({n:,})" for name, n in gaps.items()][:8])
            cells = f"NaN or empty cells in {_count(gaps, 'column')}: {some}"
            self.lines.append(f"{table.path}: {cells} of {len(table):,} rows")


def feature_columns(table: ColumnTable, columns: TableColumns) -> tuple[str, ...]:
    """Return the columns that are not a label or an id, and not to be dropped."""
    others = {columns.label, columns.id, *columns.drop}
    names = tuple(name for name in table.names if name not in others)
    if not names:
        raise InputError(f"{table.path}: no feature column left; it has {listing(table.names)}")
    return names


def prepare(
    source: ColumnTable, target: ColumnTable, columns: TableColumns
) -> tuple[list[Matrix], tuple[str, ...], ColumnPlan, tuple[str, ...]]:
    """Return features of source and target, their names, the plan, and warnings.

    All that is wrong with columns is one `ColumnsError`. No label is read.
    """
    tables = (source, target)
    problems = _Problems(source, target, columns)
    problems.find_label()
    numeric = problems.numeric(problems.shared())
    if any(table.is_large(numeric) for table in tables):
        # The numbers of a large table are not read in vain.
        problems.raise_any()
    X = [table.features(numeric, {}) for table in tables]
    suspicious = suspicious_columns(numeric, X[0], X[1])
    left_out = {name: why for name, why in suspicious.items() if name not in columns.keep}
    places = {name: place for place, name in enumerate(numeric) if name not in left_out}
    gaps = ((np.isnan(chunk).sum(axis=0) for _, chunk in row_chunks(rows, _CHUNK)) for rows in X)
    empty = [np.asarray(sum(counts))[[*places.values()]] for counts in gaps]
    for table, counts in zip(tables, empty, strict=True):
        problems.gaps(table, [*places], counts)
    problems.raise_any()
    reasons = _reasons(left_out)
    if not places and not columns.one_hot:
        raise InputError(f"{source.path}: no feature left: {reasons}; keep some with --keep NAME")
    fills = [_medians(rows, places) if columns.impute == "median" else None for rows in X]
    categories = {name: _values(tables, name, of_any=True) for name in columns.one_hot}
    for name, values in categories.items():
        if len(values) > _MOST_CATEGORIES:
            limit = f"{len(values):,} values, at most {_MOST_CATEGORIES} can be features; drop it"
            raise InputError(f"{source.path}: --one-hot {name}: {limit}")
    plan = ColumnPlan(left_out, fills[1] or {}, categories)
    for domain, table in enumerate(tables):
        if left_out or empty[domain].any():
            X[domain] = table.features([*places], fills[domain])
        X[domain] = _with_categories(table, X[domain], plan)
    names = (*places, *plan.category_names())
    note = f"left out {_count(left_out, 'column')}: {reasons}; keep one with --keep NAME"
    return X, names, plan, (note,) if left_out else ()


def prepare_later(table: ColumnTable, feature_names: Sequence[str], plan: ColumnPlan) -> Matrix:
    """Make the features of a later table as `plan` says; a category that is new is none."""
    numeric = feature_names[: len(feature_names) - len(plan.category_names())]
    there = {*table.names}
    if missing := [name for name in (*numeric, *plan.categories) if name not in there]:
        found = f"{_count(missing, 'feature column')} of the model not found: {listing(missing, 3)}"
        raise InputError(f"{table.path}: {found}{meant(missing[0], there - {*feature_names})}")
    return _with_categories(table, table.features(numeric, plan.medians or None), plan)


def _with_categories(table: ColumnTable, X: Matrix, plan: ColumnPlan) -> Matrix:
    """Return features with one more for each category, 0 or 1."""
    if not plan.categories:
        return X
    if isinstance(X, np.memmap):
        raise InputError(f"{table.path}: too large for --one-hot; drop the columns of text")
    both = ((_categories(table, name), values) for name, values in plan.categories.items())
    more = [cells[:, None] == np.array(values, dtype=object) for cells, values in both]
    return np.concatenate([X, *more], axis=1, dtype=np.float32)


def _medians(X: Matrix, places: Mapping[str, int]) -> dict[str, float]:
    sample = X[:: max(1, -(-len(X) // _SAMPLED_ROWS))]
    found = {}
    for name, place in places.items():
        values = np.asarray(sample[:, place], dtype=np.float64)
        values = values[~np.isnan(values)]
        found[name] = float(np.float32(np.median(values))) if len(values) else 0.0
    return found


def _values(tables: Iterable[ColumnTable], name: str, of_any: bool = False) -> list[str]:
    """Return the different values of a column of text, or `of_any` kind."""
    text = [table for table in tables if of_any or types.is_string(table.kinds[name])]
    return sorted({cell for table in text for cell in _categories(table, name).tolist()} - {None})


def _categories(table: ColumnTable, name: str) -> npt.NDArray[Any]:
    """Return a column as text, whole numbers without decimals: with gaps they are saved as 3.0."""
    cells = table.text(name).tolist()
    return np.array([cell and _WHOLE.sub(r"\1", cell) for cell in cells], dtype=object)


def _count(names: Collection[Any], noun: str) -> str:
    return f"1 {noun}" if len(names) == 1 else f"{len(names):,} {noun}s"


def suspicious_columns(names: Sequence[str], source: Any, target: Any) -> dict[str, str]:
    """Return the columns that should not be features, each with the reason.

    `source` (n, D) and `target` (m, D) may be memory maps, and hold NaN in empty cells.
    """
    found: dict[str, str] = {}
    apart: dict[str, str] = {}
    spread = (rows[:: max(1, -(-len(rows) // _SPREAD_ROWS))] for rows in (source, target))
    parts = source[:_ORDERED_ROWS], *spread
    for first in range(0, len(names), _COLUMNS_AT_ONCE):
        some = slice(first, first + _COLUMNS_AT_ONCE)
        # By column: numpy is many times faster on contiguous values.
        blocks = (np.asarray(rows[:, some], dtype=np.float64) for rows in parts)
        columns = [np.ascontiguousarray(block.T) for block in blocks]
        for name, *cells in zip(names[some], *columns, strict=True):
            ordered, *values = (column[~np.isnan(column)] for column in cells)
            if _INDEX.fullmatch(name.strip()) and all(map(_is_whole, values)):
                found[name] = "an index"
            elif min(map(len, cells)) >= _FEWEST_ROWS and not any(map(len, values)):
                found[name] = "empty"
            elif min(map(len, values)) >= _FEWEST_ROWS:
                if reason := _reason(name.strip(), values, np.diff(ordered)):
                    found[name] = reason
                elif ranges := _ranges_apart(values[0], values[1]):
                    apart[name] = f"separates the domains: {ranges}"
    if len(apart) <= max(1, _MOST_APART * (len(names) - len(found))):
        found |= apart
    return {name: found[name] for name in names if name in found}


def _reasons(columns: Mapping[str, str]) -> str:
    return ", ".join([f"{shown(name)} ({why})" for name, why in columns.items()][:8])


def column_doubts(names: Sequence[str], X: Any, *domains: npt.NDArray[np.intp]) -> tuple[str, ...]:
    """Return a warning about named columns of X that should not be features, by its row numbers."""
    source, target = (X[rows[:: max(1, -(-len(rows) // _SPREAD_ROWS))]] for rows in domains)
    found = suspicious_columns(names, source, target) if len(names) else {}
    if not found:
        return ()
    advice = "drop them, or use opensetda.usecases.fit, which leaves them out"
    return (f"X: columns that may be no features are used: {_reasons(found)}; {advice}",)


def _reason(name: str, values: list[Values], steps: Values) -> str | None:
    """Return why a column is no feature; `steps` are those from row to row of the source."""
    both = np.concatenate(values)
    is_rising = len(steps) and ((steps >= 0).all() or (steps <= 0).all())
    low = both.min()
    high = both.max()
    whole = _is_whole(both)
    if low == high:
        # Always 0 is a feature that is never active, as some of any network are.
        return f"always {low:g}" if low else None
    distinct = [len(np.unique(v)) for v in values]
    if min(distinct) >= _FEWEST_TIMES or is_rising:
        for unit, factor in _UNITS.items():
            if _EPOCH[0] * factor <= low <= high <= _EPOCH[1] * factor:
                return f"times: {unit} since 1970"
        # 32-bit floats hold every second of these numbers, so a day may be 32.
        month = both // 100 % 100
        day = both % 100
        are_dates = ((month >= 1) & (month <= 12) & (day <= 32)).all()
        if whole and _DATES[0] <= low <= high <= _DATES[1] and are_dates:
            return "dates as numbers"
    if _TIME.fullmatch(name):
        return "times, by its name"
    numbers_rows = all(n >= _DISTINCT * len(v) for n, v in zip(distinct, values, strict=True))
    if min(distinct) < _FEWEST_ROWS or not numbers_rows:
        return None
    if any(_is_even(np.sort(v)) for v in (*values, both)):
        return "a counter: evenly spaced numbers"
    is_dense = high - low < 2 * len(both) and len(np.unique(both)) >= _DISTINCT * len(both)
    if whole and (is_dense or _ID.fullmatch(name)):
        return "row numbers: whole numbers that all differ"
    # Fractions may be a feature by which the source was sorted.
    return "a counter: it rises or falls from row to row" if whole and is_rising else None


def _is_whole(values: Values) -> bool:
    return bool((values == np.round(values)).all())


def _is_even(ordered: Values) -> bool:
    steps = np.diff(ordered)
    usual = np.median(steps)
    # A number in 32 bits is off by this much.
    rounding = 4 * np.finfo(np.float32).eps * np.abs(ordered).max()
    even = np.abs(steps - usual) <= 0.01 * usual + rounding
    return bool(usual > 2 * rounding and even.mean() >= _EVEN)


def _ranges_apart(source: Values, target: Values) -> str | None:
    """Return the ranges of both domains if they are further apart than either of them is wide."""
    (low, high), (lower, higher) = (np.quantile(v, (0.01, 0.99)) for v in (source, target))
    if max(lower - high, low - higher) <= max(high - low, higher - lower):
        return None
    ends = [" to ".join(dict.fromkeys((f"{v.min():g}", f"{v.max():g}"))) for v in (source, target)]
    return f"source {ends[0]}, target {ends[1]}"
