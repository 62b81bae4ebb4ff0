"""Histograms, intervals, dots and lines, for the analyses and for the figures of a paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from opensetda.report.content import ScoreHistogram
from opensetda.runs.figure_style import (
    BLACK,
    BLUE,
    GREY,
    LIGHT,
    METRIC_STYLE,
    ORANGE,
    dress,
    frame_percent,
    label_ends,
    new_figure,
    plot_line,
    short_number,
    write_beside,
)

_DASHES = (0, (5, 3))


@dataclass(frozen=True)
class HistogramPanel:
    """Known scores, divided into known and unknown by labels or by the truth."""

    title: str
    histogram: ScoreHistogram


def draw_histograms(panels: Sequence[HistogramPanel]) -> Figure:
    """Draw stacked histograms of the same scores below each other, with the threshold."""
    figure = new_figure(5.0, 2.1 * len(panels) + 0.7)
    first: Axes | None = None
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(len(panels), 1, number, sharex=first)
        first = first or axes
        _draw_histogram(axes, panel)
        axes.tick_params(labelbottom=number == len(panels))
    axes.set_xlabel("known score")
    return figure


def _draw_histogram(axes: Axes, panel: HistogramPanel) -> None:
    histogram = panel.histogram
    left, widths = histogram.edges[:-1], histogram.edges[1:] - histogram.edges[:-1]
    below = 0 * histogram.known
    kinds = (("known", histogram.known, BLUE), ("unknown", histogram.unknown, ORANGE))
    for name, counts, color in kinds:
        label = f"{name} ({int(counts.sum()):,})"
        # A thin gap between bars keeps them apart in print.
        axes.bar(left, counts, 0.9 * widths, below, align="edge", color=color, label=label)
        below = below + counts
    dress(axes, panel.title)
    axes.set_ylabel("targets")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_ylim(0, 1.08 * max(int(below.max(initial=0)), 1))
    cut = histogram.threshold
    if cut is not None:
        dashes, label = (0, (4, 2)), f"threshold {cut:.3g}"
        axes.axvline(cut, color=BLACK, linewidth=1.2, linestyle=dashes, label=label)
    spaces = {"handlelength": 1.2, "borderpad": 0}
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9, **spaces)


@dataclass(frozen=True)
class IntervalRow:
    """A share in [0, 1] with its interval, if it has one; `strong` is the one that was used."""

    name: str
    share: float
    low: float | None = None
    high: float | None = None
    strong: bool = False


def draw_intervals(rows: Sequence[IntervalRow], what: str, level: float | None = None) -> Figure:
    """Draw shares from top to bottom on one axis, `what`, and a dashed line at the true `level`."""
    figure = new_figure(5.0, 0.34 * len(rows) + 1.0)
    axes = figure.add_subplot()
    for place, row in enumerate(reversed(rows)):
        color = BLACK if row.strong else BLUE
        if row.low is not None and row.high is not None:
            width = 2.6 if row.strong else 1.6
            axes.plot([100 * row.low, 100 * row.high], [place, place], color=color, linewidth=width)
        axes.plot(100 * row.share, place, color=color, marker="o", markersize=6.5)
        write_beside(axes, f"{100 * row.share:.1f}", place, color, row.strong)
    dress(axes, grid="x")
    if level is not None:
        axes.axvline(100 * level, color=GREY, linewidth=1.4, linestyle=_DASHES, zorder=1)
        text, at_top = f"true {100 * level:.1f}", axes.get_xaxis_transform()
        where: dict[str, Any] = {"xycoords": at_top, "textcoords": "offset points", "ha": "center"}
        axes.annotate(text, (100 * level, 1), (0, 3), color=GREY, fontsize=9.5, **where)
    axes.set_xlabel(what)
    axes.set_xlim(0, 100)
    _name_rows(axes, [row.name for row in rows])
    return figure


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names) - 1, -1, -1), names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-0.6, len(names) - 0.4)


@dataclass(frozen=True)
class DotRow:
    """The metrics of one variant, in percent; `remark` replaces them if there are none."""

    name: str
    values: Mapping[str, float] = field(default_factory=dict)
    deviations: Mapping[str, float] = field(default_factory=dict)
    remark: str = ""


def draw_dots(rows: Sequence[DotRow], title: str, metrics: Sequence[str] = ("hos",)) -> Figure:
    """Draw variants from top to bottom; a dashed line goes down from the HOS of the first."""
    figure = new_figure(8.6, 0.36 * len(rows) + 1.6, title)
    axes = figure.add_subplot()
    places = range(len(rows) - 1, -1, -1)
    first = rows[0].values.get("hos")
    if first is not None:
        axes.axvline(first, color=GREY, linewidth=1.2, linestyle=_DASHES, zorder=1)
    for metric in metrics:
        heading, color, marker, width = METRIC_STYLE[metric]
        drawn = [(p, r) for p, r in zip(places, rows, strict=True) if metric in r.values]
        size, height = (7, 4) if width > 2 else (5, 3)
        look: dict[str, Any] = {"marker": marker, "markersize": size, "zorder": height}
        look |= {"color": color, "linestyle": "none", "elinewidth": 1.4, "label": heading}
        values = [row.values[metric] for _, row in drawn]
        deviations = [row.deviations.get(metric, 0.0) for _, row in drawn]
        axes.errorbar(values, [place for place, _ in drawn], xerr=deviations, **look)
    dress(axes, grid="x")
    axes.set_xlabel("%")
    _name_rows(axes, [row.name for row in rows])
    for place, row in zip(places, rows, strict=True):
        if not row.values:
            where: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
            axes.text(0.02, place, row.remark, color=GREY, fontsize=9, style="italic", **where)
    figure.legend(loc="outside lower center", ncols=len(metrics), frameon=False)
    return figure


@dataclass(frozen=True)
class Series:
    """One line: its values by place; `deviations` make a band around it."""

    name: str
    points: Mapping[float, float]
    color: str
    marker: str
    width: float = 1.6
    deviations: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LinePanel:
    """Lines over a quantity that was varied, on a logarithmic axis or not."""

    title: str
    place_name: str
    unit: str
    series: Sequence[Series]
    ticks: Sequence[float] = ()  # labelled places; by default whole numbers, as many as fit
    marked: Sequence[float] = ()  # places that get a pale bar behind the lines
    percent: bool = False
    logarithmic: bool = False


def draw_lines(panels: Sequence[LinePanel], title: str, columns: int = 3) -> Figure:
    """Draw panels beside and below each other."""
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(max(4.7 * columns, 6.2), 3.6 * rows + 0.5, title)
    for place, panel in enumerate(panels, start=1):
        _draw_lines(figure.add_subplot(rows, columns, place), panel)
    return figure


def _draw_lines(axes: Axes, panel: LinePanel) -> None:
    if panel.logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    for place in panel.marked:
        axes.axvline(place, color=LIGHT, linewidth=7, zorder=0.5)
    for series in panel.series:
        _draw_series(axes, series)
    dress(axes, panel.title)
    axes.set_xlabel(panel.place_name)
    axes.set_ylabel(panel.unit)
    if panel.ticks:
        axes.xaxis.set_major_locator(FixedLocator(list(panel.ticks)))
        axes.set_xticks(list(panel.ticks), [f"{tick:g}" for tick in panel.ticks])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    if panel.percent:
        frame_percent(axes)
    ends = []
    for series in panel.series:
        if series.points:
            value = list(series.points.values())[-1]
            text = f"{series.name} {short_number(value)}"
            ends.append((text, value, series.color, series.width > 2))
    label_ends(axes, ends)


def _draw_series(axes: Axes, series: Series) -> None:
    plot_line(axes, series.points, series.color, series.marker, series.width)
    band = [(at, y, series.deviations.get(at, 0.0)) for at, y in series.points.items()]
    if any(deviation for _, _, deviation in band):
        low, high = ([y + sign * deviation for _, y, deviation in band] for sign in (-1, 1))
        axes.fill_between(
            list(series.points), low, high, color=series.color, alpha=0.12, linewidth=0
        )
