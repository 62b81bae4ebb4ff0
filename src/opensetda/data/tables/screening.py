"""Columns that say where and when a row was recorded, not what it is: found without any label."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# Of fewer rows nothing is concluded, except from the name of an index; of fewer different values
# not that they are times.
_FEWEST_ROWS, _FEWEST_TIMES = 20, 10
# Neighbouring rows of the source that show an order, and rows of the whole table for the rest. The
# order of targets is not looked at: it may tell their classes.
_ORDERED_ROWS, _SPREAD_ROWS = 4096, 16384
_COLUMNS_AT_ONCE = 256
# Of row numbers nearly all differ: 32-bit floats make some large ones equal.
_DISTINCT, _EVEN = 0.9, 0.9
_EPOCH = 9e8, 2.1e9  # seconds since 1970: from 1998 to 2036
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
                elif ranges := _ranges_apart(*values):
                    apart[name] = f"separates the domains: {ranges}"
    if len(apart) <= max(1, _MOST_APART * (len(names) - len(found))):
        found |= apart
    return {name: found[name] for name in names if name in found}


def _reason(name: str, values: list[Values], steps: Values) -> str | None:
    """Return why a column is no feature; `steps` are those from row to row of the source."""
    both = np.concatenate(values)
    is_rising = len(steps) and ((steps >= 0).all() or (steps <= 0).all())
    low, high, whole = both.min(), both.max(), _is_whole(both)
    if low == high:
        # Always 0 is a feature that is never active, as some of any network are.
        return f"always {low:g}" if low else None
    distinct = [len(np.unique(v)) for v in values]
    if min(distinct) >= _FEWEST_TIMES or is_rising:
        for unit, factor in _UNITS.items():
            if _EPOCH[0] * factor <= low <= high <= _EPOCH[1] * factor:
                return f"times: {unit} since 1970"
        # 32-bit floats hold every second of these numbers, so a day may be 32.
        month, day = both // 100 % 100, both % 100
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
    ranges = (
        " to ".join(dict.fromkeys((f"{v.min():g}", f"{v.max():g}"))) for v in (source, target)
    )
    return "source {}, target {}".format(*ranges)
