"""Matrices as pictures: the edges of all pairs of nodes, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from opensetda.report.content import Confusion
from opensetda.runs.figure_style import BLACK, BLUE, GREY, figure_name, new_figure

_LONGEST_NAME = 14
# Share of the side that is the map itself, without title and scale.
_DRAWN = 0.8
_SIZE, _SMALLEST = 8.0, 5.0
_FEW_GROUPS = 30


@dataclass(frozen=True)
class PairMap:
    """One value per pair of nodes, NaN where it is undefined; `highest` has the end colour."""

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
    """Draw rows of maps, all N x N, and at their left the first, to compare them with.

    `sizes` are the nodes of each group, in the order of `names`; they add up to N. The side of a
    map is in inches.
    """
    columns = max(len(row) for row in rows) + 1
    figure = new_figure(side * columns + 1.2, (side + 0.15) * len(rows) + 0.6, title)
    # Half rows: the first map stands in the middle of all.
    grid = figure.add_gridspec(2 * len(rows), columns)
    axes = figure.add_subplot(grid[len(rows) - 1 : len(rows) + 1, 0])
    _draw_map(figure, axes, first, sizes)
    _name_groups(axes, sizes, names, 72 * side * _DRAWN)
    for number, row in enumerate(rows):
        for place, drawn in enumerate(row, start=1):
            axes = figure.add_subplot(grid[2 * number : 2 * number + 2, place])
            _draw_map(figure, axes, drawn, sizes)
    return figure


def _draw_map(figure: Figure, axes: Axes, drawn: PairMap, sizes: Sequence[int]) -> None:
    colors = colormaps["viridis"].with_extremes(bad="#E8E8E8")
    look: dict[str, Any] = {"cmap": colors, "interpolation": "nearest"}
    image = axes.imshow(drawn.values, vmin=0, vmax=drawn.highest, **look)
    # Many groups are narrow: their borders must not hide them.
    width = 0.35 * min(1.0, _FEW_GROUPS / len(sizes))
    for border in np.cumsum(sizes)[:-1]:
        axes.axhline(border - 0.5, color="white", linewidth=width)
        axes.axvline(border - 0.5, color="white", linewidth=width)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(drawn.title, fontsize=10.5, loc="left")
    axes.set_xlabel(drawn.remark, fontsize=9)
    _dress_scale(figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02))


def _dress_scale(bar: Colorbar) -> None:
    bar.ax.tick_params(labelsize=8, color=GREY)
    bar.outline.set_visible(False)


def _name_groups(axes: Axes, sizes: Sequence[int], names: Sequence[str], height: float) -> None:
    """Write the names beside the map, which is `height` points high."""
    ends = np.cumsum(sizes)
    middles = ends - np.asarray(sizes) / 2 - 0.5
    points = height / ends[-1]
    gap = points * float(np.diff(middles).min(initial=ends[-1]))
    size = min(_SIZE, max(gap, _SMALLEST))
    shown: dict[float, str] = {}
    for middle, name in zip(middles.tolist(), names, strict=True):
        # A group of few nodes has no room for its name beside a neighbour's.
        if not shown or points * (middle - max(shown)) >= size:
            shown[middle] = figure_name(str(name), _LONGEST_NAME)
    axes.set_yticks(list(shown), list(shown.values()), fontsize=size)
    axes.tick_params(axis="y", length=0)


# With more rows the unknown classes become one.
MOST_ROWS = 80
# Inches of a cell and size of the text: with numbers, with names only, and with neither.
_ROOMY, _CLOSE, _TINY = (0.36, 8.5), (0.135, 6.5), (0.03, 6.5)
_MOST_NUMBERS, _MOST_NAMES = 16, 80
_LONGEST_CLASS = 18
# Inches of the colours' scale, however large the matrix is.
_SCALE = 1.8


def draw_confusion(confusion: Confusion) -> Figure:
    """Draw the matrix: colour is the share of the row, numbers are targets."""
    confusion = _limited(confusion)
    n_rows, n_columns = confusion.counts.shape
    most = max(n_rows, n_columns)
    named, numbers = most <= _MOST_NAMES, most <= _MOST_NUMBERS
    cell, size = _ROOMY if numbers else _CLOSE if named else _TINY
    figure = new_figure(n_columns * cell + 2.2, n_rows * cell + 1.5)
    # Squares stay squares; the scale stands beside them all the same.
    figure.set_layout_engine("compressed")
    axes = figure.add_subplot()
    totals = confusion.counts.sum(axis=1, keepdims=True)
    shares = np.asarray(confusion.counts / np.maximum(totals, 1))
    blues = LinearSegmentedColormap.from_list("blues", ["white", BLUE])
    image = axes.imshow(shares, cmap=blues, vmin=0, vmax=1, interpolation="nearest", aspect="equal")
    if numbers:
        _write_numbers(axes, confusion.counts, shares, size)
    # What lies on this side of both lines are known classes, labelled as such.
    if 0 < confusion.n_known < n_rows:
        axes.axhline(confusion.n_known - 0.5, color=GREY, linewidth=0.8)
    if n_columns > 1:
        axes.axvline(n_columns - 1.5, color=GREY, linewidth=0.8)
    axes.set_ylabel("true class")
    axes.set_xlabel("label")
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, pad=2, labelsize=size)
    axes.tick_params(axis="x", top=False, bottom=False, labeltop=True, labelbottom=False)
    if named:
        given, true = (
            [figure_name(name, _LONGEST_CLASS) for name in names]
            for names in (confusion.given_names, confusion.true_names)
        )
        axes.set_xticks(range(n_columns), given, rotation=90)
        axes.set_yticks(range(n_rows), true)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(GREY)
        spine.set_linewidth(0.8)
    length = min(1.0, _SCALE / (n_rows * cell))
    bar = figure.colorbar(
        image, ax=axes, shrink=length, aspect=15, pad=0.03, fraction=0.08, ticks=[0, 0.5, 1]
    )
    bar.ax.set_yticklabels(["0", "50", "100"])
    bar.set_label("% of the true class", fontsize=8)
    _dress_scale(bar)
    return figure


def _limited(confusion: Confusion) -> Confusion:
    """Put the unknown classes together if there are too many rows."""
    n_unknown = len(confusion.true_names) - confusion.n_known
    if len(confusion.true_names) <= MOST_ROWS or n_unknown < 2:
        return confusion
    known, others = np.split(confusion.counts, [confusion.n_known])
    return replace(
        confusion,
        true_names=(*confusion.true_names[: confusion.n_known], f"{n_unknown} unknown classes"),
        counts=np.concatenate([known, others.sum(axis=0, keepdims=True)]),
    )


def _write_numbers(
    axes: Axes, counts: npt.NDArray[np.intp], shares: npt.NDArray[np.float64], size: float
) -> None:
    for (row, column), count in np.ndenumerate(counts):
        # Zeros say nothing; without them the mistakes are seen.
        if count:
            look: dict[str, Any] = {"color": "white" if shares[row, column] > 0.55 else BLACK}
            # Numbers of five digits still fit.
            look["fontsize"] = size if count < 1000 else size - 2
            axes.text(column, row, str(count), ha="center", va="center", **look)
