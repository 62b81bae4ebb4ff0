"""Variants below each other, their metrics as dots on one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opensetda.runs.figure_style import GREY, METRIC_STYLE, dress, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class DotRow:
    """One variant.

    Attributes
    ----------
    values, deviations : mappings of str to float
        Percentages by metric; empty for a variant that there is not.
    remark : str
        Stands in the place of the dots, if there are none.
    """

    name: str
    values: Mapping[str, float] = field(default_factory=dict)
    deviations: Mapping[str, float] = field(default_factory=dict)
    remark: str = ""


def draw_dots(rows: Sequence[DotRow], title: str, metrics: Sequence[str] = ("hos",)) -> Figure:
    """Draw the rows from top to bottom; a dashed line goes down from the first one's HOS."""
    figure = new_figure(8.6, 0.36 * len(rows) + 1.6, title)
    axes = figure.add_subplot()
    places = range(len(rows) - 1, -1, -1)
    first = rows[0].values.get("hos")
    if first is not None:
        axes.axvline(first, color=GREY, linewidth=1.2, linestyle=(0, (5, 3)), zorder=1)
    for metric in metrics:
        heading, color, marker, width = METRIC_STYLE[metric]
        drawn = [(p, r) for p, r in zip(places, rows, strict=True) if metric in r.values]
        axes.errorbar(
            [row.values[metric] for _, row in drawn],
            [place for place, _ in drawn],
            xerr=[row.deviations.get(metric, 0.0) for _, row in drawn],
            color=color,
            marker=marker,
            markersize=7 if width > 2 else 5,
            linestyle="none",
            elinewidth=1.4,
            label=heading,
            zorder=4 if width > 2 else 3,
        )
    dress(axes, grid="x")
    axes.set_xlabel("%")
    axes.set_yticks(list(places), [row.name for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    for place, row in zip(places, rows, strict=True):
        if not row.values:
            axes.annotate(
                row.remark,
                (0.02, place),
                xycoords=axes.get_yaxis_transform(),
                va="center",
                color=GREY,
                fontsize=9,
                style="italic",
            )
    figure.legend(loc="outside lower center", ncols=len(metrics), frameon=False)
    return figure
