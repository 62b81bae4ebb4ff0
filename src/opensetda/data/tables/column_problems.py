"""What is wrong with the columns of two tables: told at once, with the command that helps."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from pyarrow import types

from opensetda.data.limits import MOST_NAMES
from opensetda.data.names import id_problem, shown
from opensetda.data.tables.formats import find_name, listing
from opensetda.data.tables.interface import TableFile
from opensetda.data.tables.parquet_parts import is_numeric
from opensetda.errors import ListedError

MOST_CATEGORIES = 50
# More names than this are no list to copy.
_MOST_DROPPED = 30
_LABELS = ("label", "labels", "class", "classes", "category", "target", "species")
_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}\b.*")
_WITH_SEPARATORS = re.compile(r"[+-]?\d{1,3}([.,' \u2019\u00a0\u202f]\d{3})*([.,]\d+)?")


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
        added = shlex.join(self.options)
        advice = f"add {added}" if added else "give both tables the same columns of numbers"
        if added and command:
            advice = f"run instead: {shlex.join([*command, *self.options])}"
        if len(self.problems) == 1:
            super().__init__([f"{self.problems[0]}; {advice}"])
            return
        head = f"{len(self.problems)} problems with the columns of the tables:"
        listed = (f"  {problem}" for problem in self.problems)
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
        plain = [name for name in self.dropped if "," not in name]
        alone = [name for name in self.dropped if "," in name]
        for names in ([",".join(plain)] if plain else []) + alone:
            options += ["--drop", names]
        options += ["--impute", "median"] if self.impute else []
        raise ColumnsError(self.lines, options if len(self.dropped) <= _MOST_DROPPED else ())


def with_label(
    tables: tuple[TableFile, TableFile], columns: TableColumns, problems: Problems
) -> TableColumns:
    """Return the columns with the likely column of the labels, if the one asked for is missing."""
    source, target = tables
    if columns.label in source.names:
        return columns
    unshared = [name for name in source.names if name not in {*target.names, *columns.drop}]
    # Labels are rather text.
    unshared = [name for name in unshared if not is_numeric(source.kinds[name])] or unshared
    usual = [name for name in source.names if name.strip().lower() in _LABELS]
    close = difflib.get_close_matches(columns.label, source.names, n=1)
    guess = next(iter((*close, *usual, *(unshared if len(unshared) == 1 else ()))), None)
    if guess is None:
        find_name(source, columns.label, "--label-column")
    there = f"no column {columns.label!r}; it has {listing(source.names)}"
    problems.lines.append(f"{source.path}: {there}; did you mean {shown(str(guess))}?")
    problems.label = guess
    return replace(columns, label=str(guess))


def compare(
    tables: tuple[TableFile, TableFile],
    own: Sequence[Sequence[str]],
    columns: TableColumns,
    problems: Problems,
) -> None:
    """Find columns that only one of the tables has."""
    source, target = tables
    missing = [name for name in own[0] if name not in {*own[1]}]
    extra = [name for name in own[1] if name not in {*own[0]}]
    renamed = close_names(extra, missing)
    for new, old in renamed.items():
        problems.lines.append(
            f"{target.path}: column {shown(new)} is not in {source.path}; did you mean "
            f"{shown(old)}? Rename it to use it"
        )
    missing = [name for name in missing if name not in renamed.values()]
    extra = [name for name in extra if name not in renamed]
    if missing:
        problems.lines.append(
            f"{target.path}: {count(missing, 'feature column')} of {source.path} "
            f"not found here: {listing(missing, 3)}"
        )
    if extra:
        problems.lines.append(
            f"{target.path}: {count(extra, 'column')} that {source.path} does not have: "
            f"{listing(extra, 3)}"
        )
    if columns.id is None:
        problems.id = next((name for name in extra if _names_rows([target], name)), None)
    unused = [*renamed.values(), *renamed, *missing, *extra]
    problems.dropped += [name for name in unused if name != problems.id]


def close_names(names: Sequence[str], others: Sequence[str]) -> dict[str, str]:
    """Return which of the others each name may stand for; each of them once."""
    found: dict[str, str] = {}
    for name in names[:_MOST_DROPPED]:
        # With another number, it is another column.
        left = {
            _letters(other): other
            for other in reversed(others)
            if other not in found.values() and _numbers(other) == _numbers(name)
        }
        if close := difflib.get_close_matches(_letters(name), left, 1, 0.7):
            found[name] = left[close[0]]
    return found


def _letters(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()


def _numbers(name: str) -> list[str]:
    return re.findall(r"\d+", name)


def numeric_columns(
    tables: tuple[TableFile, TableFile],
    shared: Sequence[str],
    columns: TableColumns,
    problems: Problems,
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
        problems.lines.append(f"{where}: column {name!r} is {_described(wrong, name)}")
        if columns.id is None and problems.id is None and _names_rows(tables, name):
            problems.id = name
        else:
            problems.dropped.append(name)
    return numeric


def _names_rows(tables: Sequence[TableFile], name: str) -> bool:
    """Return whether a column of text has another value in each row, and could name it."""
    for table in tables:
        kind = table.kinds[name]
        is_text = types.is_string(kind) or types.is_large_string(kind)
        if not is_text or not _is_short(table):
            return False
        cells = table.text(name).tolist()
        if len({*cells}) < len(cells) or None in cells or any(map(id_problem, cells)):
            return False
        if _form(cells):
            return False
    return True


def _is_short(table: TableFile) -> bool:
    return bool(getattr(table, "__len__", int)() <= MOST_NAMES)


def _form(values: Collection[str]) -> str:
    """Return what text stands for, if it is not text."""
    some = [*values][:100]
    if some and all(map(_DATE.fullmatch, some)):
        return "dates as text, "
    separated = some and all(map(_WITH_SEPARATORS.fullmatch, some))
    if separated and not all(value.isdecimal() for value in some):
        return "numbers with separators of thousands (save them without), "
    return ""


def _described(tables: Sequence[TableFile], name: str) -> str:
    kind, example = tables[0].kinds[name], tables[0].example(name)
    if types.is_temporal(kind):
        return f"not numeric (dates or times: {kind})"
    if types.is_nested(kind) or not all(map(_is_short, tables)):
        return f"not numeric ({example})"
    values = {text for table in tables for text in table.text(name).tolist()} - {None}
    form, categories = _form(values), ""
    if not form and 1 < len(values) <= MOST_CATEGORIES:
        categories = f"; --one-hot {shlex.quote(name)} makes a feature of each"
    return f"not numeric ({example}): {form}{count(values, 'different value')}{categories}"


def check_gaps(
    tables: Sequence[TableFile],
    names: Sequence[str],
    gaps: Sequence[npt.NDArray[np.intp]],
    lengths: Sequence[int],
    columns: TableColumns,
    problems: Problems,
) -> None:
    """Find empty cells that nothing fills, and columns with hardly any others."""
    mostly = {
        name: f"{table.path}: column {shown(name)} is empty in {n:,} of {length:,} rows"
        for table, (counts, _), length in zip(tables, gaps, lengths, strict=True)
        for name, n in zip(names, counts.tolist(), strict=True)
        if n == length or (n > length / 2 and columns.impute == "none")
    }
    if all(lengths):
        problems.lines += mostly.values()
        problems.dropped += mostly
    for table, (counts, rows) in zip(tables, gaps, strict=True):
        holed = [
            f"{shown(name)} ({n:,}, first in row {row + 1})"
            for name, n, row in zip(names, counts.tolist(), rows.tolist(), strict=True)
            if n and name not in mostly
        ]
        if holed and columns.impute == "none":
            more = f", ... ({len(holed)} in all)" if len(holed) > 8 else ""
            cells = f"NaN or empty cells in {count(holed, 'column')}: {', '.join(holed[:8])}"
            problems.lines.append(f"{table.path}: {cells}{more}")
            problems.impute = True


def count(names: Collection[Any], noun: str) -> str:
    """Return how many there are, in words."""
    return f"1 {noun}" if len(names) == 1 else f"{len(names):,} {noun}s"
