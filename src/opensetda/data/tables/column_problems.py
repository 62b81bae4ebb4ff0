"""What is wrong with the columns of two tables: told at once, with the command that helps."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from pyarrow import types

from opensetda.data.names import id_problem, shown
from opensetda.data.tables.column_files import ColumnTable, is_numeric
from opensetda.data.tables.formats import find_name, listing
from opensetda.errors import ListedError

MOST_CATEGORIES = 50
# More names than this are no list to copy.
_MOST_DROPPED = 30
_LABELS = ("label", "labels", "class", "classes", "category", "target", "species")

Tables = tuple[ColumnTable, ColumnTable]


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table, or the arrays of an ``.npz`` file.

    `id` holds names of the samples, for example file names. `features` is an array; in tables with
    columns, every column that is not named here is a feature, except those in `drop`, and those
    that look like counters, times or marks of a domain, unless they are in `keep`. Text in
    `one_hot` becomes a feature per value. `impute` "median" fills in empty cells, by domain.
    Several names may be in one text, with commas between them.
    """

    label: str = "y"
    id: str | None = None
    features: str = "X"
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    one_hot: tuple[str, ...] = ()
    impute: str = "none"


class ColumnsError(ListedError):
    """All that is wrong with the columns of two tables, and the options that help."""

    def __init__(
        self, problems: Sequence[str], options: Sequence[str], command: Sequence[str] = ()
    ) -> None:
        self.problems, self.options = tuple(problems), tuple(options)
        advice = f"add {shlex.join(options)}"
        if not options:
            advice = "give both tables the same columns of numbers"
        elif command:
            advice = f"run instead: {shlex.join([*command, *options])}"
        if len(problems) == 1:
            super().__init__([f"{problems[0]}; {advice}"])
            return
        head = f"{len(problems)} problems with the columns of the tables:"
        listed = (f"  {problem}" for problem in problems)
        super().__init__([head, *listed, f"{advice[0].upper()}{advice[1:]}"])

    def for_command(self, command: Sequence[str]) -> ColumnsError:
        """Return the same error with the whole corrected command."""
        return ColumnsError(self.problems, self.options, command)


@dataclass
class Problems:
    """What is wrong, and what would help."""

    lines: list[str] = field(default_factory=list)
    label: str | None = None
    id: str | None = None
    dropped: list[str] = field(default_factory=list)
    impute: bool = False

    def raise_any(self) -> None:
        """Raise a `ColumnsError` if there is a problem."""
        if not self.lines:
            return
        options = [] if self.label is None else ["--label-column", self.label]
        options += [] if self.id is None else ["--id-column", self.id]
        joined = ",".join(name for name in self.dropped if "," not in name)
        for names in (joined, *(name for name in self.dropped if "," in name)):
            options += ["--drop", names] if names else []
        options += ["--impute", "median"] if self.impute else []
        raise ColumnsError(self.lines, options if len(self.dropped) <= _MOST_DROPPED else ())


def with_label(tables: Tables, columns: TableColumns, problems: Problems) -> TableColumns:
    """Return the columns with the likely column of the labels, if the one asked for is missing."""
    source, target = tables
    if columns.label in source.names:
        return columns
    unshared = [name for name in source.names if name not in {*target.names, *columns.drop}]
    # Labels are rather text.
    unshared = [name for name in unshared if not is_numeric(source.kinds[name])] or unshared
    usual = [name for name in source.names if name.strip().lower() in _LABELS]
    close = difflib.get_close_matches(columns.label, source.names, n=1)
    guesses = [*close, *usual, *(unshared if len(unshared) == 1 else ())]
    if not guesses:
        find_name(source, columns.label, "--label-column")
    problems.label = guesses[0]
    there = f"no column {columns.label!r}; it has {listing(source.names)}"
    problems.lines.append(f"{source.path}: {there}; did you mean {shown(guesses[0])}?")
    return replace(columns, label=guesses[0])


