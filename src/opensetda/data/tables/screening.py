"""Columns that say where and when a row was recorded, not what it is: found without any label.

Counters, times, row numbers and marks of a domain ruin an adaptation: they are large, and the
same rows never have them twice. Only columns with names are looked at, in source and target.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# Of fewer rows nothing is concluded, except from the name of an index.
_FEWEST_ROWS = 20
# Different ones, of times and dates.
_FEWEST_TIMES = 10
# Neighbouring rows of the source that show an order, and rows of the whole table for the rest. The
# order of targets is not looked at: it may tell their classes.
_ORDERED_ROWS, _SPREAD_ROWS = 4096, 16384
_COLUMNS_AT_ONCE = 256
# Of row numbers nearly all differ: 32-bit floats make some large ones equal.
_DISTINCT, _EVEN = 0.9, 0.9
# Seconds since 1970: from 1998 to 2036.
_EPOCH = 9e8, 2.1e9
_UNITS = {"seconds": 1, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
_DATES = 19_700_101, 20_991_231
_INDEX = re.compile(r"|index|unnamed: ?\d+(_level_\d+)?|__index_level_\d+__|level_\d+", re.I)
_ID = re.compile(
    r"(.*[ _.-])?(id|ids|uid|uuid|guid|serial|row|record)([ _.-]?(no|nr|num|number))?", re.I
)
_TIME = re.compile(r"(.*[ _.-])?(timestamp|datetime|epoch|unix ?time)([ _.-].*)?", re.I)
# The shift itself, or another unit, moves many columns; a mark of a domain is alone.
_MOST_APART = 0.25

Values = npt.NDArray[np.float64]


def suspicious_columns(names: Sequence[str], source: Any, target: Any) -> dict[str, str]:
    """Return the columns that should not be features, each with the reason.

    `source` (n, D) and `target` (m, D) may be memory maps, and hold NaN in empty cells.
    """
    found: dict[str, str] = {}
    apart: dict[str, str] = {}
    enough = min(len(source), len(target)) >= _FEWEST_ROWS
    for first in range(0, len(names), _COLUMNS_AT_ONCE):
        some = slice(first, first + _COLUMNS_AT_ONCE)
        # By column: numpy is many times faster on contiguous values.
        ordered = _columns(source[:_ORDERED_ROWS, some])
        spread = [_columns(_evenly(rows)[:, some]) for rows in (source, target)]
        for place, name in enumerate(names[some]):
            values = [_present(columns[place]) for columns in spread]
            if _INDEX.fullmatch(name.strip()) and all(_is_whole(v) for v in values):
                found[name] = "an index"
            elif enough and not any(len(v) for v in values):
                found[name] = "empty"
            elif enough and min(map(len, values)) >= _FEWEST_ROWS:
                if reason := _reason(name, values, _is_rising(_present(ordered[place]))):
                    found[name] = reason
                elif _is_apart(*values):
                    apart[name] = f"source {_range(values[0])}, target {_range(values[1])}"
    if len(apart) <= max(1, _MOST_APART * (len(names) - len(found))):
        found |= {name: f"separates the domains: {ranges}" for name, ranges in apart.items()}
    return {name: found[name] for name in names if name in found}


def _reason(name: str, values: list[Values], is_rising: bool) -> str | None:
    both = np.concatenate(values)
    if both.min() == both.max():
        # Always 0 is a feature that is never active, as some of any network are.
        return f"always {both[0]:g}" if both[0] else None
    low, high = both.min(), both.max()
    distinct = [len(np.unique(v)) for v in values]
    numbers_rows = all(n >= _DISTINCT * len(v) for n, v in zip(distinct, values, strict=True))
    whole = _is_whole(both)
    if min(distinct) >= _FEWEST_TIMES or is_rising:
        for unit, factor in _UNITS.items():
            if _EPOCH[0] * factor <= low <= high <= _EPOCH[1] * factor:
                return f"times: {unit} since 1970"
        if whole and _DATES[0] <= low <= high <= _DATES[1] and _are_dates(both):
            return "dates as numbers"
    if _TIME.fullmatch(name.strip()):
        return "times, by its name"
    if min(distinct) < _FEWEST_ROWS:
        return None
    if numbers_rows and any(_is_even(np.sort(v)) for v in (*values, both)):
        return "a counter: evenly spaced numbers"
    if whole and numbers_rows:
        is_dense = high - low < 2 * len(both) and len(np.unique(both)) >= _DISTINCT * len(both)
        if is_dense or _ID.fullmatch(name.strip()):
            return "row numbers: whole numbers that all differ"
        # Fractions may be a feature by which the source was sorted.
        if is_rising:
            return "a counter: it rises or falls from row to row"
    return None


def _columns(rows: Any) -> Values:
    return np.ascontiguousarray(np.asarray(rows, dtype=np.float64).T)


def _evenly(rows: Any) -> Any:
    """Return rows from the whole table, not only from its start."""
    return rows[:: max(1, -(-len(rows) // _SPREAD_ROWS))]


def _present(values: Values) -> Values:
    return values[~np.isnan(values)]


def _is_whole(values: Values) -> bool:
    return bool((values == np.round(values)).all())


def _is_rising(values: Values) -> bool:
    steps = np.diff(values)
    return bool(len(steps) and ((steps >= 0).all() or (steps <= 0).all()))


def _is_even(ordered: Values) -> bool:
    steps = np.diff(ordered)
    usual = np.median(steps)
    # A number in 32 bits is off by this much.
    rounding = 4 * np.finfo(np.float32).eps * np.abs(ordered).max()
    return bool(
        usual > 2 * rounding and (np.abs(steps - usual) <= 0.01 * usual + rounding).mean() >= _EVEN
    )


def _are_dates(values: Values) -> bool:
    # 32-bit floats hold every second of these numbers.
    month, day = values // 100 % 100, values % 100
    return bool(((month >= 1) & (month <= 12) & (day <= 32)).all())


def _is_apart(source: Values, target: Values) -> bool:
    """Return whether the domains are further apart than either of them is wide."""
    (low, high), (lower, higher) = (np.quantile(v, (0.01, 0.99)) for v in (source, target))
    return bool(max(lower - high, low - higher) > max(high - low, higher - lower))


def _range(values: Values) -> str:
    low, high = values.min(), values.max()
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
