"""Layout of the charts of the HTML report: curves, a histogram and an interval.

The templates write them as SVG or HTML, in the colours of the page's theme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from opensetda.report.content import Openness, ScoreHistogram
from opensetda.runs import figure_style as style
from opensetda.runs.curves import Line, Panel

# Size of a panel, about the pixels of a card on a phone.
WIDTH, HEIGHT = 360.0, 226.0
_LEFT, _TOP, _BOTTOM = 36.0, 14.0, 40.0
# Beside the curves: at least, at most, and what a label needs besides its characters.
_LEAST_RIGHT, _MOST_RIGHT, _DOT = 62.0, 158.0, 20.0
_LABEL_GAP = 15.0
_CHARACTER = 6.3
_LONGEST_NAME = 24

# Colours of figures as variables of the page, for its dark theme.
_THEMED = {
    style.BLACK: "var(--ink)",
    style.BLUE: "var(--c0)",
    style.ORANGE: "var(--c1)",
    style.GREEN: "var(--c2)",
    style.PURPLE: "var(--c3)",
    style.YELLOW: "var(--c4)",
    style.SKY: "var(--c5)",
    style.GREY: "var(--muted)",
}


class Tick(NamedTuple):
    """A place on an axis and its label."""

    place: float
    text: str


@dataclass(frozen=True)
class Curve:
    """A line: SVG path, points as (x, y), and the text beside it, at height `end`.

    The path ends at the kept step, and `later` goes on from there; `kept` is the point between.
    """

    name: str
    color: str
    width: float
    path: str
    later: str
    kept: tuple[float, float] | None
    points: tuple[tuple[float, float], ...]
    end: float
    end_text: str
    dashed: bool = False


@dataclass(frozen=True)
class Reading:
    """The box that is shown while the pointer is at a step, with one row per line."""

    step: int
    x: float
    left: float
    width: float
    rows: tuple[tuple[str, str, str], ...]  # colour, name and value of each line


@dataclass(frozen=True)
class PanelChart:
    """A panel, ready to be written as SVG."""

    title: str
    unit: str
    summary: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    curves: tuple[Curve, ...]
    readings: tuple[Reading, ...]
    kept_x: float | None
    half_step: float
    right: float
    kept_words: str
    left: float = _LEFT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM


def panel_chart(panel: Panel, n_steps: int, kept: int | None) -> PanelChart:
    """Lay out a panel of curves up to step `n_steps`, with a mark at the kept one."""
    steps = sorted({step for line in panel.lines for step in line.values})
    first, last = min([1, *steps]), max([n_steps, *steps])
    ticks = nice_ticks(*_limits(panel))
    low, high = ticks[0], ticks[-1]
    lines = list(panel.lines)
    if panel.level is not None:
        level = {first: panel.level, last: panel.level}
        lines.insert(0, Line("true", level, style.GREY, "", 1.4))
    texts = [_end_text(line, kept, len(lines) > 1) for line in lines]
    room = _CHARACTER * max(map(len, texts), default=0) + _DOT
    right = round(WIDTH - min(max(room, _LEAST_RIGHT), _MOST_RIGHT), 1)
    left, top, bottom = _LEFT, _TOP, HEIGHT - _BOTTOM

    def x(step: float) -> float:
        if last == first:
            return (left + right) / 2
        return round(left + 8 + (step - first) / (last - first) * (right - left - 16), 1)

    def y(value: float) -> float:
        return round(bottom - (value - low) / (high - low) * (bottom - top), 1)

    kept_x = None if kept is None or not first <= kept <= last else x(kept)
    ends = _spread([y(_value(line, kept)) for line in lines], top, bottom)
    curves = []
    for line, text, end in zip(lines, texts, ends, strict=True):
        dashed = line.name == "true" and line.marker == ""
        points = tuple((x(step), y(value)) for step, value in sorted(line.values.items()))
        until = next((place for place, (at, _) in enumerate(points) if at == kept_x), len(points))
        after = () if dashed else points[until:]
        path = _path(points if dashed else points[: until + 1])
        mark = after[0] if len(after) > 1 else None
        look = (themed(line.color), line.width, path, _path(after) if mark else "", mark)
        curves.append(Curve(line.name, *look, points, end, text, dashed))
    values = ", ".join(f"{line.name} {style.short_number(_value(line, kept))}" for line in lines)
    half = (right - left - 16) / max(last - first, 1) / 2
    early = kept_x is not None and kept != last
    words = f"at step {kept}" if early else ""
    when = words.capitalize() or "At the last step"
    return PanelChart(
        title=panel.title,
        unit=panel.unit,
        summary=f"{panel.title}, {panel.unit}. {when}: {values}.",
        x_ticks=tuple(Tick(x(step), str(step)) for step in _step_ticks(first, last)),
        y_ticks=tuple(Tick(y(value), _number(value, ticks)) for value in ticks),
        curves=tuple(curves),
        readings=tuple(_reading(step, lines, x(step), right, panel.level) for step in steps),
        kept_x=kept_x,
        half_step=round(min(half, (right - left) / 2), 1),
        right=right,
        kept_words=words,
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{at:g} {height:g}" for at, height in points)


def themed(color: str) -> str:
    """Return the page's variable for a colour of the figures, or the colour itself."""
    return _THEMED.get(color.upper(), color)


def nice_ticks(low: float, high: float) -> list[float]:
    """Return three to six round numbers that enclose the interval."""
    if not high > low:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    unit = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    start, stop = math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9)
    return [round(number * unit, 12) for number in range(start, stop + 1)]


