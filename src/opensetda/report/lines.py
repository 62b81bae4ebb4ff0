"""Lines over a quantity that was varied, in panels: means, and how far runs lie apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opensetda.runs.figure_style import (
    LIGHT,
    EndLabel,
    dress,
    frame_percent,
    label_ends,
    new_figure,
    short_number,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Series:
    """One line.

    Attributes
    ----------
    points : mapping of float to float
        The value at each place; places without one are left out.
    deviations : mapping of float to float
        How far the runs lie apart there: a band around the line.
    """

    name: str
    points: Mapping[float, float]
    color: str
    marker: str
    width: float = 1.6
    deviations: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LinePanel:
    """One question and the lines that answer it.

    Attributes
    ----------
    ticks : sequence of float
        Places that are named below the axis; empty: whole numbers, as many as fit.
    marked : sequence of float
        Places behind which a pale bar stands.
    percent : bool
        Values are percentages.
    logarithmic : bool
        Equal factors are equal distances along the axis.
    """

    title: str
    place_name: str
    unit: str
    series: Sequence[Series]
    ticks: Sequence[float] = ()
    marked: Sequence[float] = ()
    percent: bool = False
    logarithmic: bool = False


def draw_lines(panels: Sequence[LinePanel], title: str, columns: int = 3) -> Figure:
    """Draw panels beside and below each other."""
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(max(4.7 * columns, 6.2), 3.6 * rows + 0.5, title)
    for place, panel in enumerate(panels, start=1):
        _draw_panel(figure.add_subplot(rows, columns, place), panel)
    return figure


def _draw_panel(axes: Axes, panel: LinePanel) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

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
            ends.append(EndLabel(text, value, series.color, bold=series.width > 2))
    label_ends(axes, ends)


def _draw_series(axes: Axes, series: Series) -> None:
    places, values = list(series.points), list(series.points.values())
    axes.plot(
        places,
        values,
        color=series.color,
        marker=series.marker,
        markersize=4,
        linewidth=series.width,
        zorder=3 if series.width > 2 else 2,
    )
    apart = [series.deviations.get(place, 0.0) for place in places]
    if any(apart):
        low = [value - deviation for value, deviation in zip(values, apart, strict=True)]
        high = [value + deviation for value, deviation in zip(values, apart, strict=True)]
        axes.fill_between(places, low, high, color=series.color, alpha=0.12, linewidth=0)
