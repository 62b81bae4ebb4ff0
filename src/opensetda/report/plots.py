"""Histograms, intervals and lines, for reports and analyses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from opensetda.report.content import LinePanel, ScoreHistogram
from opensetda.runs.figure_style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    dress,
    frame_percent,
    label_ends,
    new_figure,
    plot_line,
    short_number,
    write_beside,
)


def draw_histograms(panels: Mapping[str, ScoreHistogram], width: float = 5.0) -> Figure:
    """Draw stacked histograms of the same scores, by title, with the threshold."""
    figure = new_figure(width, 2.1 * len(panels) + 0.7)
    first: Axes | None = None
    for number, (title, histogram) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(len(panels), 1, number, sharex=first)
        first = first or axes
        _draw_histogram(axes, title, histogram)
        axes.tick_params(labelbottom=number == len(panels))
    axes.set_xlabel("known score")
    return figure


def _draw_histogram(axes: Axes, title: str, histogram: ScoreHistogram) -> None:
    left, widths = histogram.edges[:-1], histogram.edges[1:] - histogram.edges[:-1]
    below = 0 * histogram.known
    kinds = (("known", histogram.known, BLUE), ("unknown", histogram.unknown, ORANGE))
    for name, counts, color in kinds:
        label = f"{name} ({int(counts.sum()):,})"
        # A thin gap between bars keeps them apart in print.
        axes.bar(left, counts, 0.9 * widths, below, align="edge", color=color, label=label)
        below = below + counts
    dress(axes, title)
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
        axes.axvline(100 * level, color=GREY, linewidth=1.4, linestyle=(0, (5, 3)), zorder=1)
        text, at_top = f"true {100 * level:.1f}", axes.get_xaxis_transform()
        where: dict[str, Any] = {"xycoords": at_top, "textcoords": "offset points", "ha": "center"}
        axes.annotate(text, (100 * level, 1), (0, 3), color=GREY, fontsize=9.5, **where)
    axes.set_xlabel(what)
    axes.set_xlim(0, 100)
    axes.set_yticks(range(len(rows) - 1, -1, -1), [row.name for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    return figure


def draw_lines(panels: Sequence[LinePanel], title: str, columns: int = 3) -> Figure:
    """Draw panels beside and below each other."""
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(max(4.7 * columns, 6.2), 3.6 * rows + 0.5, title)
    for place, panel in enumerate(panels, start=1):
        _draw_lines(figure.add_subplot(rows, columns, place), panel)
    return figure


def _draw_lines(axes: Axes, panel: LinePanel) -> None:
    ends = []
    for series in panel.series:
        plot_line(axes, series.points, series.color, series.marker, series.width)
        if series.points:
            value = list(series.points.values())[-1]
            text = f"{series.name} {short_number(value)}"
            ends.append((text, value, series.color, series.width > 2))
    dress(axes, panel.title)
    axes.set_xlabel(panel.place_name)
    axes.set_ylabel(panel.unit)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    if panel.percent:
        frame_percent(axes)
    label_ends(axes, ends)