def _limits(panel: Panel) -> tuple[float, float]:
    values = [value for line in panel.lines for value in line.values.values()]
    seen = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    if panel.level is not None:
        seen.append(panel.level)
    low, high = min(seen), max(seen)
    if not panel.percent:
        # From zero if that costs no detail.
        return (0.0 if 0 <= low < 0.6 * high else low), high
    # As in the figures: at least ten points, at most 100.
    high = min(max(high, low + 10), 100.0)
    return (0.0 if low < 20 else min(low, high - 10)), high


def _spread(places: list[float], top: float, bottom: float) -> list[float]:
    """Move overlapping labels apart, within the height of the panel."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    spread, place = list(places), -math.inf
    for left, index in zip(range(len(order) - 1, -1, -1), order, strict=True):
        place = max(min(places[index], bottom - left * _LABEL_GAP), place + _LABEL_GAP, top)
        spread[index] = round(place, 1)
    return spread


def _step_ticks(first: int, last: int) -> list[int]:
    """Return up to eight evenly spaced steps, if possible with both ends."""
    span = last - first
    least = max(1, math.ceil(span / 7))
    every = next((gap for gap in range(least, 3 * least) if span % gap == 0), least)
    return list(range(first, last + 1, every if span // every >= 2 else least))


def _reading(step: int, lines: list[Line], x: float, right: float, level: float | None) -> Reading:
    rows = []
    for line in lines:
        value = level if line.marker == "" and line.name == "true" else line.values.get(step)
        text = "\N{EN DASH}" if value is None else style.short_number(value)
        rows.append((themed(line.color), style.shorten(line.name, _LONGEST_NAME), text))
    longest = max(len(name) + len(text) for _, name, text in rows)
    width = max(96.0, round(_CHARACTER * (longest + 3) + 30, 1))
    # Beside the labels at the ends of the lines.
    left = x + 10 if x + 10 + width <= right else max(x - 10 - width, 0.0)
    return Reading(step, x, round(left, 1), width, tuple(rows))


def _value(line: Line, kept: int | None) -> float:
    """Return the value at the kept step, which the labels of the run have; or the last."""
    at_kept = None if kept is None else line.values.get(kept)
    return line.values[max(line.values)] if at_kept is None else at_kept


def _end_text(line: Line, kept: int | None, named: bool) -> str:
    number = style.short_number(_value(line, kept))
    longest = int((_MOST_RIGHT - _DOT) / _CHARACTER) - len(number) - 1
    return f"{style.shorten(line.name, longest)} {number}" if named else number


def _number(value: float, ticks: list[float]) -> str:
    unit = ticks[1] - ticks[0]
    decimals = max(0, -math.floor(math.log10(unit) + 1e-9))
    if decimals and abs(unit * 10**decimals - round(unit * 10**decimals)) > 1e-6:
        decimals += 1  # a unit of 0.25 or 2.5 needs one more
    elif unit % 1 and not decimals:
        decimals = 1
    return f"{value:,.{decimals}f}"


class Bar(NamedTuple):
    """A bin: heights in percent of the tallest, and a description."""

    known: float
    unknown: float
    words: str


@dataclass(frozen=True)
class HistogramChart:
    """A histogram with positions and heights in percent."""

    bars: tuple[Bar, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    threshold: Tick | None
    later: str | None
    n_known: int
    n_unknown: int


def histogram_chart(histogram: ScoreHistogram) -> HistogramChart:
    """Lay out the histogram of known scores."""
    edges, threshold = histogram.edges.tolist(), histogram.threshold
    low, high = float(edges[0]), float(edges[-1])
    counts = list(zip(histogram.known.tolist(), histogram.unknown.tolist(), strict=True))
    y_values = [tick for tick in nice_ticks(0, max([*map(sum, counts), 4])) if tick >= 0]
    x_values, top = nice_ticks(low, high), y_values[-1]
    bars = []
    for start, stop, (known, unknown) in zip(edges[:-1], edges[1:], counts, strict=True):
        words = f"{start:.3g} to {stop:.3g}: {known:,} known, {unknown:,} unknown"
        bars.append(Bar(round(100 * known / top, 3), round(100 * unknown / top, 3), words))

    def place(value: float) -> float:
        return round(100 * (value - low) / ((high - low) or 1.0), 3)

    mark = None
    if threshold is not None and math.isfinite(threshold):
        mark = Tick(min(max(place(threshold), 0.0), 100.0), f"{threshold:.3g}")
    inside = [value for value in x_values if low - 1e-9 <= value <= high + 1e-9]
    return HistogramChart(
        bars=tuple(bars),
        x_ticks=tuple(Tick(place(value), _number(value, x_values)) for value in inside),
        y_ticks=tuple(Tick(round(100 * value / top, 3), f"{value:,.0f}") for value in y_values),
        threshold=mark,
        later=None if histogram.later is None else f"{histogram.later:.3g}",
        n_known=int(histogram.known.sum()),
        n_unknown=int(histogram.unknown.sum()),
    )


@dataclass(frozen=True)
class Interval:
    """An estimate, its interval and the truth in percent, and a description."""

    share: float
    low: float
    high: float
    true: float | None
    words: str


def interval_of(openness: Openness) -> Interval:
    """Lay out the share of unknowns on a scale from 0 to 100 %."""

    def place(value: float) -> float:
        return round(100 * min(max(value, 0.0), 1.0), 2)

    words = f"{openness.share:.1%} unknown"
    if openness.is_estimated:
        words += f", interval {openness.low:.1%} to {openness.high:.1%}"
    if openness.true is not None:
        words += f", true share {openness.true:.1%}"
    true = None if openness.true is None else place(openness.true)
    return Interval(place(openness.share), place(openness.low), place(openness.high), true, words)
