"""Matrices as pictures: the edges of all pairs of nodes, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from opensetda.report.content import Confusion
from opensetda.runs.figure_style import BLACK, BLUE, GREY, ORANGE, figure_name, new_figure

_LONGEST_NAME = 14
# Inches of a side, and its share that is the map itself, without title and scale.
_SIDE, _DRAWN = 4.1, 0.8
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
) -> Figure:
    """Draw rows of maps, all N x N; the first map, to compare them with, is at the left of all.

    `sizes` are the nodes of each group, in the order of `names`; they add up to N.
    """
    columns = max(len(row) for row in rows) + 1
    figure = new_figure(_SIDE * columns + 1.2, (_SIDE + 0.15) * len(rows) + 0.6, title)
    grid = figure.add_gridspec(len(rows), columns)
    axes = figure.add_subplot(grid[:, 0])
    _draw_map(figure, axes, first, sizes)
    _name_groups(axes, sizes, names, 72 * _SIDE * _DRAWN)
    for number, row in enumerate(rows):
        for place, drawn in enumerate(row, start=1):
            _draw_map(figure, figure.add_subplot(grid[number, place]), drawn, sizes)
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
_MOST_NUMBERS, _MOST_NAMES = 25, 80
_LONGEST_CLASS = 18
# Opacity of a cell without targets, and how much it grows: words are read on all of them.
_LEAST_OPAQUE, _OPAQUE = 0.06, 0.64


def draw_confusion(confusion: Confusion) -> Figure:
    """Draw the matrix: blue is right, orange wrong, the opacity is the share of the row."""
    confusion = _limited(confusion)
    counts, (n_rows, n_columns) = confusion.counts, confusion.counts.shape
    most = max(n_rows, n_columns)
    named, numbers = most <= _MOST_NAMES, most <= _MOST_NUMBERS
    cell, size = _ROOMY if numbers else _CLOSE if named else _TINY
    figure = new_figure(n_columns * cell + 2.0, n_rows * cell + 1.5)
    axes = figure.add_subplot()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    cells, colors = [], []
    for row, column in np.argwhere(counts).tolist():
        right = row if row < confusion.n_known else n_columns - 1
        opacity = _LEAST_OPAQUE + _OPAQUE * float(shares[row, column])
        cells.append(Rectangle((column - 0.5, row - 0.5), 1, 1))
        colors.append(to_rgba(BLUE if column == right else ORANGE, opacity))
        if numbers:
            # Numbers of five digits still fit.
            count = int(counts[row, column])
            look: dict[str, Any] = {"fontsize": size if count < 1000 else size - 2}
            axes.text(column, row, str(count), ha="center", va="center", color=BLACK, **look)
    axes.add_collection(PatchCollection(cells, facecolors=colors, edgecolors="none"))
    axes.set_xlim(-0.5, n_columns - 0.5)
    axes.set_ylim(n_rows - 0.5, -0.5)
    axes.set_aspect("equal")
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
    given, true = (
        [figure_name(name, _LONGEST_CLASS) for name in names] if named else []
        for names in (confusion.given_names, confusion.true_names)
    )
    axes.set_xticks(range(len(given)), given, rotation=90)
    axes.set_yticks(range(len(true)), true)
    for spine in axes.spines.values():
        spine.set_color(GREY)
        spine.set_linewidth(0.8)
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