def shared_columns(
    tables: Tables, own: Sequence[Sequence[str]], columns: TableColumns, problems: Problems
) -> list[str]:
    """Return the columns that both tables have; the others are problems."""
    source, target = (table.path for table in tables)
    missing = [name for name in own[0] if name not in {*own[1]}]
    extra = [name for name in own[1] if name not in {*own[0]}]
    problems.dropped += [*missing, *extra]
    for name in extra[:_MOST_DROPPED]:
        if near := closest(name, missing):
            same = f"column {shown(name)} is not in {source}; did you mean {shown(near)}?"
            problems.lines.append(f"{target}: {same} Rename it to use it")
            missing.remove(near)
            extra = [other for other in extra if other != name]
    if missing:
        found = f"{count(missing, 'feature column')} of {source} not found here"
        problems.lines.append(f"{target}: {found}: {listing(missing, 3)}")
    if extra:
        found = f"{count(extra, 'column')} that {source} does not have"
        problems.lines.append(f"{target}: {found}: {listing(extra, 3)}")
    if columns.id is None:
        problems.id = next((name for name in extra if _names_rows([tables[1]], name)), None)
    problems.dropped = [name for name in problems.dropped if name != problems.id]
    return [name for name in own[0] if name in {*own[1]}]


def closest(name: str, others: Sequence[str]) -> str | None:
    """Return which of the others a name may stand for, whatever its case and white space."""
    # With another number, it is another column.
    plain = {other.strip().casefold(): other for other in others if _digits(other) == _digits(name)}
    near = difflib.get_close_matches(name.strip().casefold(), plain, n=1, cutoff=0.7)
    return plain[near[0]] if near else None


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))


def numeric_columns(
    tables: Tables, shared: Sequence[str], columns: TableColumns, problems: Problems
) -> list[str]:
    """Return the columns of numbers; the others are problems, unless asked for as categories."""
    numeric = []
    for name in shared:
        wrong = [table for table in tables if not is_numeric(table.kinds[name])]
        if name in columns.one_hot:
            continue
        if not wrong:
            numeric.append(name)
            continue
        where = " and ".join(str(table.path) for table in wrong)
        problems.lines.append(f"{where}: column {name!r} is not numeric ({_held(wrong, name)}")
        if columns.id is None and problems.id is None and _names_rows(tables, name):
            problems.id = name
        else:
            problems.dropped.append(name)
    return numeric


def _names_rows(tables: Sequence[ColumnTable], name: str) -> bool:
    """Return whether a column of text has another value in each row, and could name it."""
    for table in tables:
        if not types.is_string(table.kinds[name]) or table.is_large([name]):
            return False
        cells = table.text(name).tolist()
        if len({*cells}) < len(cells) or None in cells or any(map(id_problem, cells)):
            return False
    return True


def _held(tables: Sequence[ColumnTable], name: str) -> str:
    example = f"{tables[0].example(name)})"
    if not all(types.is_string(table.kinds[name]) for table in tables):
        return example
    values = {text for table in tables for text in table.text(name).tolist()} - {None}
    advice = f"; --one-hot {shlex.quote(name)} makes a feature of each"
    few = 1 < len(values) <= MOST_CATEGORIES
    return f"{example}: {count(values, 'different value')}{advice if few else ''}"


def check_gaps(
    tables: Tables,
    names: Sequence[str],
    gaps: Sequence[npt.NDArray[np.intp]],
    columns: TableColumns,
    problems: Problems,
) -> None:
    """Find empty cells that nothing fills; `gaps` are their numbers and first rows by column."""
    for table, (counts, rows) in zip(tables, gaps, strict=True):
        holed = []
        for name, n, row in zip(names, counts.tolist(), rows.tolist(), strict=True):
            if n == len(table) or (n > len(table) / 2 and columns.impute == "none"):
                empty = f"column {shown(name)} is empty in {n:,} of {len(table):,} rows"
                problems.lines.append(f"{table.path}: {empty}")
                problems.dropped += [name] if name not in problems.dropped else []
            elif n and columns.impute == "none":
                holed.append(f"{shown(name)} ({n:,}, first in row {row + 1})")
        if holed:
            cells = f"NaN or empty cells in {count(holed, 'column')}: {', '.join(holed[:8])}"
            problems.lines.append(f"{table.path}: {cells}{', ...' if len(holed) > 8 else ''}")
            problems.impute = True


def count(names: Collection[Any], noun: str) -> str:
    """Return how many there are, in words."""
    return f"1 {noun}" if len(names) == 1 else f"{len(names):,} {noun}s"
