"""Shares with their intervals below each other, on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opensetda.runs.figure_style import BLACK, BLUE, GREY, dress, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class IntervalRow:
    """A share in [0, 1] and its interval, if it has one; `strong` is the one that counts."""

    name: str
    share: float
    low: float | None = None
    high: float | None = None
    strong: bool = False


def draw_intervals(rows: Sequence[IntervalRow], what: str, level: float | None = None) -> Figure:
    """Draw the rows from top to bottom.

    Parameters
    ----------
    rows : sequence of IntervalRow
        At least one.
    what : str
        Below the axis: what the percentages are of.
    level : float, optional
        The true share: a dashed line.
    """
    figure = new_figure(5.0, 0.34 * len(rows) + 1.0)
    axes = figure.add_subplot()
    for place, row in enumerate(reversed(rows)):
        color = BLACK if row.strong else BLUE
        if row.low is not None and row.high is not None:
            width = 2.6 if row.strong else 1.6
            axes.plot([100 * row.low, 100 * row.high], [place, place], color=color, linewidth=width)
        axes.plot(100 * row.share, place, color=color, marker="o", markersize=6.5)
        axes.annotate(
            f"{100 * row.share:.1f}",
            (1, place),
            xycoords=axes.get_yaxis_transform(),
            xytext=(8, 0),
            textcoords="offset points",
            color=color,
            fontsize=9.5,
            fontweight="bold" if row.strong else "normal",
            va="center",
        )
    dress(axes, grid="x")
    if level is not None:
        axes.axvline(100 * level, color=GREY, linewidth=1.4, linestyle=(0, (5, 3)), zorder=1)
        axes.annotate(
            f"true {100 * level:.1f}",
            (100 * level, 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 3),
            textcoords="offset points",
            color=GREY,
            fontsize=9.5,
            ha="center",
        )
    axes.set_xlabel(what)
    axes.set_xlim(0, 100)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_yticks(range(len(rows)), [row.name for row in reversed(rows)])
    axes.tick_params(axis="y", length=0)
    return figure
