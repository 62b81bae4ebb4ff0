"""Maps of all pairs of a graph's nodes, in the order of their classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from opensetda.report.names import figure_name
from opensetda.runs.figure_style import GREY, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST_NAME = 14
# Of a map's side so much is the map; the rest are its title and its scale.
_DRAWN = 0.8
_SIZE, _SMALLEST = 8.0, 5.0
_FEW_GROUPS = 30


@dataclass(frozen=True)
class PairMap:
    """One map.

    Attributes
    ----------
    values : array of shape (N, N)
        What is drawn; NaN where there is nothing to say.
    highest : float
        The value that is darkest.
    remark : str
        Below the map.
    """

    title: str
    values: npt.NDArray[np.floating[Any]]
    highest: float
    remark: str = ""


def draw_maps(
    first: PairMap,
    rows: Sequence[Sequence[PairMap]],
    sizes: Sequence[int],
    names: Sequence[str],
    title: str,
    side: float = 4.1,
) -> Figure:
    """Draw rows of maps, and one at their left that they are to be compared with.

    Parameters
    ----------
    first : PairMap
        The one at the left.
    rows : sequence of sequences of PairMap
        The others, all of N x N.
    sizes : sequence of int
        Nodes of each group, in their order; they add up to N.
    names : sequence of str
        The groups' names, beside the first map.
    title : str
        Above the picture.
    side : float
        Inches that a map takes.
    """
    columns = max(len(row) for row in rows) + 1
    figure = new_figure(side * columns + 1.2, (side + 0.15) * len(rows) + 0.6, title)
    # Half rows: the first map stands in the middle of all.
    grid = figure.add_gridspec(2 * len(rows), columns)
    middle = slice(len(rows) - 1, len(rows) + 1)
    axes = figure.add_subplot(grid[middle, 0])
    _draw_map(figure, axes, first, sizes)
    _name_groups(axes, sizes, names, 72 * side * _DRAWN)
    for number, row in enumerate(rows):
        for place, drawn in enumerate(row, start=1):
            axes = figure.add_subplot(grid[2 * number : 2 * number + 2, place])
            _draw_map(figure, axes, drawn, sizes)
    return figure


def _draw_map(figure: Figure, axes: Axes, drawn: PairMap, sizes: Sequence[int]) -> None:
    from matplotlib import colormaps

    colors = colormaps["viridis"].with_extremes(bad="#E8E8E8")
    image = axes.imshow(
        drawn.values, cmap=colors, vmin=0, vmax=drawn.highest, interpolation="nearest"
    )
    # Many groups are narrow: their borders must not hide them.
    width = 0.35 * min(1.0, _FEW_GROUPS / len(sizes))
    for border in np.cumsum(sizes)[:-1]:
        axes.axhline(border - 0.5, color="white", linewidth=width)
        axes.axvline(border - 0.5, color="white", linewidth=width)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(drawn.title, fontsize=10.5, loc="left")
    axes.set_xlabel(drawn.remark, fontsize=9)
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02)
    bar.ax.tick_params(labelsize=8, color=GREY)
    bar.outline.set_visible(False)


def _name_groups(axes: Axes, sizes: Sequence[int], names: Sequence[str], height: float) -> None:
    """Write the names beside the map, which is `height` points high."""
    ends = np.cumsum(sizes)
    middles = ends - np.asarray(sizes) / 2 - 0.5
    points = height / ends[-1]
    gap = points * float(np.diff(middles).min(initial=ends[-1]))
    size = min(_SIZE, max(gap, _SMALLEST))
    places: list[float] = []
    shown = []
    for middle, name in zip(middles.tolist(), names, strict=True):
        # A group of few nodes has no room for its name beside a neighbour's.
        if not places or points * (middle - places[-1]) >= size:
            places.append(middle)
            shown.append(figure_name(str(name), _LONGEST_NAME))
    axes.set_yticks(places, shown, fontsize=size)
    axes.tick_params(axis="y", length=0)
